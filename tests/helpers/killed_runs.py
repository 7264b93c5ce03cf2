"""Runs of ``faithcheck align`` in processes of their own that can be killed, all forked from one that imported it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

from faithcheck.tests.helpers import small_models

LENGTHS = (3, 6, 4, 1, 0, 60, 8)  # words of each text; the small BERT takes 32 tokens
# Without AttnLRP there are no paired comparisons, whose permutations would take half of the time.
EXPLAINERS = [f"--explainer={name}" for name in ("attention_rollout", "gradient_x_input")]
PRELOADED = [
    "pytest",
    "scipy.stats",
    "transformers.models.bert.modeling_bert",
    "faithcheck.cli.main",
    "faithcheck.cli.align",
    "faithcheck.alignment.measurement",
    "faithcheck.tests.helpers.killed_runs",
]
"""What every process would import, were it not in the one from which they fork."""
MOMENTS = ("before", "uncommitted", "after")


class Runs:
    """Runs on a small BERT and a file of texts, each with a cache and a document of its own in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model, self.texts = small_models.save("bert", folder / "bert"), folder / "texts.tsv"
        words = small_models.WORDS[5:]
        lines = [" ".join(words[(3 * i + j) % len(words)] for j in range(n)) for i, n in enumerate(LENGTHS)]
        self.texts.write_text("".join(f"{line}\t{i % 2}\n" for i, line in enumerate(lines)))
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(PRELOADED)

    def start(
        self,
        cache: str,
        document: str,
        target: Callable[..., None] | None = None,
        *arguments: str,
        options: Sequence[str] = (),
    ) -> Any:
        """Start a run of align; returns the process, which has ``kill``, ``join`` and ``exitcode``."""
        where = ["--cache", str(self.folder / cache), "--json", str(self.document(document))]
        chosen = ["--model", str(self.model), "--data", str(self.texts), "--max-tokens", "150", *EXPLAINERS]
        return self.start_command(target or run, ["align", *chosen, *options, *where], *arguments)

    def start_command(self, target: Callable[..., None], *arguments: Any) -> Any:
        """Start a process that calls a function, such as `run`, with these arguments."""
        process = self._processes.Process(target=target, args=arguments)
        process.start()
        return process

    def finish(self, cache: str, document: str) -> bytes:
        """Run to the end; returns the bytes of the document."""
        process = self.start(cache, document)
        process.join()
        assert process.exitcode == 0
        return self.document(document).read_bytes()

    def document(self, name: str) -> Path:
        """The path of a document."""
        return self.folder / f"{name}.json"

    def stored(self, cache: str) -> dict[str, list[tuple[int, str]]]:
        """The batches of each store in a cache, by the name of its file."""
        stores: dict[str, list[tuple[int, str]]] = {}
        for file in sorted((self.folder / cache).glob("*.sqlite")):
            with closing(sqlite3.connect(file)) as connection:
                tables = connection.execute("SELECT name FROM sqlite_master WHERE name = 'batches'").fetchall()
                rows = "SELECT batch, content FROM batches ORDER BY batch"
                stores[file.name] = connection.execute(rows).fetchall() if tables else []
        return stores


def run(arguments: Sequence[str]) -> None:
    """What a process does: the command, without its output on the screen."""
    import torch

    from faithcheck.cli.main import main

    torch.set_num_threads(1)
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os._exit(main(arguments))


def run_to_third_batch(arguments: Sequence[str], moment: str) -> None:
    """The command, which kills itself at its third batch: before, while or after the batch is written."""
    from faithcheck.alignment.store import Store

    append, appended = Store.append, count(1)

    def killed(store: Any, batch: int, content: Any) -> None:
        if next(appended) < 3:
            return append(store, batch, content)
        if moment == "uncommitted":
            store._connection.execute("BEGIN")
        if moment != "before":
            append(store, batch, content)
        os.kill(os.getpid(), signal.SIGKILL)

    Store.append = killed  # type: ignore[method-assign]
    run(arguments)
