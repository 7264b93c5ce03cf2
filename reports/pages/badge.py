"""The badge of a results document: a few words in a colour, never green where nothing was judged or all is old."""

from dataclasses import dataclass

from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports.documents import results
from faithcheck.reports.documents.results import DIGITS, Results
from faithcheck.reports.pages import colours, rendering
from faithcheck.reports.trend import outcome

CHARACTER = 6.6
"""The mean width of a character of Verdana at 11 pixels; the text is fitted to the width that follows."""


@dataclass(frozen=True)
class Badge:
    """The two texts of a badge, and the group in whose colour it is: RED, PASS, or RECORDED for no verdict."""

    label: str
    message: str
    group: Group


def badge(document: Results, version: str, catalogue_hash: str, commit: str | None) -> Badge:
    """The badge of a run, such as ``faithcheck 2026.12 | 0 red of 2,932``.

    It refers to the catalogue of this version and hash, and to this commit of the user's, if there is one.
    """
    label = f"faithcheck {document.catalogue.version if document.catalogue else document.faithcheck}"
    group, message = _message(document, _stale(document, version, catalogue_hash, commit))
    return Badge(label, message, group)


def to_svg(badge: Badge) -> str:
    """The badge as one ``<svg>`` element, which loads nothing."""
    # White on the dark ink of a light page, or on the colour of the group there: a contrast of at least 4.5.
    group = colours.TEXTS["soft"] if badge.group is Group.RECORDED else colours.PAGE[badge.group].text
    view = {
        "badge": badge,
        "widths": [round(len(text) * CHARACTER) for text in (badge.label, badge.message)],
        "ink": colours.TEXTS["ink"].light,
        "fill": group.light,
    }
    return rendering.to_page("badge.svg.j2", view)


def _message(document: Results, stale: str) -> tuple[Group, str]:
    # What could be red: a record without a claim could not.
    measured = sum(record.group in (Group.PASS, Group.PREDICTED, Group.RED) for record in document.records)
    red = len(results.red_records(document)) + len(document.failures)
    if red:
        return Group.RED, f"{red:,} red of {measured:,}"
    if results.is_red(document):
        return Group.RED, _without_a_red_record(document)
    if stale:
        return Group.RECORDED, stale
    if outcome(document) is not Group.PASS:
        return Group.RECORDED, "no verdict: nothing is claimed"
    return Group.PASS, f"0 red of {measured:,}"


def _without_a_red_record(document: Results) -> str:
    """Why a run is red in which no record is."""
    if (missing := results.not_run(document)) > 0:
        return f"{missing:,} not run"
    if results.too_many_skips(document):
        return f"{document.counts.skipped:,} skipped, {document.settings.max_skips:,} allowed"
    return f"claimed and not measured: {', '.join(results.unmeasured_claims(document))}"


def _stale(document: Results, version: str, catalogue_hash: str, commit: str | None) -> str:
    """Why the results are not those of the present code; empty if they may be."""
    if document.catalogue is None:
        return "stale: it names no catalogue"
    if document.catalogue.hash != catalogue_hash:
        return f"stale: now {version} ({catalogue_hash[:DIGITS]})"
    measured_at = document.user_commit
    if commit and measured_at and measured_at != commit:
        return f"stale: of commit {measured_at[:DIGITS]}"
    return ""
