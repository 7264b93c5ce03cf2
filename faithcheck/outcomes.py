"""The outcomes of one run: which tests were planned, ran, failed and were skipped, with their records."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from faithcheck import catalogue
from faithcheck.axioms.measure.error_text import safe_text
from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import Group, Status
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.registry import origin
from faithcheck.models.data import handwritten_digits
from faithcheck.options.pairs import pair_origins
from faithcheck.reports.documents.document import Run, from_json
from faithcheck.reports.documents.environment import environment, version
from faithcheck.reports.documents.figure import Figure
from faithcheck.reports.documents.results import (
    Counts,
    Failure,
    MeasuredTable,
    NotApplicable,
    Results,
    RulesMet,
    RunSettings,
    Skips,
    TimedCheck,
    skips_by_reason,
)
from faithcheck.request import Request

if TYPE_CHECKING:
    from faithcheck.axioms.measure.axiom import Axiom


RECORD = "faithcheck.record"
TABLE = "faithcheck.table"
FIGURE = "faithcheck.figure"
"""The names of the properties in which a test hands a record, a table or a figure, as JSON, to the report."""
SLOWEST = 10
"""The number of checks of which the document has the time."""


def document(
    settings: RunSettings,
    axioms: Mapping[str, Axiom],
    *,
    counts: Counts,
    skips: list[Skips],
    failures: list[Failure],
    records: Sequence[Record],
    tables: Sequence[MeasuredTable] = (),
    figures: Sequence[Figure] = (),
    run: Run | None = None,
) -> Results:
    """A results document with the current date. Its lists are sorted: the order of the run does not change them."""
    return Results(
        schema_version=Results.VERSION,
        faithcheck=version(),
        environment=environment(),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        settings=settings,
        axioms={name: axiom.summary for name, axiom in axioms.items()},
        counts=counts,
        skips=skips,
        failures=failures,
        records=sorted((record.as_measured() for record in records), key=lambda record: record.id),
        tables=sorted(tables, key=lambda table: table.title),
        figures=sorted(figures, key=lambda figure: figure.title),
        catalogue=catalogue.of_run(),
        usual_causes={name: axiom.usual_cause for name, axiom in axioms.items() if axiom.usual_cause},
        rules=rules_met(settings.rules, records),
        slowest=slowest(records),
        seconds=round(sum(record.seconds or 0 for record in records), 3),
        run=run,
        reused=sum(record.reused for record in records),
    )


def slowest(records: Sequence[Record]) -> list[TimedCheck]:
    """The checks that took longest, with their seconds, the slowest first."""
    timed = [TimedCheck(id=one.id, seconds=round(one.seconds, 3)) for one in records if one.seconds is not None]
    return sorted(timed, key=lambda check: -check.seconds if check.seconds else 0)[:SLOWEST]


def rules_met(tables: Mapping[str, Sequence[str]], records: Sequence[Record]) -> dict[str, RulesMet]:
    """How many rules of each LRP explainer's table the checks met."""
    met: dict[str, set[str]] = {explainer: set() for explainer in tables}
    for record in records:
        if record.explainer in met:
            met[record.explainer].update(record.rules)
    return {
        name: RulesMet(met=len(met[name] & set(table)), of=len(table), unmet=sorted(set(table) - met[name]))
        for name, table in tables.items()
    }


def of_records(
    records: Sequence[Record],
    planned: int,
    settings: RunSettings,
    axioms: Mapping[str, Axiom],
    run: Run | None = None,
) -> Results:
    """The results document of checks that ran without pytest. Each counts as a test with the outcome of its record.

    ``records`` has also those of claims that no check measured; ``planned`` is the number of checks to run.
    """
    checks = [record for record in records if record.status != Status.NOT_MEASURED.label]
    groups = [record.group for record in checks]
    red, not_run = groups.count(Group.RED), groups.count(Group.UNMEASURED)
    skipped = [
        (record.id, f"{record.explainer or record.subject}: {record.detail.get('reason', 'unsupported')}")
        for record in checks
        if record.group is Group.SKIP
    ]
    ran = len(checks) - len(skipped) - not_run
    return document(
        settings,
        axioms,
        counts=Counts(planned=planned, ran=ran, passed=ran - red, failed=red, skipped=len(skipped), deselected=0),
        skips=skips_by_reason(skipped),
        failures=[],
        records=records,
        run=run,
    )


