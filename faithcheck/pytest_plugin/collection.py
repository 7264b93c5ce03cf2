"""The checks of a run as tests, and the test modules of faithcheck under their real names."""

import gc
import importlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from faithcheck.axioms.measure.registry import AXIOMS
from faithcheck.check import Check
from faithcheck.models.pair import is_builtin
from faithcheck.plan import by_base, not_applicable, plan
from faithcheck.pytest_plugin.markers import TESTS
from faithcheck.pytest_plugin.options import RUN
from faithcheck.request import Request

pytest.register_assert_rewrite("faithcheck.tests")


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect no garbage within the block, nor later from what it made: imported libraries and tests stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # the collector looks through the rest alone; pytest calls it twice at the end of each run
        if was_enabled:
            gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, which would look through all that is imported."""
    with without_garbage_collection():
        return (yield)


class SuiteModule(pytest.Module):
    """A test module of faithcheck, imported by its real name; pytest would name it ``tests.…`` or ``test_…``."""

    def _getobj(self) -> Any:
        names = self.path.resolve().relative_to(TESTS).with_suffix("").parts
        try:
            return importlib.import_module(".".join(["faithcheck.tests", *names]))
        except ImportError as error:
            raise self.CollectError(f"{self.path} cannot be imported: {error}") from error


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Dir | None:
    """Collect a folder of faithcheck's tests as no package: pytest would import it under another name."""
    return pytest.Dir.from_parent(parent, path=path) if path.resolve().is_relative_to(TESTS) else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect a test module of faithcheck by its real name."""
    of_faithcheck = module_path.resolve().is_relative_to(TESTS)
    return SuiteModule.from_parent(parent, path=module_path) if of_faithcheck else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test with the marker ``axiom`` and the argument ``check`` the checks of these axioms."""
    marker = metafunc.definition.get_closest_marker("axiom")
    if marker is None or "check" not in metafunc.fixturenames:
        return
    request = metafunc.config.stash[RUN].request
    checks = [check for axiom in marker.args for check in _parameters(axiom, request)]
    # All checks of a pair follow each other, whatever their axiom, so that its models are built once.
    place = {pair.name: place for place, pair in enumerate(by_base(request.pairs))}
    checks.sort(key=lambda check: place[check.values[0].pair.name] if check.values[0] else -1)
    metafunc.parametrize("check", checks)


def _parameters(axiom: str, request: Request) -> list[Any]:
    """The checks of an axiom as parameters with its marker; without checks one parameter that is skipped."""
    checks = plan(axiom, request.explainers, request.pairs, request.expectations)
    if not checks:
        marks = [getattr(pytest.mark, axiom), pytest.mark.skip(reason=_no_check(axiom, request))]
        return [pytest.param(None, marks=marks, id=f"{axiom}-none")]
    return [pytest.param(check, marks=_markers_of(check), id=f"{axiom}-{check.id}") for check in checks]


def _markers_of(check: Check) -> list[Any]:
    """The markers of the axiom and its parent; a user's pair's equivalence has those of all axioms on the pair."""
    names = {check.axiom, AXIOMS[check.axiom].part_of} - {""}
    if check.axiom == "equivalence" and not is_builtin(check.pair):
        names |= {axiom.name for axiom in AXIOMS.values() if axiom.is_measured_on(check.pair)}
    return [getattr(pytest.mark, name) for name in sorted(names)]


def _no_check(axiom: str, request: Request) -> str:
    """Why an axiom has no check in this run."""
    reasons = {row.explainer: row.reason for row in not_applicable([axiom], request.explainers)}
    if request.explainers and all(explainer.name in reasons for explainer in request.explainers):
        return "; ".join(f"{axiom} does not apply to {name}: {reason}" for name, reason in reasons.items())
    return f"{axiom}: no check on the pairs of this run"
