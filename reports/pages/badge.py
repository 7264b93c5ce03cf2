"""A badge as SVG: a pure function of `faithcheck.reports.badge.badge`."""

from __future__ import annotations

from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports.pages import colours, rendering
from faithcheck.reports.results import Json

CHARACTER = 6.6
"""The mean width of a character of Verdana at 11 pixels; the text is fitted to the width that follows."""


def to_svg(badge: Json) -> str:
    """The badge as one ``<svg>`` element, which loads nothing."""
    label, message = badge["label"], badge["message"]
    widths = [round(len(text) * CHARACTER) for text in (label, message)]
    # White on the dark ink of a light page, or on the colour of the group there: a contrast of at least 4.5.
    group = colours.TEXTS["soft"] if badge["group"] is Group.RECORDED else colours.PAGE[badge["group"]].text
    view = {
        "label": label,
        "message": message,
        "widths": widths,
        "ink": colours.TEXTS["ink"].light,
        "fill": group.light,
    }
    return rendering.to_page("badge.svg.j2", view)
