"""The wheel: its contents, and that it works in a project whose folders have the same names as those of faithcheck."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import faithcheck.tests
from faithcheck.explainers import builtin_explainers

CLONE = Path(faithcheck.tests.__path__[0]).resolve().parent
SOURCES = ("axioms", "explainers", "faithcheck", "models", "reports", "tests")

pytestmark = pytest.mark.skipif(
    not (CLONE / "pyproject.toml").is_file(), reason="the wheel can only be built from a clone"
)

THEIRS = """
import torch

import models


class Sizes:
    name = "sizes"
    claims = {"invariance"}

    def attribute(self, model, case):
        assert models.MINE == "theirs"
        return case.inputs.abs()
"""

IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
import faithcheck
faithcheck.check_explainer
print(faithcheck.__file__)
bare = {"axioms", "explainers", "models", "reports", "tests"} & set(sys.modules)
assert not bare, f"imported under bare names: {bare}"
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a copy of the sources, without the files of an earlier build."""
    copy = tmp_path_factory.mktemp("clone")
    for name in SOURCES:
        shutil.copytree(CLONE / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CLONE / name, copy)
    run(
        copy, sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--no-index", "-w", "dist"
    )
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """A Python with the wheel installed and the dependencies of the running Python, but not its faithcheck."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False, symlinks=os.name != "nt")
    (site,) = home.glob("[Ll]ib/**/site-packages")
    run(home, sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", f"--target={site}", str(wheel))
    # Python reads no .pth files in these folders, so the editable install of faithcheck is not found.
    (site / "dependencies.pth").write_text("\n".join(p for p in sys.path if p.endswith("-packages")))
    return next(path for path in (home / "bin/python", home / "Scripts/python.exe") if path.exists())


def run(folder, *command):
    """Run a command that must succeed, without the environment variables of pytest and PYTHONPATH."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "PYTHONPATH"))}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, f"exit code {done.returncode}: {command}"
    return done


def contents(wheel):
    """The paths of the files in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if not name.endswith("/")]


def test_the_wheel_installs_the_package_faithcheck_alone(wheel):
    assert {name.split("/")[0] for name in contents(wheel)} == {
        "faithcheck",
        f"{wheel.name.split('-py3')[0]}.dist-info",
    }


def test_the_wheel_holds_the_packages_and_of_the_tests_only_the_suite(wheel):
    folders = [CLONE / name for name in SOURCES if name != "tests"]
    files = [path.relative_to(CLONE) for folder in folders for path in folder.rglob("*") if path.is_file()]
    sources = [path.as_posix() for path in files if path.parent.name != "__pycache__"]
    expected = {path if path.startswith("faithcheck/") else f"faithcheck/{path}" for path in sources}
    expected |= {"faithcheck/tests/__init__.py", "faithcheck/tests/test_axioms.py"}
    assert {name for name in contents(wheel) if name.startswith("faithcheck/")} == expected
    assert any(name.endswith(".html.j2") for name in expected)
    typed = {f"faithcheck/{folder.name}/py.typed" for folder in folders if folder.name != "faithcheck"}
    assert {"faithcheck/py.typed", *typed} <= expected


@pytest.mark.slow
def test_every_module_imports(wheel, python, tmp_path):
    # The peers' workers are programs for environments without faithcheck: they import their protocol from their folder.
    files = [name for name in contents(wheel) if name.endswith(".py") and not name.endswith("_worker.py")]
    modules = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files]
    done = run(tmp_path, python, "-c", IMPORT_ALL, *modules)
    assert Path(done.stdout.strip()).is_relative_to(python.parent.parent)


@pytest.mark.slow
def test_an_explainer_is_checked_in_a_project_that_has_its_own_models_package(python, tmp_path):
    files = {"models/__init__.py": 'MINE = "theirs"\n', "their/__init__.py": "", "their/module.py": THEIRS}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    arguments = "-p faithcheck.plugin --pyargs faithcheck.tests -m invariance --pairs product.x1x2x3"
    theirs = "--explainer their.module:Sizes --axioms-json=out.json"
    run(tmp_path, python, "-m", "pytest", *arguments.split(), *theirs.split())
    document = json.loads((tmp_path / "out.json").read_text())
    statuses = {record["id"]: record["status"] for record in document["records"]}
    assert statuses == {
        "equivalence/product.x1x2x3": "holds",
        "invariance/sizes-product.x1x2x3": "holds",
    }
    assert document["counts"]["failed"] == 0
    pages = ["report", "out.json", "--md", "--html"]
    run(tmp_path, python, "-c", f"from faithcheck.cli.main import main; raise SystemExit(main({pages}))")
    assert all("sizes" in (tmp_path / name).read_text(encoding="utf-8") for name in ("out.md", "out.html"))


ENTRY_POINTS = """
[faithcheck.explainers]
their_sizes = their.module:Sizes
their_halves = their.halves:halves
broken = their.broken:Object

