"""What is red, by cause, ready to show: a card for each cause, with its worst record, evidence and command."""

from __future__ import annotations

from faithcheck.reports import reproduce
from faithcheck.reports.causes import Cause, causes
from faithcheck.reports.pages import evidence, wording
from faithcheck.reports.pages.anchors import of_record
from faithcheck.reports.results import Json


def cards(results: Json) -> list[Json]:
    """A card for each cause of what is red, see `causes`."""
    return [
        {
            "id": f"cause-{number}",
            "title": cause.title,
            "more": f"+{cause.count - 1} like it" if cause.count > 1 else "",
            "count": cause.count,
            "likely": cause.likely,
            **(_of_records(results, cause) if cause.records else _of_tests(cause)),
        }
        for number, cause in enumerate(causes(results), 1)
    ]


def _of_records(results: Json, cause: Cause) -> Json:
    worst = cause.records[0]
    return {
        "symbol": wording.symbol(worst["status"]),
        "status": worst["status"],
        "sentence": wording.sentence(worst),
        "command": reproduce.command(results, worst),
        "evidence": evidence.view(worst),
        "details": wording.details(worst),
        "traceback": worst["traceback"],
        "items": [{"id": r["id"], "cell": of_record(r), "text": wording.cell(r)} for r in cause.records],
    }


def _of_tests(cause: Cause) -> Json:
    worst = cause.failures[0]
    return {
        "symbol": wording.symbol("error"),
        "status": "failed test",
        "sentence": worst["message"],
        "command": reproduce.command_of_test(worst["id"]),
        "evidence": None,
        "details": [("id", worst["id"])],
        "traceback": None,
        "items": [{"id": failure["id"], "cell": "", "text": failure["message"]} for failure in cause.failures],
    }
