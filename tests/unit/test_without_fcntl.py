"""Everything imports and measurements are stored where `fcntl` does not exist, as on Windows."""

import subprocess
import sys

IMPORT_EVERYTHING = """
import sys
sys.modules["fcntl"] = None  # every import of it raises ImportError
import importlib, pkgutil
for name in ("axioms", "explainers", "models", "reports"):
    package = importlib.import_module(f"faithcheck.{name}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if ".peers." not in module.name:  # these need other libraries
            importlib.import_module(module.name)
            print(module.name)
"""

RUN_THE_COMMANDS = """
import sys
sys.modules["fcntl"] = None
from pathlib import Path
from faithcheck.axioms.alignment.store import Store
from faithcheck.reports.commands.main import main

folder = Path(sys.argv[1])
with Store(folder / "store", "name", {}) as store:
    store.append(0, [0.1])
with Store(folder / "store", "name", {}) as store:
    assert store.batches == {0: [0.1]}

results = str(folder / "results.json")
check = ["check", "gradient_x_input", "--pairs=control.mlp", "--axiom=completeness", "--axiom=invariance"]
assert main([*check, f"--json={results}"]) == 0
assert main(["report", results, f"--html={folder / 'results.html'}"]) == 0
few = ["--explainer=gradient_x_input", f"--cache={folder}", "--limit=1", "--max-length=6"]
assert main(["align", *few, f"--json={folder / 'alignment.json'}"]) == 0
explain = ["explain", "a good film", "--explainer=gradient_x_input", f"--html={folder / 'explanation.html'}"]
assert main(explain) == 0
"""


def python(script, *arguments):
    ended = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_every_module_imports_without_fcntl():
    modules = python(IMPORT_EVERYTHING).split()
    assert {"faithcheck.axioms.alignment.store", "faithcheck.reports.plugin"} <= set(modules)
    assert len(modules) > 60


def test_the_store_and_the_commands_run_without_fcntl(tmp_path):
    python(RUN_THE_COMMANDS, str(tmp_path))
