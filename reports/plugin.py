"""The pytest plugin: options, markers, the checks as tests, and the report of the run.

The clone's ``conftest.py`` names it; elsewhere it is given by ``pytest -p faithcheck.reports.plugin``.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from faithcheck.axioms.engine.check import Settings
from faithcheck.axioms.engine.plan import plan
from faithcheck.axioms.engine.record import Record
from faithcheck.axioms.engine.registry import AXIOMS, SUMMARIES
from faithcheck.explainers.protocol import Explainer
from faithcheck.models.data import handwritten_digits
from faithcheck.models.pair import Pair
from faithcheck.reports import results, selection
from faithcheck.reports.outcomes import FIGURE, RECORD, TABLE, Outcomes
from faithcheck.reports.pages import figures, terminal, wording
from faithcheck.reports.results import Json

if TYPE_CHECKING:
    from faithcheck.reports.commands.align import Prepared

MARKERS = {
    **SUMMARIES,
    "paper": "reproduces a figure of the paper; runs when asked for by -m or by name",
    "bench": "measures cost; runs when asked for by -m or by name",
    "remedies": "measures the remedies against Leave-One-Out; runs when asked for by -m or by name",
    "peers": "measures other libraries' explainers; runs when asked for by -m or by name",
    "slow": "takes minutes; runs when asked for by -m or by name",
    "meta": "tests of the suite itself: unit and integration tests",
    "unit": "tests of single functions and classes",
    "integration": "tests that install, run subprocesses or follow the documentation",
    "axiom(name, ...)": "the test runs the checks of these axioms; each check gets the marker of its axiom",
}
ON_DEMAND = frozenset({"paper", "bench", "remedies", "peers", "slow"})

pytest.register_assert_rewrite("faithcheck.tests")
# Found, not imported: a module that is imported already cannot have its assertions rewritten.
_SPEC = importlib.util.find_spec("faithcheck.tests")
assert _SPEC is not None
assert _SPEC.submodule_search_locations is not None
TESTS = Path(_SPEC.submodule_search_locations[0]).resolve()

_RUN = pytest.StashKey["Run"]()


class Run:
    """What this run was asked for; making one checks all of it.

    Raises:
        SelectionError, DataError: something is not there; the message names it.
    """

    def __init__(self, config: pytest.Config) -> None:
        option = config.option
        if option.axioms_json == "":
            raise selection.SelectionError(
                "--axioms-json= names no file: give a path, such as --axioms-json=results.json"
            )
        if not 0 <= option.seed < 2**63:
            raise selection.SelectionError(f"--seed={option.seed} is out of range: a seed lies in 0 … 2^63 − 1")
        self.path = Path(option.axioms_json).absolute() if option.axioms_json else None
        if self.path:
            selection.check_writable(self.path, "--axioms-json")
        selection.check_markers(option.markexpr, _registered_markers(config))
        handwritten_digits.use_folder(option.data_dir)
        if option.explainer or option.pairs:
            selection.import_from_here()
        self.settings = Settings(
            seed=option.seed,
            device=selection.choose_device(option.device),
            timeout=selection.choose_timeout(option.explainer_timeout),
        )
        self.checkpoint = selection.choose_checkpoint(option.checkpoint)
        self.explainers: list[Explainer] = selection.choose_explainers(option.explainer)
        self.pairs: list[Pair] = selection.choose_pairs(option.pairs)
        if self.checkpoint and not any(pair.name in self.checkpoint for pair in self.pairs):
            raise selection.SelectionError("--pairs leaves out all pairs of the checkpoint: add --pairs='*_checkpoint'")
        self.expectations = selection.choose_expectations(option.expectations)
        selection.refuse_stale(self.explainers, self.pairs, self.expectations)
        self.max_skips: int | None = option.max_skips
        if option.max_skips is not None and option.max_skips < 0:
            raise selection.SelectionError(f"--max-skips={option.max_skips}: a number of skips is 0 or more")
        self.described = selection.described(
            self.settings,
            option.explainer,
            self.explainers,
            self.pairs,
            self.expectations,
            config.invocation_params.args,
        )

    def to_json(self) -> Json:
        """The settings of the run, for the results document."""
        return {**self.described, "max_skips": self.max_skips}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faithcheck", "faithcheck: axioms of feature attribution")
    add = group.addoption
    add("--axioms-json", metavar="PATH", help="write the results document here")
    add(
        "--explainer",
        action="append",
        default=[],
        metavar="SPEC",
        help="check only this one: a built-in name, that of an entry point, or module:Object",
    )
    add(
        "--pairs",
        action="append",
        default=[],
        metavar="SPEC",
        help="only these: a name, a glob, an entry point, or a module that registers pairs",
    )
    add("--expectations", metavar="FILE", help="known failures, each with its reason: a TOML file, see docs/verify.md")
    add("--max-skips", type=int, metavar="N", help="fail a run in which more than N tests were skipped")
    add(
        "--explainer-timeout",
        type=float,
        metavar="SECONDS",
        help="stop a check of an explainer that takes longer (default: never)",
    )
    add(
        "--checkpoint",
        action="append",
        default=[],
        metavar="PATH",
        help="also the pairs that changes of this model's weights make, named …_checkpoint: a folder or hub name",
    )
    add("--data-dir", metavar="PATH", help="a folder with real MNIST; default: the digits bundled with scikit-learn")
    add(
        "--paper-model",
        metavar="PATH",
        help="paper tests on a Transformer: a folder or hub name; default: the project's own",
    )
    add("--paper-texts", metavar="SOURCE", help="and on these texts, as faithcheck align --data")
    add("--paper-limit", type=int, metavar="N", help="and only on the first N of them")
    add("--paper-max-length", type=int, metavar="N", help="each cut to N tokens")
    add("--seed", type=int, default=0, help="seed of models, cases and drawn inputs (default: 0)")
    add("--device", default="cpu", help="torch device that must be there (default: cpu)")


# Last, so that the markers of the other plugins are registered by then.
@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    try:
        run = config.stash[_RUN] = Run(config)
    except (selection.SelectionError, handwritten_digits.DataError) as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(Reporter(config, run), "faithcheck-reporter")


def pytest_report_header(config: pytest.Config) -> str:
    run, made = config.stash[_RUN].to_json(), config.stash[_RUN].checkpoint
    of_checkpoint = f"\n{selection.describe_checkpoint(made)}" if made else ""
    return (
        f"faithcheck {results.version()}: seed {run['seed']}, {run['dtype']}, {run['device']}, data: {run['data']}, "
        f"{len(run['explainers'])} explainers, {run['pairs']} pairs{of_checkpoint}"
    )


# --- our test modules are faithcheck.tests.…, never bare tests.… -----------------------------------------------------


class SuiteModule(pytest.Module):
    """A test module of faithcheck, imported by its real name: pytest would call it ``tests.…`` or ``test_…``."""

    def _getobj(self) -> Any:
        names = self.path.resolve().relative_to(TESTS).with_suffix("").parts
        try:
            return importlib.import_module(".".join(["faithcheck.tests", *names]))
        except ImportError as error:
            raise self.CollectError(f"{self.path} cannot be imported: {error}") from error


@pytest.hookimpl(tryfirst=True)
def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Dir | None:
    # Not a Package: that would import tests/__init__.py under a name of pytest's own.
    return pytest.Dir.from_parent(parent, path=path) if path.resolve().is_relative_to(TESTS) else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    ours = module_path.resolve().is_relative_to(TESTS)
    return SuiteModule.from_parent(parent, path=module_path) if ours else None


# --- which tests run -------------------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("axiom")
    if marker is None or "check" not in metafunc.fixturenames:
        return
    run = metafunc.config.stash[_RUN]
    metafunc.parametrize("check", [check for axiom in marker.args for check in _checks_of(axiom, run)])


def _checks_of(axiom: str, run: Run) -> list[Any]:
    """The checks of an axiom as parameters with its marker; a skip with the reason where there is none."""
    marker = getattr(pytest.mark, axiom)
    checks = plan(axiom, run.explainers, run.pairs, run.expectations)
    if not checks:
        nothing = pytest.mark.skip(reason=f"{axiom}: no check for the pairs that were asked for")
        return [pytest.param(None, marks=[marker, nothing], id=f"{axiom}-none")]
    # Part of an axiom: -m invariance also proves that the pairs are pairs, and searches for new ones.
    markers = [getattr(pytest.mark, name) for name in (axiom, AXIOMS[axiom].part_of) if name]
    return [pytest.param(check, marks=markers, id=f"{axiom}-{check.id}") for check in checks]


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    for folder in ("unit", "integration"):
        if item.path.resolve().is_relative_to(TESTS / folder):
            item.add_marker(folder)
            item.add_marker("meta")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what runs on demand only, of our own tests, and say so to pytest, which counts it."""
    wanted, files = set(selection.marker_names(config.option.markexpr)), _named_files(config)

    def left_out(item: pytest.Item) -> bool:
        demands = ON_DEMAND & {marker.name for marker in item.iter_markers()}
        path = item.path.resolve()
        return bool(demands) and not demands & wanted and path not in files and path.is_relative_to(TESTS)

    left = [item for item in items if left_out(item)]
    if left:
        items[:] = [item for item in items if not left_out(item)]
        config.hook.pytest_deselected(items=left)


