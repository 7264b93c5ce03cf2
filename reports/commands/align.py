"""``faithcheck align``: Table 2 of the paper on any model of text or images."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers.utils import logging as hugging_face

from faithcheck.axioms.alignment import evaluate
from faithcheck.axioms.alignment.run_key import StoreError
from faithcheck.axioms.engine.error_text import error_text
from faithcheck.explainers.loo.removal import REMOVALS
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.data.handwritten_digits import DataError
from faithcheck.models.pretrained.errors import ModelError
from faithcheck.reports import results
from faithcheck.reports.alignment_request import DTYPES, AlignRequest, measure
from faithcheck.reports.commands import output
from faithcheck.reports.commands.arguments import PAGE, positive_integer, positive_number, seed
from faithcheck.reports.options import OptionError
from faithcheck.reports.options.loading import import_from_current_folder
from faithcheck.reports.pages import alignment
from faithcheck.reports.results import Json

EXPECTED = (ModelError, DataError, OptionError, evaluate.AlignmentError, StoreError, Unsupported, OSError)
"""The errors whose message is all that the user needs."""
FAILED = 1
"""The exit code of a run in which an explainer failed or left something behind; the others are measured."""
DESCRIPTION = """Measure how well explainers agree with Leave-One-Out on a model (Table 2 of arXiv 2510.18810):
correlation with LOO, MoRF, LeRF and Δ, with 95 % intervals and paired comparisons.
Every measurement is saved at once: after an interruption, the same command continues. The exit code is 1 if an
explainer failed or left something behind on the model or in the process, and 2 if nothing can be measured as asked."""
EXAMPLE = """examples:
  faithcheck align --html evaluate.html
  faithcheck align --model textattack/bert-base-uncased-SST-2 --data sst2 --limit 200 --json sst2.json --html
"""


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns its exit code.

    It is 0; 1 if an explainer failed or left something behind; 2 if the request cannot be measured; 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="faithcheck align",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.add_argument(
        "--explainer",
        action="append",
        default=[],
        metavar="NAME",
        help=f"only LOO and this one, repeatable: {', '.join(evaluate.TABLE_2)} (default: these), another built-in "
        "one, or module:Object",
    )
    return _run(parser.parse_args(argv))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command, all but ``--explainer``."""
    for flag, settings, meaning in (
        (
            "--model",
            {},
            "a folder or a hub name of a model saved as …ForSequenceClassification, …ForCausalLM (next token) or "
            "…ForImageClassification; default: the project's own 12-layer BERT",
        ),
        (
            "--data",
            {},
            "texts: own (default: sentences written for this project); sst2 or imdb, through the datasets library; a "
            "file .tsv, .jsonl or .jsonl.gz; a folder with such a file named dev. Images: digits (default), a file "
            ".npz, or a folder",
        ),
        ("--limit", {"type": positive_integer, "metavar": "N"}, "only the first N examples"),
        (
            "--removal",
            {"choices": sorted(REMOVALS.keys() - {"baseline"})},
            "how LOO and the curves remove a feature (default: attention_mask, as in the paper; zero for images)",
        ),
        (
            "--draws",
            {"type": positive_integer, "metavar": "K"},
            "draws of each removal by resample or noise (default: 8)",
        ),
        (
            "--chunk",
            {"type": positive_integer, "metavar": "N"},
            f"features that the curves remove at each step (default: 1, or {evaluate.CHUNK} if half of the examples "
            f"have more than {evaluate.LONG})",
        ),
        (
            "--max-length",
            {"type": positive_integer, "metavar": "N"},
            "cut texts to N tokens (default: the most that the model takes)",
        ),
        (
            "--max-tokens",
            {"type": positive_integer, "metavar": "N", "default": evaluate.MAX_TOKENS},
            "the most tokens in one forward pass, padding included: bounds memory (default: %(default)s)",
        ),
        (
            "--dtype",
            {"choices": list(DTYPES), "default": "float32"},
            "the dtype of the arithmetic, in whichever dtype the weights are stored (default: %(default)s)",
        ),
        ("--device", {"default": "cpu"}, "torch device (default: %(default)s)"),
        ("--seed", {"type": seed, "default": 0}, "seed of random removals and of intervals (default: %(default)s)"),
        (
            "--json",
            {"type": Path, "metavar": "PATH"},
            "write the results; faithcheck report PATH makes pages from them",
        ),
        ("--md", PAGE, "write a Markdown page to PATH (default: beside the JSON)"),
        ("--html", PAGE, "write an HTML page to PATH (default: beside the JSON)"),
        (
            "--cache",
            {"type": Path, "metavar": "DIR"},
            "the folder that keeps measurements as they are made (default: alignment in $XDG_CACHE_HOME/faithcheck or "
            "~/.cache/faithcheck)",
        ),
        (
            "--isolate",
            {"action": "store_true"},
            "run each explainer in a process of its own: a crash or os._exit there ends that explainer alone",
        ),
        (
            "--explainer-timeout",
            {"type": positive_number, "metavar": "SECONDS"},
            "stop an explainer that takes longer for a batch: its row is an error",
        ),
        ("--allow-pickle", {"action": "store_true"}, "also load weights stored as pickle, pytorch_model.bin"),
    ):
        options: dict[str, Any] = settings
        parser.add_argument(flag, help=meaning, **options)


def _run(arguments: argparse.Namespace) -> int:
    """Measure, write the document and its pages, and print the tables. An expected error is one line on stderr."""
    try:
        files = output.files(arguments, {"md": alignment.to_markdown, "html": alignment.to_html})
        import_from_current_folder()
        hugging_face.disable_progress_bar()  # type: ignore[no-untyped-call]
        names = {field.name for field in fields(AlignRequest)} & vars(arguments).keys()
        document = _with_progress(AlignRequest(**{name: getattr(arguments, name) for name in names}))
        files.write(document)
    except EXPECTED as error:
        return output.refuse(error)
    except KeyboardInterrupt:
        return output.interrupted("the same command continues from the saved measurements")
    except SystemExit as error:  # of a user's module, where nothing is measured: never the exit code of this run
        return output.refuse(OptionError(f"an explainer ended the run: it raised {error_text(error)}"))
    output.print_for_terminal(alignment.to_terminal, document)
    files.print_paths()
    return FAILED if any(map(results.is_failed, document["explainers"])) else 0


def _with_progress(request: AlignRequest) -> Json:
    """Measure with a progress bar that counts the examples of all explainers together."""
    with output.progress_bar() as progress:
        task = progress.add_task("loading", total=None)

        def advance(explainer: str, done: int, total: int) -> None:
            progress.update(task, description=explainer, advance=done, total=total)

        return measure(request, advance)
