"""The badge of a results document: a few words in a colour, never green where nothing was judged or all is old."""

from __future__ import annotations

from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports import results
from faithcheck.reports.results import Json
from faithcheck.reports.trend import outcome


def badge(document: Json, catalogue: Json, commit: str | None) -> Json:
    """The badge of a run of the suite.

    Args:
        document: the results document.
        catalogue: the catalogue that the badge refers to, with ``version`` and ``hash``.
        commit: the user's commit that the badge is for; None if there is none.

    Returns:
        ``label``, such as ``faithcheck 2026.12``; ``message``, such as ``0 red of 2,932``; and ``group``, the `Group`
        whose colour it has: ``RED``, ``PASS``, or ``RECORDED`` for no verdict.
    """
    label = f"faithcheck {document.get('catalogue', {}).get('version', document['faithcheck'])}"
    group, message = _message(document, _stale(document, catalogue, commit))
    return {"label": label, "message": message, "group": group}


def _message(document: Json, stale: str) -> tuple[Group, str]:
    # What could be red: a record without a claim could not.
    could_be_red = (Group.PASS, Group.PREDICTED, Group.RED)
    measured = sum(results.group_of(record["status"]) in could_be_red for record in document["records"])
    red = len(results.red_records(document)) + len(document["failures"])
    if red:
        return Group.RED, f"{red:,} red of {measured:,}"
    if results.is_red(document):
        return Group.RED, _without_a_red_record(document)
    if stale:
        return Group.RECORDED, stale
    if outcome(document) is not Group.PASS:
        return Group.RECORDED, "no verdict: nothing is claimed"
    return Group.PASS, f"0 red of {measured:,}"


def _without_a_red_record(document: Json) -> str:
    """Why a run is red in which no record is."""
    if (missing := results.not_run(document)) > 0:
        return f"{missing:,} not run"
    if results.too_many_skips(document):
        return f"{document['counts']['skipped']:,} skipped, {document['settings']['max_skips']:,} allowed"
    return f"claimed and not measured: {', '.join(results.unmeasured_claims(document))}"


def _stale(document: Json, catalogue: Json, commit: str | None) -> str:
    """Why the results are not those of the present code; empty if they may be."""
    of_run = document.get("catalogue")
    if of_run is None:
        return "stale: it names no catalogue"
    if of_run["hash"] != catalogue["hash"]:
        return f"stale: now {catalogue['version']} ({catalogue['hash'][:8]})"
    measured_at = results.user_commit(document)
    if commit and measured_at and measured_at != commit:
        return f"stale: of commit {measured_at[:8]}"
    return ""
