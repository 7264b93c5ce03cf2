"""The pytest plugin: options, markers, the checks as tests, and the report of the run.

The ``conftest.py`` of the clone loads it; elsewhere ``pytest -p faithcheck.plugin`` does.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.registry import AXIOMS
from faithcheck.axioms.measure.statuses import Group
from faithcheck.check import Check, Settings
from faithcheck.claims import stated, unmeasured_claims
from faithcheck.explainers.protocol import Explainer
from faithcheck.explainers.registry import builtin_explainers
from faithcheck.garbage_collection import without_garbage_collection
from faithcheck.kept_results import KeptResults, digests, kept_results, loaded_files
from faithcheck.models.data import DataError, handwritten_digits
from faithcheck.models.pair import Pair, is_builtin
from faithcheck.options import OptionError, names
from faithcheck.options.checkpoint import choose_checkpoint, describe_checkpoint
from faithcheck.options.claims import CLAIM, choose_claims
from faithcheck.options.device import choose_device
from faithcheck.options.dtype import DTYPES, MEANING
from faithcheck.options.expectations import choose_expectations, refuse_stale
from faithcheck.options.explainer_timeout import choose_timeout
from faithcheck.options.explainers import choose_explainers
from faithcheck.options.isolate import choose_isolation
from faithcheck.options.like import hold_like
from faithcheck.options.loading import import_from_current_folder
from faithcheck.options.markers import check_markers, marker_names
from faithcheck.options.output_path import check_writable
from faithcheck.options.pairs import choose_pairs
from faithcheck.outcomes import FIGURE, RECORD, TABLE, Outcomes
from faithcheck.plan import by_base, checks_of, not_applicable
from faithcheck.reports import results
from faithcheck.reports.pages import figures, screen, wording
from faithcheck.reports.pages.visible import visible
from faithcheck.reports.results import Json, group_of
from faithcheck.run_settings import run_settings

if TYPE_CHECKING:
    from faithcheck.alignment.alignment_request import Prepared

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

pytest.register_assert_rewrite("faithcheck.tests")
# Located without an import: pytest cannot rewrite the assertions of a module that is already imported.
_SPEC = importlib.util.find_spec("faithcheck.tests")
assert _SPEC is not None
assert _SPEC.submodule_search_locations is not None
TESTS = Path(_SPEC.submodule_search_locations[0]).resolve()

KEEP = "faithcheck.keep"
"""The property of a test whose record may be kept for a later run."""
NOT_KEPT = (
    "none: only a run of built-in explainers and pairs has them, on the CPU, without --like, --claim, --expectations, "
    "--checkpoint and --isolate"
)
CUT_SHORT = "the run was stopped before it"

_RUN = pytest.StashKey["Run"]()


class Run:
    """The options of this run.

    The constructor checks all of them but ``--paper-…``, which the fixture `prepared` checks.

    Raises:
        OptionError, DataError: an option cannot be used; the message names it.
    """

    def __init__(self, config: pytest.Config) -> None:
        option = config.option
        if option.axioms_json == "":
            raise OptionError("--axioms-json= names no file: give a path, such as --axioms-json=results.json")
        if not 0 <= option.seed < 2**63:
            raise OptionError(f"--seed={option.seed} is out of range: a seed lies in 0 … 2^63 − 1")
        self.max_skips: int | None = option.max_skips
        if option.max_skips is not None and option.max_skips < 0:
            raise OptionError(f"--max-skips={option.max_skips}: a number of skips is 0 or more")
        self.path = Path(option.axioms_json).absolute() if option.axioms_json else None
        if self.path:
            check_writable(self.path, "--axioms-json")
        check_markers(option.markexpr, _registered_markers(config))
        self.expectations = choose_expectations(option.expectations)
        handwritten_digits.use_folder(option.data_dir)
        if option.explainer or option.pairs:
            import_from_current_folder()
        # Names are checked before models are loaded, which takes seconds.
        names.refuse_unknown_explainers(option.explainer)
        names.refuse_unknown_likes(option.like)
        names.refuse_unknown_device(option.device)
        self.settings = Settings(
            seed=option.seed,
            dtype=getattr(torch, option.dtype),
            device=choose_device(option.device),
            timeout=choose_timeout(option.explainer_timeout),
            reuse=True,
            isolation=choose_isolation(option.isolate, option.explainer, option.checkpoint),
        )
        self.checkpoint = choose_checkpoint(option.checkpoint)
        self.explainers: list[Explainer] = hold_like(option.like, option.explainer, choose_explainers(option.explainer))
        self.named: list[Explainer] = choose_claims(option.claim, self.explainers if option.explainer else [])
        self.explainers = self.named or self.explainers
        self.pairs: list[Pair] = choose_pairs(option.pairs)
        if self.checkpoint and not any(pair.name in self.checkpoint for pair in self.pairs):
            raise OptionError("--pairs leaves out all pairs of the checkpoint: add --pairs='*_checkpoint'")
        refuse_stale(self.explainers, self.pairs, self.expectations)
        self.settings_json = run_settings(
            self.settings,
            option.explainer,
            self.explainers,
            self.pairs,
            self.expectations,
            config.invocation_params.args,
        )
        self.kept = self._kept(config)

    def _kept(self, config: pytest.Config) -> KeptResults | None:
        """What ``--kept-results`` names; None without it, or where results depend on more than can be listed."""
        option = config.option
        if option.kept_results is None:
            return None
        path = Path(option.kept_results).absolute()
        check_writable(path, "--kept-results")
        chosen = (option.like, option.claim, option.expectations, option.checkpoint, option.isolate)
        built_in = set(option.explainer) <= builtin_explainers().keys() and all(map(is_builtin, self.pairs))
        own = built_in and not any(chosen) and self.settings.device.type == "cpu"
        return kept_results(path, self.settings, _loaded(config)) if own else None

    def to_json(self) -> Json:
        """The settings of the run, for the results document."""
        return {**self.settings_json, "max_skips": self.max_skips}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faithcheck", "faithcheck: axioms of feature attribution")
    add = group.addoption
    add("--axioms-json", metavar="PATH", help="write the results document here")
    add(
        "--explainer",
        action="append",
        default=[],
        metavar="SPEC",
        help="check only this explainer: a built-in name, the name of an entry point, or module:Object",
    )
    add(
        "--like",
        action="append",
        default=[],
        metavar="[SPEC=]NAME",
        help="hold your own explainer (of several: the one of this SPEC) to the claims and closed forms of a built-in "
        "one, such as --like attnlrp",
    )
    add("--claim", action="append", default=[], metavar="NAME", help=f"{CLAIM}; of each --explainer; repeatable")
    add(
        "--pairs",
        action="append",
        default=[],
        metavar="SPEC",
        help="check only on these pairs: a name, a glob, an entry point, a module that registers pairs, or module:pair",
    )
    add(
        "--expectations",
        metavar="FILE",
        help="your own expectations, such as known failures: a TOML file, see docs/verify.md",
    )
    add(
        "--kept-results",
        metavar="PATH",
        help="keep the results of checks that are not red in this file, and use them again while nothing that they "
        "depend on has changed; of faithcheck's own explainers and pairs, on the CPU",
    )
    add("--max-skips", type=int, metavar="N", help="fail a run in which more than N tests were skipped")
    add(
        "--explainer-timeout",
        type=float,
        metavar="SECONDS",
        help="stop a check of an explainer that takes longer (default: never)",
    )
    add(
        "--isolate",
        action="store_true",
        help="run each explainer's checks in a process of their own: a crash or os._exit there is one red check",
    )
    add(
        "--checkpoint",
        action="append",
        default=[],
        metavar="PATH",
        help="also check on the pairs that the transforms make of this model, a folder or hub name",
    )
    add("--data-dir", metavar="PATH", help="a folder with real MNIST; default: the digits bundled with scikit-learn")
    add(
        "--paper-model",
        metavar="PATH",
        help="the Transformer of the paper tests: a folder or hub name; default: the project's own",
    )
    add("--paper-texts", metavar="SOURCE", help="the texts of the paper tests, as for faithcheck align --data")
    add("--paper-limit", type=int, metavar="N", help="only the first N of these texts")
    add("--paper-max-length", type=int, metavar="N", help="cut these texts to N tokens")
    add("--seed", type=int, default=0, help="seed of models, cases and drawn inputs (default: 0)")
    add("--device", default="cpu", help="torch device (default: cpu)")
    add("--dtype", choices=DTYPES, default="float64", help=MEANING)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    with without_garbage_collection():
        return (yield)


def share_cores(config: pytest.Config) -> None:
    """Give each worker of pytest-xdist its share of torch's threads, unless the user has set their number.

    More threads than cores wait for each other. The controller takes the same number, which the report shows.
    """
    workers = getattr(config, "workerinput", {}).get("workercount") or config.getoption("numprocesses", None) or 1
    if workers > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // workers))


# Last, so that the markers of the other plugins are registered by then.
@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    share_cores(config)
    try:
        with without_garbage_collection():
            run = config.stash[_RUN] = Run(config)
    except (OptionError, DataError) as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(Reporter(config, run), "faithcheck-reporter")


def pytest_report_header(config: pytest.Config) -> str:
    run, checkpoint = config.stash[_RUN].to_json(), config.stash[_RUN].checkpoint
    further = f"\n{describe_checkpoint(checkpoint)}" if checkpoint else ""
    if config.option.kept_results:
        further += f"\nkept results: {config.stash[_RUN].kept or NOT_KEPT}"
    return (
        f"faithcheck {results.version()}: seed {run['seed']}, {run['dtype']}, {run['device']}, data: {run['data']}, "
        f"{len(run['explainers'])} explainers, {run['pairs']} pairs{further}"
    )


# --- the test modules of faithcheck are imported as faithcheck.tests.…, not as tests.… -------------------------------


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
    # Not a Package, which would import tests/__init__.py under another name.
    return pytest.Dir.from_parent(parent, path=path) if path.resolve().is_relative_to(TESTS) else None


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    of_faithcheck = module_path.resolve().is_relative_to(TESTS)
    return SuiteModule.from_parent(parent, path=module_path) if of_faithcheck else None


# --- which tests run -------------------------------------------------------------------------------------------------


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of faithcheck's tests of which -m can select none: to import them all takes seconds."""
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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("axiom")
    if marker is None or "check" not in metafunc.fixturenames:
        return
    run = metafunc.config.stash[_RUN]
    checks = [check for axiom in marker.args for check in _checks_of(axiom, run)]
    # All checks of a pair follow each other, whatever their axiom, so that its models are built once.
    place = {pair.name: place for place, pair in enumerate(by_base(run.pairs))}
    checks.sort(key=lambda check: place[check.values[0].pair.name] if check.values[0] else -1)
    metafunc.parametrize("check", checks)