# --- what tests use --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def settings(pytestconfig: pytest.Config) -> Settings:
    """Seed, dtype and device of this run."""
    return pytestconfig.stash[_RUN].settings


@pytest.fixture(scope="session")
def prepared(pytestconfig: pytest.Config) -> Prepared:
    """The Transformer, texts and setup that the paper's tables are measured on, as the --paper-… options say."""
    from faithcheck.reports.commands import align  # when used: transformers takes seconds to import

    option = pytestconfig.option
    try:
        return align.prepare(
            align.Request(
                model=option.paper_model,
                data=option.paper_texts,
                limit=option.paper_limit,
                max_length=option.paper_max_length,
                device=option.device,
                seed=option.seed,
            )
        )
    except (*align.EXPECTED, ValueError) as error:
        pytest.fail(f"--paper-…: {error}", pytrace=False)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[Record], None]:
    """``report(record)``: keep the record for the report; skip if it is unsupported, fail if it is red."""

    def settle(record: Record) -> None:
        kept = results.plain(record.to_json())
        request.node.user_properties.append((RECORD, kept))
        if kept["status"] in results.SKIPPED:
            pytest.skip(f"{kept['explainer']}: {kept['detail'].get('reason', 'unsupported')}")
        if kept["status"] not in results.PASSING:
            pytest.fail(wording.message(kept), pytrace=False)

    return settle


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Callable[[Json], None]:
    """``table({"title", "note", "columns", "rows"})``: add a table to the report; cells are strings or numbers."""

    def keep(content: Json) -> None:
        kept = results.plain(content)
        if set(kept) != {"title", "note", "columns", "rows"}:
            raise ValueError(f"a table has title, note, columns and rows, got {', '.join(kept)}")
        if any(len(row) != len(kept["columns"]) for row in kept["rows"]):
            raise ValueError(f"table {kept['title']!r}: every row needs {len(kept['columns'])} cells")
        request.node.user_properties.append((TABLE, kept))

    return keep


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[Json], None]:
    """``figure({"title", "note", "panels"})``: add a figure to the report; `faithcheck.reports.pages.figures` says what."""

    def keep(content: Json) -> None:
        kept = results.plain(content)
        figures.check(kept)
        request.node.user_properties.append((FIGURE, kept))

    return keep


