"""An alignment that is killed, again and again at every moment of writing, resumes to the same bytes."""

import os
import subprocess
import sys

from faithcheck.tests.helpers import small_models

LENGTHS = (*range(3, 9), 1, 0, 60, 5, 7, 9)  # words of each text; the small BERT takes 32 tokens
EXPLAINERS = [f"--explainer={name}" for name in ("attnlrp", "gradient_x_input")]
COMMAND = "from faithcheck.reports.commands.main import main; raise SystemExit(main())"
KILLED = """
import os, signal, sys
from itertools import count, cycle
import torch
from faithcheck.axioms.alignment.store import Store
from faithcheck.reports.commands import align
from faithcheck.reports.commands.main import main
torch.set_num_threads(1)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def killing(moment):
    append, appended = Store.append, count(1)

    def killed(self, batch, content):
        if next(appended) < 3:
            return append(self, batch, content)
        if moment == "before":
            die()
        if moment == "uncommitted":
            self._connection.execute("BEGIN")
        append(self, batch, content)
        die()

    Store.append = killed

for moment in cycle(("before", "uncommitted", "after")):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        killing(moment)
        os._exit(main(sys.argv[1:]))
    _, status = os.waitpid(child, 0)
    print(moment, os.WIFSIGNALED(status), flush=True)
    if not os.WIFSIGNALED(status):
        break
"""


def test_a_run_killed_again_and_again_writes_the_same_bytes(tmp_path):
    model, texts = small_models.save("bert", tmp_path / "bert"), tmp_path / "texts.tsv"
    words = small_models.WORDS[5:]
    lines = [" ".join(words[(3 * i + j) % len(words)] for j in range(n)) for i, n in enumerate(LENGTHS)]
    texts.write_text("".join(f"{line}\t{i % 2}\n" for i, line in enumerate(lines)))

    def arguments(name):
        where = ["--cache", str(tmp_path / name), "--json", str(tmp_path / f"{name}.json")]
        return ["align", "--model", str(model), "--data", str(texts), "--max-tokens", "150", *EXPLAINERS, *where]

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def python(*command):
        ended = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    python("-c", COMMAND, *arguments("whole"))
    steps = [line.split() for line in python("-c", KILLED, *arguments("killed")).splitlines()]
    *killed, (_, last) = steps
    assert {moment for moment, _ in killed} == {"before", "uncommitted", "after"}, "not killed at every moment"
    assert last == "False"
    assert (tmp_path / "killed.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