def _checks_of(axiom: str, run: Run) -> list[Any]:
    """The checks of an axiom as parameters with its marker; without checks one parameter that is skipped."""
    marker = getattr(pytest.mark, axiom)
    checks = checks_of(axiom, run.explainers, run.pairs, run.expectations)
    if not checks:
        skip = pytest.mark.skip(reason=_no_check(axiom, run))
        return [pytest.param(None, marks=[marker, skip], id=f"{axiom}-none")]
    return [pytest.param(check, marks=_markers_of(check), id=f"{axiom}-{check.id}") for check in checks]


def _markers_of(check: Check) -> list[Any]:
    """The marker of the check's axiom and of the axiom that it is part of: -m invariance also runs the equivalence.

    The equivalence of a pair that is not faithcheck's own has those of all axioms that are measured on the pair.
    """
    names = {check.axiom, AXIOMS[check.axiom].part_of} - {""}
    if check.axiom == "equivalence" and not is_builtin(check.pair):
        names |= {axiom.name for axiom in AXIOMS.values() if axiom.is_measured_on(check.pair)}
    return [getattr(pytest.mark, name) for name in sorted(names)]


def _no_check(axiom: str, run: Run) -> str:
    """Why an axiom has no check in this run."""
    reasons = {row["explainer"]: row["reason"] for row in not_applicable([axiom], run.explainers)}
    if run.explainers and all(explainer.name in reasons for explainer in run.explainers):
        return "; ".join(f"{axiom} does not apply to {name}: {reason}" for name, reason in reasons.items())
    return f"{axiom}: no check on the pairs of this run"


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
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


