"""What is drawn of the alignment document: r with its intervals, cost against r, curves, and maps side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from faithcheck.reports.documents.alignment import Alignment, Curves, Shown
from faithcheck.reports.documents.figure import Estimate, Figure, Line, Panel
from faithcheck.reports.documents.words import alone, relevance_of, words
from faithcheck.reports.pages import relevance
from faithcheck.reports.pages.alignment_tables import COST
from faithcheck.reports.pages.alignment_wording import number
from faithcheck.reports.pages.tables import Table, plain_table

AGREEMENT = {"least": "least agreement", "median": "median agreement", "most": "most agreement"}


def figures(document: Alignment) -> list[Figure]:
    """The figures of a page; documents of older versions hold no cost and no mean curves."""
    return [*_agreement(document), *_cost(document), *_curves(document)]


def _agreement(document: Alignment) -> Iterator[Figure]:
    estimates = [
        Estimate(label=one.title, value=r.mean, low=r.low, high=r.high)
        for one in document.measured
        if one.name != "loo" and (r := one.figures.r).mean is not None
    ]
    if estimates:
        panel = Panel(title="", x="r with Leave-One-Out", y="explainer", estimates=estimates)
        note = f"Mean r over {document.data.items} and its bootstrap 95 % interval, the largest on top."
        yield Figure(title="Agreement with Leave-One-Out", note=note, panels=[panel])


def _cost(document: Alignment) -> Iterator[Figure]:
    lines = [
        Line(label=one.title, x=[one.cost], y=[r])
        for one in document.measured
        if one.cost and (r := one.figures.r.mean) is not None
    ]
    if lines:
        panel = Panel(title="", x="plain forward passes", y="r with Leave-One-Out", log="x", lines=lines)
        note = f"{COST} It counts the operations of matrix products, so that it does not depend on the machine."
        yield Figure(title="Cost and agreement with Leave-One-Out", note=note, panels=[panel])


def _curves(document: Alignment) -> Iterator[Figure]:
    curves = [(one.title, one.mean_curves) for one in document.measured if one.has_curves and one.mean_curves]
    features = document.model.features

    def panel(title: str, of: Callable[[Curves], list[float | None]]) -> Panel:
        lines = [Line(label=name, x=curve.removed, y=of(curve)) for name, curve in curves]
        return Panel(title=title, x=f"share of {features} removed", y="mean explained output", lines=lines)

    if curves:
        note = (
            f"Mean over {document.data.items} of the explained output as {features} are removed; special ones "
            "stay. A good order keeps LeRF high and makes MoRF fall at once."
        )
        panels = [
            panel("LeRF: the least relevant first", lambda curve: curve.lerf),
            panel("MoRF: the most relevant first", lambda curve: curve.morf),
        ]
        yield Figure(title="Perturbation curves", note=note, panels=panels)


# --- maps side by side ------------------------------------------------------------------------------------------------


class MapRow(Struct, frozen=True):
    """The map of an explainer as it is shown: its label, its r in words, and its coloured words."""

    label: str
    r: str
    words: list[relevance.ColouredWord]


class SideBySide(Struct, frozen=True):
    """A shown example: a map for each explainer, and a ``table`` of the numbers.

    ``grid`` is the number of patches in a row of an image, 0 for a text.
    """

    title: str
    grid: int
    rows: list[MapRow]
    table: Table


def side_by_side(document: Alignment) -> list[SideBySide]:
    """The shown examples; documents of older versions hold none."""
    return [_side_by_side(document, one) for one in document.shown]


def note_on_maps(document: Alignment) -> str:
    """How the shown examples were chosen, and what their colours mean."""
    features, items = document.model.features, document.data.items
    joined = "A word is the sum of its tokens; special tokens are underlined. " if features == "tokens" else ""
    return (
        f"{len(document.shown)} of {document.counts.measured} {items}: those of least, median and most "
        "agreement, which is the mean r of the explainers with LOO; those of fewer than 5 "
        f"{features} that are not special, or of more than 512 in all, are left out. {joined}"
        "Each map is coloured by its own largest value that is not special: red for the explained output, blue "
        "against it; violet in a map without a negative value."
    )


def _side_by_side(document: Alignment, one: Shown) -> SideBySide:
    is_image = document.model.features == "patches"
    unit, found = ("patch", alone(one.features)) if is_image else ("word", words(one.features))
    maps = {row.explainer: row for row in one.maps}
    order = [(explainer.title, maps[explainer.name]) for explainer in document.measured if explainer.name in maps]
    values = [relevance_of(found, row.values) for _, row in order]
    title = f"{document.data.item.capitalize()} {one.index}: {AGREEMENT[one.agreement]}, mean r {number(one.mean)}"
    return SideBySide(
        title=title,
        grid=sum(feature.text.startswith("r0c") for feature in one.features) if is_image else 0,
        rows=[
            MapRow(label, number(row.r), relevance.coloured(found, of))
            for (label, row), of in zip(order, values, strict=True)
        ],
        table=plain_table(
            title,
            f"The values of the maps, a {unit} a row.",
            [unit, *(label for label, _ in order)],
            [[word.text, *cells] for word, *cells in zip(found, *values, strict=True)],
        ),
    )