# --- the report ------------------------------------------------------------------------------------------------------


class Reporter:
    """Keeps the ledger of the run, writes the results document and prints its tables."""

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self.config, self.run, self.ledger = config, run, Outcomes()
        self.document: Json | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ledger.add(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.ledger.add_collected(report)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.ledger.deselected += len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.ledger.planned += len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # A pytest-xdist worker has ended; only workers collect, and one that crashed says nothing.
        self.ledger.plan(**getattr(node, "workeroutput", {}).get("faithcheck", {}))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workeroutput"):
            counts = {"planned": self.ledger.planned, "deselected": self.ledger.deselected}
            self.config.workeroutput["faithcheck"] = counts
            return
        self.document = self.ledger.results(self.run.to_json(), SUMMARIES)
        if self.run.path:
            results.save(self.document, self.run.path)
        if results.too_many_skips(self.document) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        writer = terminalreporter._tw
        if self.document and (self.document["records"] or self.document["tables"]):
            terminalreporter.section("faithcheck")
            writer.write(terminal.render(self.document, width=writer.fullwidth, color=writer.hasmarkup))
        if self.run.path:
            terminalreporter.write_line(f"results written to {self.run.path}")
            terminalreporter.write_line(f"pages from them: faithcheck report {self.run.path} --md --html")


def _registered_markers(config: pytest.Config) -> set[str]:
    return {re.split(r"[:(]", line, maxsplit=1)[0].strip() for line in config.getini("markers")}


def _named_files(config: pytest.Config) -> set[Path]:
    """The test files named on the command line, alone or in a node id."""
    here = config.invocation_params.dir
    named = {argument.split("::")[0] for argument in config.args}
    files = {here / name for name in named}
    if config.option.pyargs:
        specs = [importlib.util.find_spec(name) for name in named if name.startswith("faithcheck.tests.")]
        files |= {Path(spec.origin) for spec in specs if spec and spec.origin}
    return {file.resolve() for file in files if file.is_file()}