# --- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def settings(pytestconfig: pytest.Config) -> Settings:
    """Seed, dtype and device of this run."""
    return pytestconfig.stash[_RUN].settings


@pytest.fixture(scope="session")
def prepared(pytestconfig: pytest.Config) -> Prepared:
    """The Transformer, the texts and the settings of the paper's tables, from the --paper-… options."""
    # Not at the top: it imports transformers.
    from faithcheck.alignment.alignment_request import EXPECTED, AlignRequest, prepare

    option = pytestconfig.option
    try:
        return prepare(
            AlignRequest(
                model=option.paper_model,
                data=option.paper_texts,
                limit=option.paper_limit,
                max_length=option.paper_max_length,
                device=option.device,
                seed=option.seed,
            )
        )
    except (*EXPECTED, ValueError) as error:
        pytest.fail(f"--paper-…: {error}", pytrace=False)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[Record], None]:
    """``report(record)``: add the record to the report; skip the test if it is unsupported, fail it if it is red."""
    return lambda record: _settle(request.node, results.plain(record.to_json()))


@pytest.fixture
def report_check(request: pytest.FixtureRequest, settings: Settings) -> Callable[[Check], None]:
    """``report_check(check)``: run the check and `report` its record; or that of an earlier run, by --kept-results."""
    kept = request.config.stash[_RUN].kept
    earlier = kept.records if kept else {}

    def report(check: Check) -> None:
        request.node.user_properties.append((KEEP, check.record_id))
        content = earlier.get(check.record_id) or results.plain(check.run(settings).to_json())
        _settle(request.node, content)

    return report


