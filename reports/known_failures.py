"""The red checks of a run as a file of known failures, which ``--expectations`` reads: a later run is red for new ones.

A violation is recorded with its size up to a `SHARE`, an error with its message. A check whose violation is
gone, or has another size, is red in a later run until its entry goes.
"""

import json
import math

from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import Status
from faithcheck.reports.documents.results import Results, red_records
from faithcheck.reports.likely_causes import error_of

REASON = "recorded from the run of {created}; write here why it is accepted"
SHARE = 0.1
"""How much of a violation's size may change. A gap is relative to the larger of two sides: often it cannot double."""
RECORDABLE = (Status.BROKEN_CLAIM.label, Status.INCONCLUSIVE.label, Status.ERROR.label)


def to_toml(document: Results) -> str:
    """A table ``[[expectation]]`` for each red check that can be one; a comment for each other one."""
    reds = red_records(document)
    entries = [_entry(record, REASON.format(created=document.created)) for record in reds]
    return "\n".join([f"# {len(reds)} red checks of the run of {document.created}.\n", *entries])


def _entry(record: Record, reason: str) -> str:
    expected = _expected(record)
    if expected is None:
        return f"# {record.status}, which no entry can expect: {json.dumps(record.id)}\n"
    named = {"axiom": record.axiom, "explainer": record.explainer, "subject": record.subject}
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in (named | expected).items())
    return f"[[expectation]]\n{''.join(lines)}reason = {json.dumps(reason)}\n"


def _expected(record: Record) -> dict[str, str | float] | None:
    """What a later run expects of the check; None if the check itself was not measured as a violation or an error."""
    if record.explainer is None or record.status not in RECORDABLE:
        return None
    if record.status == Status.ERROR.label:
        return {"verdict": "ERROR", "error": error_of(record)} if error_of(record) else None
    if record.gap is None or not math.isfinite(record.gap) or record.gap <= 0:
        return None
    floor, ceiling = (float(f"{record.gap * (1 + change):.3g}") for change in (-SHARE, SHARE))
    return {"verdict": "VIOLATES", "floor": floor, "ceiling": ceiling}
