"""The outcomes of one run: which tests were planned, ran, failed and were skipped, with their records."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from faithcheck.axioms.engine.statuses import Group
from faithcheck.reports import results
from faithcheck.reports.results import Json, group_of
from faithcheck.reports.rules_met import rules_met, without_rules

RECORD = "faithcheck.record"
TABLE = "faithcheck.table"
FIGURE = "faithcheck.figure"


def document(
    settings: Json,
    axioms: dict[str, str],
    *,
    counts: dict[str, int],
    skips: list[Json],
    failures: list[Json],
    records: list[Json],
    tables: Sequence[Json] = (),
    figures: Sequence[Json] = (),
) -> Json:
    """A results document with the current date. Its lists are sorted: the order of the run does not change them."""
    return {
        "schema_version": results.SCHEMA_VERSION,
        "faithcheck": results.version(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "environment": results.environment(),
        "settings": settings,
        "axioms": axioms,
        "counts": counts,
        "rules": rules_met(settings.get("rules", {}), records),
        "skips": skips,
        "failures": failures,
        "records": sorted(map(without_rules, records), key=lambda record: str(record["id"])),
        "tables": sorted(tables, key=lambda table: str(table["title"])),
        "figures": sorted(figures, key=lambda figure: str(figure["title"])),
    }


def of_records(records: Sequence[Json], planned: int, settings: Json, axioms: dict[str, str]) -> Json:
    """The results document of checks that ran without pytest. Each counts as a test with the outcome of its record.

    Args:
        records: the records of the checks that ran, as plain values.
        planned: the number of checks to run.
        settings: the settings of the run.
        axioms: the summary of each axiom.
    """
    red = sum(group_of(record["status"]) is Group.RED for record in records)
    skipped = [
        (str(record["id"]), f"{record['explainer']}: {record['detail'].get('reason', 'unsupported')}")
        for record in records
        if group_of(record["status"]) is Group.SKIP
    ]
    ran = len(records) - len(skipped)
    counts = {"planned": planned, "ran": ran, "passed": ran - red, "failed": red, "skipped": len(skipped)}
    return document(
        settings,
        axioms,
        counts={**counts, "deselected": 0},
        skips=results.skips_by_reason(skipped),
        failures=[],
        records=list(records),
    )


class Outcomes:
    """Counts each test once, by its worst phase, from the reports of pytest or pytest-xdist."""

    def __init__(self) -> None:
        self.planned = 0
        self.deselected = 0
        self.outcomes: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.records: dict[str, list[Json]] = {}
        self.tables: dict[str, list[Json]] = {}
        self.figures: dict[str, list[Json]] = {}

    def add(self, report: Any) -> None:
        """Take one `pytest.TestReport`: the phase (setup, call or teardown) of one test."""
        node = report.nodeid
        self._settle(node, report)
        properties = report.user_properties
        # Each phase repeats the properties of the phases before, so the last phase has all.
        self.records[node] = [value for key, value in properties if key == RECORD]
        self.tables[node] = [value for key, value in properties if key == TABLE]
        self.figures[node] = [value for key, value in properties if key == FIGURE]

    def add_collected(self, report: Any) -> None:
        """Take one `pytest.CollectReport`: a file that cannot be collected counts as a failed test."""
        if not report.passed and report.nodeid not in self.outcomes:
            self.planned += 1
            self._settle(report.nodeid, report)

    def plan(self, planned: int = 0, deselected: int = 0) -> None:
        """Take the counts of a pytest-xdist worker, the same of each worker; none of a worker that crashed."""
        self.planned, self.deselected = max(self.planned, planned), max(self.deselected, deselected)

    def axioms(self) -> set[str]:
        """The axioms that left a record."""
        return {record["axiom"] for records in self.records.values() for record in records}

    def results(self, settings: Json, axioms: dict[str, str]) -> Json:
        """The results document of the run.

        Args:
            settings: the settings of the run.
            axioms: the summary of each axiom.
        """
        outcomes = list(self.outcomes.values())
        passed, failed, skipped = (outcomes.count(outcome) for outcome in ("passed", "failed", "skipped"))
        records = [record for records in self.records.values() for record in records]
        tables = [table for tables in self.tables.values() for table in tables]
        figures = [figure for figures in self.figures.values() for figure in figures]
        skips = [(node, self.reasons.get(node, "")) for node, outcome in self.outcomes.items() if outcome == "skipped"]
        return document(
            settings,
            axioms,
            counts={
                "planned": max(self.planned, len(outcomes)),
                "ran": passed + failed,
                "passed": passed,
                "failed": failed,
                "skipped": skipped,
                "deselected": self.deselected,
            },
            skips=results.skips_by_reason(skips),
            failures=[{"id": node, "message": self.reasons.get(node, "")} for node in sorted(self._unrecorded())],
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
        """Failed tests without a red record."""
        failed = [node for node, outcome in self.outcomes.items() if outcome == "failed"]
        return [
            node
            for node in failed
            if not any(group_of(record["status"]) is Group.RED for record in self.records.get(node, []))
        ]


def _failure(report: Any) -> str:
    """A failure in one line: pytest's summary of the exception, else the last line of its text."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longreprtext).strip().splitlines() or ["no message"]
    line = (lines[0] if crash else lines[-1]).removeprefix("E   ").strip()
    return f"{report.when}: {line}" if getattr(report, "when", None) in ("setup", "teardown") else line


def _reason(report: Any) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail or 'no reason given'}"
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(text).removeprefix("Skipped: ")