def _settle(node: pytest.Item, content: Json) -> None:
    """Add a record to the report of a test, and skip or fail the test."""
    node.user_properties.append((RECORD, content))
    match group_of(content["status"]):
        case Group.SKIP:
            which = content["explainer"] or content["subject"]
            pytest.skip(f"{which}: {content['detail'].get('reason', 'unsupported')}")
        case Group.RED | Group.UNMEASURED:
            pytest.fail(wording.message(content), pytrace=False)


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Callable[[Json], None]:
    """``table({"title", "note", "columns", "rows"})``: add a table to the report; cells are strings or numbers."""

    def add(content: Json) -> None:
        content = results.plain(content)
        if set(content) != {"title", "note", "columns", "rows"}:
            raise ValueError(f"a table has title, note, columns and rows, got {', '.join(content)}")
        if any(len(row) != len(content["columns"]) for row in content["rows"]):
            raise ValueError(f"table {content['title']!r}: every row needs {len(content['columns'])} cells")
        request.node.user_properties.append((TABLE, content))

    return add


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[Json], None]:
    """``figure({"title", "note", "panels"})``: add a figure to the report, see `faithcheck.reports.pages.figures`."""

    def add(content: Json) -> None:
        content = results.plain(content)
        figures.check(content)
        request.node.user_properties.append((FIGURE, content))

    return add


# --- the report ------------------------------------------------------------------------------------------------------


