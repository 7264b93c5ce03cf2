"""Every module imports, the store works and the commands run where `fcntl` does not exist, as on Windows."""

import subprocess
import sys

import pytest

from faithcheck.tests.helpers import small_models

SCRIPT = """
import sys
sys.modules["fcntl"] = None  # every import of it raises ImportError
import importlib, pkgutil
from pathlib import Path

for name in ("axioms", "explainers", "models", "reports"):
    package = importlib.import_module(f"faithcheck.{name}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if ".peers." not in module.name:  # the peers need other libraries
            importlib.import_module(module.name)

from faithcheck.alignment.store import Store
from faithcheck.cli.main import main

folder, model = map(Path, sys.argv[1:])
with Store(folder / "store", "name", {}) as store:
    store.append(0, [0.1])
with Store(folder / "store", "name", {}) as store:
    assert store == {0: [0.1]}

results = folder / "results.json"
axioms = ["--axiom=completeness", "--axiom=invariance"]
assert main(["check", "gradient_x_input", "--pairs=control.mlp", *axioms, f"--json={results}"]) == 0
assert main(["report", str(results), f"--html={folder / 'results.html'}"]) == 0
chosen = [f"--model={model}", "--explainer=gradient_x_input"]
assert main(["align", *chosen, "--limit=2", f"--cache={folder}", f"--json={folder / 'alignment.json'}"]) == 0
assert main(["explain", "the dog", *chosen, f"--html={folder / 'explanation.html'}"]) == 0
print(sum(name.startswith("faithcheck.") for name in sys.modules), "modules")
"""


@pytest.mark.slow
def test_everything_runs_without_fcntl(tmp_path):
    model = small_models.save("bert", tmp_path / "bert")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(model)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    count, word = ended.stdout.split()[-2:]
    assert word == "modules"
    assert int(count) > 60
