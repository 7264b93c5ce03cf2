"""The outcomes of one run: which tests were planned, ran, failed and were skipped, with their records."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from faithcheck import catalogue
from faithcheck.axioms.measure.error_text import safe_text
from faithcheck.axioms.measure.statuses import Group, Status
from faithcheck.reports import results
from faithcheck.reports.results import Json, group_of
from faithcheck.reports.rules_met import rules_met

if TYPE_CHECKING:
    from faithcheck.axioms.measure.axiom import Axiom

RECORD = "faithcheck.record"
TABLE = "faithcheck.table"
FIGURE = "faithcheck.figure"
SLOWEST = 10
"""The number of checks of which the document has the time."""


def document(
    settings: Json,
    axioms: Mapping[str, Axiom],
    *,
    counts: dict[str, int],
    skips: list[Json],
    failures: list[Json],
    records: list[Json],
    tables: Sequence[Json] = (),
    figures: Sequence[Json] = (),
) -> Json:
    """A results document with the current date. Its lists are sorted: the order of the run does not change them."""
    content = {
        "schema_version": results.SCHEMA_VERSION,
        "faithcheck": results.version(),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "catalogue": catalogue.of_run(),
        "environment": results.environment(),
        "settings": settings,
        "axioms": {name: axiom.summary for name, axiom in axioms.items()},
        "usual_causes": {name: axiom.usual_cause for name, axiom in axioms.items() if axiom.usual_cause},
        "counts": counts,
        "rules": rules_met(settings.get("rules", {}), records),
        "slowest": slowest(records),
        "seconds": round(sum(record.get("seconds") or 0 for record in records), 3),
        "reused": sum(bool(record.get("reused")) for record in records),
        "skips": skips,
        "failures": failures,
        "records": sorted(map(_without_summarised, records), key=lambda record: str(record["id"])),
        "tables": sorted(tables, key=lambda table: str(table["title"])),
        "figures": sorted(figures, key=lambda figure: str(figure["title"])),
    }
    plain: Json = results.plain(content)  # the command line and the messages of pytest may hold lone surrogates
    return plain


def slowest(records: Sequence[Json]) -> list[Json]:
    """The checks that took longest, with their seconds, the slowest first."""
    timed = [record for record in records if record.get("seconds") is not None]
    longest = sorted(timed, key=lambda record: record["seconds"], reverse=True)[:SLOWEST]
    return [{"id": record["id"], "seconds": round(record["seconds"], 3)} for record in longest]


def _without_summarised(record: Json) -> Json:
    """The record without what the document has once for all records."""
    return {key: value for key, value in record.items() if key not in ("rules", "reused", "seconds")}


def of_records(records: Sequence[Json], planned: int, settings: Json, axioms: Mapping[str, Axiom]) -> Json:
    """The results document of checks that ran without pytest. Each counts as a test with the outcome of its record.

    Args:
        records: the records of the checks that ran, and of claims that none of them measured, as plain values.
        planned: the number of checks to run.
        settings: the settings of the run.
        axioms: the axioms of the run, by name.
    """
    checks = [record for record in records if record["status"] != Status.NOT_MEASURED.label]
    groups = [group_of(record["status"]) for record in checks]
    red, not_run = groups.count(Group.RED), groups.count(Group.UNMEASURED)
    skipped = [
        (
            str(record["id"]),
            f"{record['explainer'] or record['subject']}: {record['detail'].get('reason', 'unsupported')}",
        )
        for record in checks
        if group_of(record["status"]) is Group.SKIP
    ]
    ran = len(checks) - len(skipped) - not_run
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
        self.collected: set[str] = set()
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
        return {record["axiom"] for records in self.records.values() for record in records}

    def results(self, settings: Json, axioms: Mapping[str, Axiom]) -> Json:
        """The results document of the run.

        Args:
            settings: the settings of the run.
            axioms: the axioms of the run, by name.
        """
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
            counts={
                "planned": len(self.collected | self.outcomes.keys()),
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
        """Failed tests without a red record, or one of a check that did not run."""
        failed = [node for node, outcome in self.outcomes.items() if outcome == "failed"]
        return [
            node
            for node in failed
            if not any(
                group_of(record["status"]) in (Group.RED, Group.UNMEASURED) for record in self.records.get(node, [])
            )
        ]


def _is_unmeasured(record: Json) -> bool:
    return group_of(record["status"]) is Group.UNMEASURED


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
