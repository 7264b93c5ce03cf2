"""The markers of faithcheck's tests, and which tests a run selects by ``-m`` and by paths."""

import importlib.util
import re
from functools import cache
from itertools import compress
from pathlib import Path

import pytest

from faithcheck.axioms.measure.registry import AXIOMS
from faithcheck.models.unknown_name import unknown_name
from faithcheck.options import OptionError

MARKERS = {
    **{name: axiom.summary for name, axiom in AXIOMS.items()},
    "paper": "reproduces a figure of the paper; runs only if -m or the path names it",
    "bench": "measures cost; runs only if -m or the path names it",
    "remedies": "measures the remedies against Leave-One-Out; runs only if -m or the path names it",
    "peers": "measures other libraries' explainers; runs only if -m or the path names it",
    "power": "the proof of the suite's power, run by make power; runs only if -m or the path names it",
    "kills": "kills 200 runs of align and resumes each; runs only if -m or the path names it",
    "ray": "kills runs on Ray clusters and measures how workers share; runs only if -m or the path names it",
    "slow": "takes eight seconds or more, or its file takes 25, run by make slow; runs only if -m or the path names it",
    "meta": "tests of the project itself: unit and integration tests",
    "unit": "tests of single functions and classes",
    "integration": "tests that install, run subprocesses or follow the documentation",
    "axiom(name, ...)": "the test runs the checks of these axioms; each check gets the marker of its axiom",
}
ON_DEMAND = frozenset({"paper", "bench", "remedies", "peers", "power", "kills", "ray", "slow"})

# Located without an import: pytest cannot rewrite the assertions of a module that is already imported.
_SPEC = importlib.util.find_spec("faithcheck.tests")
assert _SPEC is not None
assert _SPEC.submodule_search_locations is not None
TESTS = Path(_SPEC.submodule_search_locations[0]).resolve()
"""The folder of faithcheck's tests."""


def register_markers(config: pytest.Config) -> None:
    """Tell pytest the markers of faithcheck."""
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def refuse_unknown_markers(config: pytest.Config) -> None:
    """Refuse ``-m`` with an unknown marker: pytest would select no test and say nothing."""
    expression = config.option.markexpr
    known = {re.split(r"[:(]", line, maxsplit=1)[0].strip() for line in config.getini("markers")}
    for name in marker_names(expression):
        if name not in known:
            raise OptionError(f"-m {expression!r}: {unknown_name('marker', name, known)}")


def marker_names(expression: str) -> list[str]:
    """The names of the markers in an expression, without the arguments of ``marker(key=value)``."""
    without_arguments = re.sub(r"\([^()]*=[^()]*\)", "", expression)
    words = re.findall(r"[A-Za-z_][\w.\-]*", without_arguments)
    return [word for word in words if word not in {"and", "or", "not", "True", "False", "None"}]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of faithcheck's tests from which ``-m`` can select none: importing all takes seconds."""
    expression = config.option.markexpr
    if not expression or collection_path.suffix != ".py" or _folder(collection_path) is None:
        return None
    if collection_path.resolve() in _named_files(config) or _may_select(expression, collection_path):
        return None
    return True


def _may_select(expression: str, path: Path) -> bool:
    """Whether ``-m`` may select a test of a file: without ``not``, the file must name one of the markers."""
    if re.search(r"\bnot\b", expression):
        return True
    markers, text = _markers_of_folder(path), path.read_text(encoding="utf-8")
    return "mark.axiom(" in text or any(name in markers or f"mark.{name}" in text for name in marker_names(expression))


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test of faithcheck the markers of its folder."""
    for marker in _markers_of_folder(item.path):
        item.add_marker(marker)


def _markers_of_folder(path: Path) -> tuple[str, ...]:
    """The markers that all tests of a file have because of its folder."""
    folder = _folder(path)
    return (folder, "meta") if folder in ("unit", "integration") else ()


@cache  # one look at the disk for each file, not for each of the thousands of checks in it
def _folder(path: Path) -> str | None:
    """The folder of faithcheck's tests that has this test file, or the name of a file at the top; None: not its own."""
    path = path.resolve()
    return path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of faithcheck that run on demand, unless -m or a path names them; pytest counts them."""
    named_markers, files = set(marker_names(config.option.markexpr)), _named_files(config)

    def deselected(item: pytest.Item) -> bool:
        demands = ON_DEMAND & {marker.name for marker in item.iter_markers()}
        if not demands or demands & named_markers:  # most items: a look at the disk for each would take seconds
            return False
        return item.path.resolve() not in files and _folder(item.path) is not None

    left_out = list(map(deselected, items))
    if any(left_out):
        config.hook.pytest_deselected(items=list(compress(items, left_out)))
        items[:] = [item for item, is_left_out in zip(items, left_out, strict=True) if not is_left_out]


def _named_files(config: pytest.Config) -> set[Path]:
    """The test files that the command line names, alone or in a node id."""
    folder = config.invocation_params.dir
    named = {argument.split("::")[0] for argument in config.args}
    files = {folder / name for name in named}
    if config.option.pyargs:
        specs = [importlib.util.find_spec(name) for name in named if name.startswith("faithcheck.tests.")]
        files |= {Path(spec.origin) for spec in specs if spec and spec.origin}
    return {file.resolve() for file in files if file.is_file()}