class Reporter:
    """Counts the outcomes of the run, writes the results document and prints its tables."""

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self.config, self.run, self.outcomes = config, run, Outcomes()
        self.failed = False
        self.document: Json | None = None
        self.to_keep: set[str] = set()
        self.files_of_workers: dict[str, str] | None = {}
        self.not_kept = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.outcomes.add(report)
        self.to_keep |= {str(value) for key, value in report.user_properties if key == KEEP}
        if report.failed and not self.failed:
            self.failed = True
            self._print_first(report.nodeid)

    def _print_first(self, node: str) -> None:
        """Say what the first red test found, before the others have run."""
        if writer := self.config.pluginmanager.get_plugin("terminalreporter"):
            records = self.outcomes.records[node]
            found = wording.sentence(records[0]) if records else f"{node}: {self.outcomes.reasons[node]}"
            writer.ensure_newline()
            writer.write_line(f"the first red check: {visible(' '.join(found.split()))}", red=True)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.outcomes.add_collected(report)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.outcomes.deselected += len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.outcomes.collected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        # Only the workers of pytest-xdist collect tests, each the same. A worker that crashes later has said so here.
        self.outcomes.collected.update(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # A worker of pytest-xdist has ended; one that crashed has no output.
        output = getattr(node, "workeroutput", {})
        self.outcomes.deselected = max(self.outcomes.deselected, output.get("faithcheck_deselected", 0))
        if self.files_of_workers is not None:
            loaded = output.get("faithcheck_files")
            self.files_of_workers = None if loaded is None else self.files_of_workers | loaded

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["faithcheck_deselected"] = self.outcomes.deselected
            if self.run.kept:
                self.config.workeroutput["faithcheck_files"] = digests(_loaded(self.config))
            return
        if self.run.settings.isolation:
            self.run.settings.isolation.close()
        planned = self._planned()
        self._add_missing_records(planned)
        claimed = self._claims(planned)
        self.document = self.outcomes.results({**self._settings(), "claimed": claimed}, AXIOMS)
        if self.run.path:
            results.save(self.document, self.run.path)
        if self.run.kept:
            self._keep(self.run.kept, self.document["created"])
        # A run is no success if a planned test did not run, whatever exit code it was stopped with.
        success = results.verdict(self.document) is Group.PASS or self.config.option.collectonly
        if not success and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _keep(self, kept: KeptResults, measured: str) -> None:
        """Keep the results for a later run, and say if that is not possible."""
        records = [record for records in self.outcomes.records.values() for record in records]
        if self.files_of_workers is None:
            why_not = "a worker ended before it could say what it had loaded"
        else:
            own = [record for record in records if record["id"] in self.to_keep]
            why_not = kept.keep(own, measured, _loaded(self.config), self.files_of_workers)
        self.not_kept = f"no results are kept for a later run: {why_not}" if why_not else ""

    def _planned(self) -> dict[str, Check]:
        """The collected tests that are checks, by node id; none where no test needs to be looked up."""
        run = self.run
        if not run.named and not self.outcomes.without_record():
            return {}
        checks = {
            _ascii(f"{axiom}-{check.id}"): check
            for axiom in AXIOMS
            for check in checks_of(axiom, run.explainers, run.pairs, run.expectations)
        }
        return {node: checks[name] for node in self.outcomes.collected if (name := _parameter(node)) in checks}

    def _claims(self, planned: Mapping[str, Check]) -> dict[str, list[str]]:
        """What is claimed of each explainer that the user named; a claim that no check measured leaves a record."""
        if self.config.option.collectonly:
            return {}
        axioms = {_parameter(node).removesuffix("-none") for node in self.outcomes.collected} & AXIOMS.keys()
        axioms |= {check.axiom for check in planned.values()}
        checks, seed = [*planned.values()], self.run.settings.seed
        records = [record for records in self.outcomes.records.values() for record in records]
        for record in unmeasured_claims(self.run.named, axioms, checks, records, seed):
            self.outcomes.records[record.id] = [results.plain(record.to_json())]
        return {explainer.name: stated(explainer, checks) for explainer in self.run.named} if checks else {}

    def _add_missing_records(self, planned: Mapping[str, Check]) -> None:
        """Give each planned check that left no record one: an error if its test failed, otherwise "not run"."""
        for node, failure in self.outcomes.without_record().items():
            if check := planned.get(node):
                if failure is None:
                    record = check.not_run(self.run.settings, CUT_SHORT)
                else:
                    record = check.failed(self.run.settings, failure)
                self.outcomes.records[node] = [results.plain(record.to_json())]

    def _settings(self) -> Json:
        """The settings of the run, and for each axiom that left a record the explainers to which it does not apply."""
        measured = self.outcomes.axioms()
        axioms = [axiom for axiom in AXIOMS if axiom in measured]
        key = {"kept_key": self.run.kept.key} if self.run.kept and not self.run.kept.why_not else {}
        return {**self.run.to_json(), **key, "not_applicable": not_applicable(axioms, self.run.explainers)}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        writer = terminalreporter._tw
        if self.document and (self.document["records"] or self.document["tables"]):
            terminalreporter.section("faithcheck")
            writer.write(screen.render(self.document, width=writer.fullwidth, color=writer.hasmarkup))
        if self.not_kept:
            terminalreporter.write_line(self.not_kept)
        if self.run.path:
            terminalreporter.write_line(f"results written to {self.run.path}")
            terminalreporter.write_line(f"every check: faithcheck report {self.run.path}; pages of it: add --md --html")


def _parameter(node: str) -> str:
    """The parameter in the id of a test, such as ``dummy-loo-control.mlp.f``."""
    return node.partition("[")[2].removesuffix("]")


def _ascii(name: str) -> str:
    """A name as pytest writes it in the id of a test."""
    return name.encode("unicode_escape").decode("ascii")


def _loaded(config: pytest.Config) -> list[Path]:
    return loaded_files(config.pluginmanager.get_plugins())


def _registered_markers(config: pytest.Config) -> set[str]:
    return {re.split(r"[:(]", line, maxsplit=1)[0].strip() for line in config.getini("markers")}


def _named_files(config: pytest.Config) -> set[Path]:
    """The test files that the command line names, alone or in a node id."""
    folder = config.invocation_params.dir
    named = {argument.split("::")[0] for argument in config.args}
    files = {folder / name for name in named}
    if config.option.pyargs:
        specs = [importlib.util.find_spec(name) for name in named if name.startswith("faithcheck.tests.")]
        files |= {Path(spec.origin) for spec in specs if spec and spec.origin}
    return {file.resolve() for file in files if file.is_file()}
