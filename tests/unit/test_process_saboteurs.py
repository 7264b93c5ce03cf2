"""Explainers that end, stop or flood what runs them: each costs its check, and nothing that did not run is green."""

import json
import signal
from types import SimpleNamespace

import pytest

from faithcheck import Check, Settings, check_explainer, outcomes
from faithcheck.axioms import AXIOMS
from faithcheck.axioms.measure.error_text import LIMIT
from faithcheck.executors.own_processes import LocalChecks
from faithcheck.explainers import builtin_explainers
from faithcheck.explainers.adapters import from_function
from faithcheck.models.pair import registered_pairs
from faithcheck.plan import plan
from faithcheck.pytest_plugin.options import Run
from faithcheck.pytest_plugin.reporter import Reporter
from faithcheck.reports.documents import results
from faithcheck.reports.documents.document import save, to_json
from faithcheck.reports.documents.results import Counts, RunSettings
from faithcheck.reports.pages import report, terminal
from faithcheck.request import Request
from faithcheck.tests.helpers.process_saboteurs import RAISING, NoException

PAIR = "product.x1x2x3"


@pytest.fixture(scope="module")
def records():
    return {name: check_explainer(explainer, ["invariance"], [PAIR])[0] for name, explainer in RAISING.items()}


@pytest.mark.parametrize("name", RAISING)
def test_whatever_an_explainer_raises_is_a_red_record_of_bounded_text(records, name):
    record = records[name]
    assert (record.status, record.explainer) == ("error", name)
    assert 0 < len(record.detail["error"]) < LIMIT + 200
    assert len(record.traceback) < LIMIT + 200
    json.dumps(to_json(record), ensure_ascii=False).encode("utf-8")  # no lone surrogates


def test_a_check_after_the_saboteurs_measures_as_ever(records):
    (record,) = check_explainer(builtin_explainers()["loo"], ["invariance"], [PAIR])
    assert record.status == "holds"


def test_the_pages_of_the_process_saboteurs_are_written(records, tmp_path):
    content = list(records.values())
    document = outcomes.of_records(content, len(content), settings(), AXIOMS)
    save(document, tmp_path / "a.json")
    for view in (report.to_html, report.to_markdown, terminal.render):
        page = view(document)
        assert "✓ 0" not in page
        assert len(page.encode("utf-8")) < 1_000_000
    assert document.counts.failed == len(RAISING)


def settings():
    return RunSettings(seed=0, dtype="float64", device="cpu", data="", threads=1, arguments=["\udcff"])


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


def checked(explain, axiom="invariance"):
    return Check(axiom, from_function(explain, name="mine"), registered_pairs()[PAIR])


def press(model, inputs, target):
    signal.raise_signal(signal.SIGINT)
    return inputs


def press_and_hide(model, inputs, target):
    try:
        return press(model, inputs, target)
    except BaseException as error:
        raise NoException from error


def press_and_swallow(model, inputs, target):
    try:
        return press(model, inputs, target)
    except BaseException:
        return inputs


@pytest.mark.parametrize("explain", [press, press_and_hide, press_and_swallow])
def test_the_users_ctrl_c_stops_the_run_whatever_the_explainer_makes_of_it(explain):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        checked(explain).run(Settings())
    assert signal.getsignal(signal.SIGINT) is before


def test_what_did_not_run_is_not_green():
    run, stopped = checked(lambda model, inputs, target: inputs), checked(press, "trace")
    content = [run.run(Settings()), stopped.not_run(Settings(), "the user stopped the run before it")]
    document = outcomes.of_records(content, 2, settings(), AXIOMS)
    assert document.counts == Counts(planned=2, ran=1, passed=1, failed=0, skipped=0, deselected=0)
    assert (results.not_run(document), results.is_red(document)) == (1, True)
    for view in (report.to_html, report.to_markdown, terminal.render):
        page = view(document)
        assert "1 not run" in page
        assert "✓" not in page.replace("✓ pass", "")  # but in the legend
        assert "the user stopped the run before it" in page
    assert {record.axiom for record in document.records} <= set(AXIOMS)


# --- a worker of pytest-xdist that crashes ---------------------------------------------------------------------------


@pytest.mark.parametrize("pytest_code", [0, 1])
def test_after_the_crash_of_a_worker_every_planned_check_has_a_record(pytest_code, tmp_path):
    pair, explainer = registered_pairs()[PAIR], builtin_explainers()["loo"]
    checks = plan("invariance", [explainer], [pair]) + plan("trace", [explainer], registered_pairs().values())
    request = Request([explainer], tuple(AXIOMS), list(registered_pairs().values()))
    run = Run(request, named=[], checkpoint=[], path=tmp_path / "a.json", about=settings(), executor=LocalChecks())
    plugins = SimpleNamespace(get_plugin=lambda name: None)
    reporter = Reporter(SimpleNamespace(option=SimpleNamespace(collectonly=False), pluginmanager=plugins), run)
    ids = [f"tests/test_axioms.py::test_axiom[{check.axiom}-{check.id}]" for check in checks]
    reporter.pytest_xdist_node_collection_finished(ids)
    crashed = f"worker 'gw0' crashed while running {ids[0]!r}"
    report_of_crash = pytest.TestReport(ids[0], ("a", None, "a"), {}, "failed", crashed, "call")
    reporter.pytest_runtest_logreport(report_of_crash)
    reporter.pytest_testnodedown(SimpleNamespace())  # a worker that crashed has no output
    session = SimpleNamespace(exitstatus=pytest_code)
    reporter.pytest_sessionfinish(session)
    document = results.load(tmp_path / "a.json")
    statuses = {record.id: record.status for record in document.records}
    assert statuses == {f"{c.axiom}/{c.id}": "error" if c is checks[0] else "not run" for c in checks}
    assert (results.not_run(document), document.counts.failed) == (len(checks) - 1, 1)
    assert not document.failures, "the record says it"
    assert session.exitstatus == pytest.ExitCode.TESTS_FAILED
