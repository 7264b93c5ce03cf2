"""The report of a run: the outcomes of its tests, the results document and its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from faithcheck.axioms.measure.registry import AXIOMS
from faithcheck.axioms.measure.statuses import Group
from faithcheck.check import Check
from faithcheck.claims import stated, unmeasured_claims
from faithcheck.outcomes import Outcomes
from faithcheck.plan import not_applicable, plan
from faithcheck.pytest_plugin.options import Run
from faithcheck.reports.documents.document import save
from faithcheck.reports.documents.results import Results, RunSettings, verdict
from faithcheck.reports.pages import terminal, wording
from faithcheck.reports.pages.visible import visible

CUT_SHORT = "the run was stopped before it"


class Reporter:
    """Counts the outcomes of the run, writes the results document and prints its tables."""

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self.config, self.run, self.outcomes = config, run, Outcomes()
        self.failed = False
        self.document: Results | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.outcomes.add(report)
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
        deselected = getattr(node, "workeroutput", {}).get("faithcheck_deselected", 0)
        self.outcomes.deselected = max(self.outcomes.deselected, deselected)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["faithcheck_deselected"] = self.outcomes.deselected
            return
        planned = self._planned()
        self._add_missing_records(planned)
        claimed = self._claims(planned)
        self.document = self.outcomes.results(structs.replace(self._settings(), claimed=claimed), AXIOMS)
        if self.run.path:
            save(self.document, self.run.path)
        # A run is no success if a planned test did not run, whatever exit code it was stopped with.
        success = verdict(self.document) is Group.PASS or self.config.option.collectonly
        if not success and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _planned(self) -> dict[str, Check]:
        """The collected tests that are checks, by node id; none where no test needs to be looked up."""
        asked = self.run.request
        if not self.run.named and not self.outcomes.without_record():
            return {}
        checks = {
            _ascii(f"{axiom}-{check.id}"): check
            for axiom in asked.axioms
            for check in plan(axiom, asked.explainers, asked.pairs, asked.expectations)
        }
        return {node: checks[name] for node in self.outcomes.collected if (name := _parameter(node)) in checks}

    def _claims(self, planned: Mapping[str, Check]) -> dict[str, list[str]]:
        """What is claimed of each explainer that the user named; a claim that no check measured leaves a record."""
        if self.config.option.collectonly:
            return {}
        axioms = {_parameter(node).removesuffix("-none") for node in self.outcomes.collected} & AXIOMS.keys()
        axioms |= {check.axiom for check in planned.values()}
        checks, named = [*planned.values()], self.run.named
        asked = replace(self.run.request, explainers=named, axioms=tuple(axioms))
        records = [record for records in self.outcomes.records.values() for record in records]
        for record in unmeasured_claims(asked, checks, records):
            self.outcomes.records[record.id] = [record]
        return {explainer.name: stated(explainer, checks) for explainer in named} if checks else {}

    def _add_missing_records(self, planned: Mapping[str, Check]) -> None:
        """Give each planned check that left no record one: an error if its test failed, otherwise "not run"."""
        settings = self.run.request.settings
        for node, failure in self.outcomes.without_record().items():
            if check := planned.get(node):
                record = check.not_run(settings, CUT_SHORT) if failure is None else check.failed(settings, failure)
                self.outcomes.records[node] = [record]

    def _settings(self) -> RunSettings:
        """The settings of the run, and for each axiom that left a record the explainers to which it does not apply."""
        measured = self.outcomes.axioms()
        axioms = [axiom for axiom in AXIOMS if axiom in measured]
        missing = not_applicable(axioms, self.run.request.explainers)
        return structs.replace(self.run.about, not_applicable=missing)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        writer = terminalreporter._tw
        if self.document and (self.document.records or self.document.tables):
            terminalreporter.section("faithcheck")
            writer.write(terminal.render_screen(self.document, width=writer.fullwidth, color=writer.hasmarkup))
        if self.run.path:
            terminalreporter.write_line(f"results written to {self.run.path}")
            terminalreporter.write_line(f"every check: faithcheck report {self.run.path}; pages of it: add --md --html")


def _parameter(node: str) -> str:
    """The parameter in the id of a test, such as ``dummy-loo-control.mlp.f``."""
    return node.partition("[")[2].removesuffix("]")


def _ascii(name: str) -> str:
    """A name as pytest writes it in the id of a test."""
    return name.encode("unicode_escape").decode("ascii")