[faithcheck.pairs]
their_pairs = their.pairs
"""

HALVES = """
def halves(model, inputs, target):
    return inputs / 2


halves.claims = {"invariance"}
"""

PAIRS = """
import torch
from torch import nn
from faithcheck.models import Case, equivalent_pair


def case(seed, dtype, device):
    inputs = torch.ones(2, 3, dtype=dtype, device=device)
    return Case(inputs, torch.zeros(2, dtype=torch.int64, device=device), torch.zeros_like(inputs))


@equivalent_pair("theirs.twice", case=case, why="the same map twice", axioms=("invariance", "trace"))
def build(seed, dtype, device):
    f, g = (nn.Linear(3, 1).to(device, dtype).eval() for _ in range(2))
    g.load_state_dict(f.state_dict())
    return f, g
"""

WITHOUT_PYTEST = """
import sys
from faithcheck import check_explainer
from their.halves import halves
import their.pairs
import models

report = check_explainer(halves, axioms=["invariance", "trace"], pairs=["theirs.*", "product.x1x2x3"])
print(sorted({(record.subject, record.status) for record in report}))
assert "pytest" not in sys.modules
assert models.MINE == "theirs"
report = check_explainer(halves, axioms="invariance", pairs="theirs.*")
assert [record.id for record in report] == ["equivalence/theirs.twice", "invariance/halves-theirs.twice"]
"""


@pytest.fixture
def theirs(python, tmp_path):
    """A project with its own package `models`, whose metadata is installed beside faithcheck."""
    (site,) = python.parent.parent.glob("[Ll]ib/**/site-packages")
    files = {
        "models/__init__.py": 'MINE = "theirs"\n',
        "their/__init__.py": "",
        "their/module.py": THEIRS,
        "their/halves.py": HALVES,
        "their/pairs.py": PAIRS,
        "their/broken.py": "value = 1 / 0\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    about = site / "their_explainers-1.2.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-explainers\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    yield tmp_path
    shutil.rmtree(about)


@pytest.mark.slow
def test_a_named_entry_point_is_loaded_and_the_report_names_its_package(theirs, python):
    arguments = [*"-p faithcheck.plugin --pyargs faithcheck.tests -m".split(), "invariance or trace"]
    named = "--explainer their_sizes --explainer their_halves --pairs their_pairs --axioms-json=out.json".split()
    done = run(theirs, python, "-m", "pytest", *arguments, *named)
    document = json.loads((theirs / "out.json").read_text())
    subjects = {record["subject"] for record in document["records"]}
    assert subjects == {"theirs.twice", "theirs.twice.f", "theirs.twice.g"}
    assert {record["status"] for record in document["records"]} == {"holds"}
    assert document["settings"]["origins"] == {
        "sizes": "entry point their_sizes of their-explainers 1.2",
        "their_halves": "entry point their_halves of their-explainers 1.2; "
        "called as (model, inputs, target), judged by its parameters",
    }
    assert document["settings"]["pair_origins"] == {
        "theirs.twice": "their.pairs, entry point their_pairs of their-explainers 1.2"
    }
    assert "entry point their_sizes of their-explainers 1.2" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_an_entry_point_that_is_not_named_is_not_loaded(theirs, python):
    arguments = "-p faithcheck.plugin --pyargs faithcheck.tests -m invariance --pairs product.x1x2x3"
    run(theirs, python, "-m", "pytest", *arguments.split(), "--axioms-json=out.json")
    document = json.loads((theirs / "out.json").read_text())
    assert {record["explainer"] for record in document["records"]} == {None, *builtin_explainers()}
    assert set(document["settings"]["origins"].values()) == {f"built in, faithcheck {document['faithcheck']}"}


@pytest.mark.slow
def test_check_explainer_works_without_pytest(theirs, python):
    done = run(theirs, python, "-c", WITHOUT_PYTEST)
    assert "('theirs.twice', 'holds')" in done.stdout
    assert "('theirs.twice.f', 'holds')" in done.stdout