class Outcomes:
    """Counts each test once, by its worst phase, from the reports of pytest or pytest-xdist."""

    def __init__(self) -> None:
        self.collected: set[str] = set()
        self.deselected = 0
        self.outcomes: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.records: dict[str, list[Record]] = {}
        self.tables: dict[str, list[MeasuredTable]] = {}
        self.figures: dict[str, list[Figure]] = {}

    def add(self, report: Any) -> None:
        """Take one `pytest.TestReport`: the phase (setup, call or teardown) of one test."""
        node = report.nodeid
        self._settle(node, report)
        properties = report.user_properties
        # Each phase repeats the properties of the phases before, so the last phase has all.
        self.records[node] = [from_json(value, Record) for key, value in properties if key == RECORD]
        self.tables[node] = [from_json(value, MeasuredTable) for key, value in properties if key == TABLE]
        self.figures[node] = [from_json(value, Figure) for key, value in properties if key == FIGURE]

    def add_collected(self, report: Any) -> None:
        """Take one `pytest.CollectReport`: a file that cannot be collected counts as a failed test."""
        if not report.passed and report.nodeid not in self.outcomes:
            self.collected.add(report.nodeid)
            self._settle(report.nodeid, report)

    def without_record(self) -> dict[str, str | None]:
        """The tests that failed or did not run, and left no record, each with the reason of the failure or None."""
        missing = [node for node in sorted(self.collected) if not self.records.get(node)]
        return {
            node: self.reasons.get(node) if node in self.outcomes else None
            for node in missing
            if self.outcomes.get(node, "failed") == "failed"
        }

    def axioms(self) -> set[str]:
        """The axioms that left a record."""
        return {record.axiom for records in self.records.values() for record in records}

    def results(self, settings: RunSettings, axioms: Mapping[str, Axiom]) -> Results:
        """The results document of the run."""
        not_run = {node for node, records in self.records.items() if any(map(_is_unmeasured, records))}
        outcomes = [outcome for node, outcome in self.outcomes.items() if node not in not_run]
        passed, failed, skipped = (outcomes.count(outcome) for outcome in ("passed", "failed", "skipped"))
        records = [record for records in self.records.values() for record in records]
        tables = [table for tables in self.tables.values() for table in tables]
        figures = [figure for figures in self.figures.values() for figure in figures]
        skips = [(node, self.reasons.get(node, "")) for node, outcome in self.outcomes.items() if outcome == "skipped"]
        return document(
            settings,
            axioms,
            counts=Counts(
                planned=len(self.collected | self.outcomes.keys()),
                ran=passed + failed,
                passed=passed,
                failed=failed,
                skipped=skipped,
                deselected=self.deselected,
            ),
            skips=skips_by_reason(skips),
            failures=[Failure(id=node, message=self.reasons.get(node, "")) for node in sorted(self._unrecorded())],
            records=records,
            tables=tables,
            figures=figures,
        )

    def _settle(self, node: str, report: Any) -> None:
        before = self.outcomes.get(node, "passed")
        if report.failed:
            self.outcomes[node] = "failed"
            self.reasons[node] = _failure(report)
        elif report.skipped and before != "failed":
            self.outcomes[node] = "skipped"
            self.reasons[node] = _reason(report)
        elif report.when == "teardown":
            # The last phase completes a test; a test that was interrupted before has not run.
            self.outcomes[node] = before

    def _unrecorded(self) -> list[str]:
        """Failed tests without a red record, or one of a check that did not run."""
        failed = [node for node, outcome in self.outcomes.items() if outcome == "failed"]
        return [
            node
            for node in failed
            if not any(record.group in (Group.RED, Group.UNMEASURED) for record in self.records.get(node, []))
        ]


def _is_unmeasured(record: Record) -> bool:
    return record.group is Group.UNMEASURED


def _failure(report: Any) -> str:
    """A failure in one line: pytest's summary of the exception, else the last line of its text."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longreprtext).strip().splitlines() or ["no message"]
    line = safe_text((lines[0] if crash else lines[-1]).removeprefix("E   ").strip())
    return f"{report.when}: {line}" if getattr(report, "when", None) in ("setup", "teardown") else line


def _reason(report: Any) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail or 'no reason given'}"
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return safe_text(str(text).removeprefix("Skipped: "))


def run_settings(
    request: Request,
    arguments: Sequence[object],
    *,
    max_skips: int | None = None,
    not_applicable: Sequence[NotApplicable] = (),
    claimed: Mapping[str, list[str]] | None = None,
) -> RunSettings:
    """The settings of a run of the suite."""
    settings, explainers, specs = request.settings, request.explainers, request.specs
    return RunSettings(
        seed=settings.seed,
        dtype=str(settings.dtype).removeprefix("torch."),
        device=str(settings.device),
        data=handwritten_digits.source(),
        threads=torch.get_num_threads(),
        max_skips=max_skips,
        explainers=[explainer.name for explainer in explainers],
        specs=dict(specs),
        origins={one.name: origin(specs.get(one.name, one.name), one) for one in explainers},
        pairs=len(request.pairs),
        pair_origins=pair_origins(request.pairs),
        expectations=len(request.expectations),
        rules={one.name: sorted(one.rules) for one in explainers if isinstance(one, LRP)},
        not_applicable=list(not_applicable),
        arguments=[str(argument) for argument in arguments],
        claimed=dict(claimed or {}),
    )
