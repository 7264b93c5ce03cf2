"""The tables and figures of the alignment document. A new column of Table 2 is one more `Column` in `TABLE_2`."""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from faithcheck.reports.documents.alignment import Alignment, Comparison, Curves, Explainer, Mean, Shown
from faithcheck.reports.documents.figure import Estimate, Figure, Line, Panel
from faithcheck.reports.documents.words import alone, relevance_of, words
from faithcheck.reports.pages import relevance
from faithcheck.reports.pages.alignment_wording import (
    CORRELATIONS,
    DECIDES,
    FIGURES,
    PAPER,
    SCOPES,
    SHARES,
    in_short,
    interval,
    number,
    paper_data,
    probability,
)
from faithcheck.reports.pages.tables import Column, Table, plain_table, table

AGREEMENT = {"least": "least agreement", "median": "median agreement", "most": "most agreement"}
COST = (
    "Cost: the arithmetic of an attribution divided by that of a plain forward pass of the same inputs, counted on a "
    "batch of the 16 shortest inputs."
)
SINKS = (
    "The share of a map, in absolute values, at the first token, at other special tokens, and at tokens without a "
    "letter or digit; positions: what the position embeddings that a model adds keep, as a share of the map and them. "
    "Means over examples and bootstrap 95 % intervals. LOO's shares are the effects of removals. n: examples whose map "
    "is not all zero."
)


class PageColumn(Column[Explainer]):
    """A column for which a terminal has no room."""


# --- columns: a cell for each explainer -------------------------------------------------------------------------------


def _cell(name: str, text: Callable[[Mean], str]) -> Callable[[Explainer], str]:
    """The text of the figure of this name; empty where the curves that it is of were not measured."""
    of_curves = name.startswith(("lerf", "morf", "delta"))
    return lambda one: "" if of_curves and not one.has_curves else text(getattr(one.figures, name))


def _mean(name: str, title: str) -> Column[Explainer]:
    return Column(title, _cell(name, lambda of: number(of.mean)))


def _interval(name: str, column: type[Column[Explainer]] = Column) -> Column[Explainer]:
    return column("95 %", _cell(name, lambda of: interval(of.low, of.high)))


def _both(name: str, title: str) -> tuple[Column[Explainer], Column[Explainer]]:
    return _mean(name, title), _interval(name)


def _n(name: str) -> Column[Explainer]:
    return Column("n", _cell(name, lambda of: str(of.n)))


EXPLAINER: Column[Explainer] = Column("explainer", lambda explainer: explainer.title)
TABLE_2: Sequence[Column[Explainer]] = (
    EXPLAINER,
    *_both("pearson_no_special", "r"),
    _mean("pearson_sum_to_one_no_special", "sum to one"),
    _mean("lerf", "LeRF"),
    _mean("morf", "MoRF"),
    _mean("delta", "Δ"),
    _interval("delta", PageColumn),
    PageColumn("cost", lambda explainer: "" if explainer.cost is None else number(explainer.cost, 1)),
    _n("pearson_no_special"),
)
"""The columns of the main table."""
CURVES: Sequence[Column[Explainer]] = (
    EXPLAINER,
    *_both("lerf", "LeRF"),
    *_both("morf", "MoRF"),
    *_both("delta", "Δ"),
    *_both("lerf_aopc", "LeRF, AOPC"),
    *_both("morf_aopc", "MoRF, AOPC"),
)


# --- tables -----------------------------------------------------------------------------------------------------------


def tables(document: Alignment) -> list[Table]:
    """The tables of a page, the main table first."""
    with_curves = [one for one in document.measured if one.has_curves]
    return [
        _table_2(document, TABLE_2),
        *_paper_table(document),
        *_comparisons(document),
        *(_correlations(document, scope) for scope in SCOPES),
        *([_curves_table(with_curves)] if with_curves else []),
        *_shares(document),
        *_undefined(document),
    ]


def terminal_tables(document: Alignment) -> list[Table]:
    """The main tables, as wide as a terminal is."""
    narrow = [column for column in TABLE_2 if not isinstance(column, PageColumn)]
    return [_table_2(document, narrow), *_paper_table(document), *_undefined(document)]


def _table_2(document: Alignment, shown: Sequence[Column[Explainer]]) -> Table:
    settings, items, features = document.settings, document.data.items, document.model.features
    removed = f"one {document.model.feature}" if settings.chunk == 1 else f"{settings.chunk} neighbouring {features}"
    of_curves = (
        f"LeRF and MoRF: mean explained output along the curve, {removed} removed at each step, least or most relevant "
        "first; Δ = LeRF − MoRF. "
    )
    has_curves = any(one.has_curves for one in document.measured)
    note = (
        f"r: mean over {items} of Pearson's correlation with LOO, special {features} left out; sum to one: each map "
        f"divided by its sum first, as in the paper. {of_curves if has_curves else ''}"
        f"Brackets: bootstrap 95 % intervals over {items}. {COST} n: {items} whose r is defined."
    )
    return table("Alignment with Leave-One-Out", note, shown, document.measured)


def _paper_table(document: Alignment) -> Iterator[Table]:
    if data := paper_data(document):
        note = (
            "Figures of the paper (arXiv 2510.18810), not measured here. They are of another model, of maps that "
            "sum to one, and of rollout without a residual term; faithcheck's rollout mixes in ½I."
        )
        rows = [[name, *(number(figure, 2) for figure in figures)] for name, figures in PAPER[data].items()]
        titles = ["explainer", "r", "LeRF", "MoRF", "Δ"]
        yield plain_table(f"The paper's Table 2: BERT-base, {data}", note, titles, rows)


def _comparisons(document: Alignment) -> Iterator[Table]:
    order = list(FIGURES)

    def place(row: Comparison) -> tuple[int, bool]:
        return order.index(row.figure), row.explainer != "cplrp"

    shown: Sequence[Column[Comparison]] = (
        Column("figure", lambda row: FIGURES[row.figure]),
        Column("explainer", lambda row: document.title_of(row.explainer)),
        Column("difference", lambda row: number(row.difference)),
        Column("95 %", lambda row: interval(row.low, row.high)),
        Column("p", lambda row: probability(row.p)),
        Column("corrected", lambda row: probability(row.corrected_p)),
        Column("than AttnLRP's", in_short),
        Column("n", lambda row: str(row.n)),
    )
    if rows := sorted((row for row in document.comparisons if row.explainer != "loo"), key=place):
        note = (
            "Mean difference over the examples where both are defined, its bootstrap 95 % interval, and the p of "
            "Wilcoxon's signed-rank test, as it is and corrected for the number of explainers (Benjamini & Hochberg "
            f"1995). {DECIDES}"
        )
        yield table("Every explainer less AttnLRP, paired", note, shown, rows)


def _correlations(document: Alignment, scope: str) -> Table:
    shown = (column for key, title in CORRELATIONS.items() for column in _both(f"{key}_{scope}", title))
    features = document.model.features
    which = {"no_special": f"special {features} left out", "all": f"all {features}"}[scope]
    note = "Means over examples and bootstrap 95 % intervals; n: examples whose correlation is defined."
    return table(
        f"Correlation with Leave-One-Out, {which}",
        note,
        [EXPLAINER, *shown, _n(f"pearson_{scope}")],
        document.measured,
    )


def _curves_table(measured: list[Explainer]) -> Table:
    note = (
        "LeRF and MoRF: the mean of f over k = 0…K, as the paper's figures read. AOPC (Samek et al. 2017): the mean of "
        "f(x) − f(x without the first k), a drop. Δ is one by both: LeRF − MoRF of the means, MoRF − LeRF of the drops."
    )
    return table("Perturbation curves, both readings", note, CURVES, measured)


def _shares(document: Alignment) -> Iterator[Table]:
    """Where relevance sinks; patches have no first token and no punctuation. Older documents lack some shares."""
    measured, of_tokens = document.measured, document.model.features == "tokens"
    shown = [
        share
        for share in SHARES
        if (of_tokens or share == "share_positions") and all(getattr(one.figures, share) for one in measured)
    ]

    def mean(share: str) -> Column[Explainer]:
        """The mean, or why no relevance of positions is known."""
        column = _mean(share, SHARES[share])
        if share != "share_positions":
            return column
        return Column(column.title, lambda one: column.text(one) if getattr(one.figures, share).n else why(one))

    def why(one: Explainer) -> str:
        return one.no_positions or "–"

    if measured and shown:
        n: Column[Explainer] = Column("n", lambda one: str(max(getattr(one.figures, share).n for share in shown)))
        parts = [column for share in shown for column in (mean(share), _interval(share))]
        yield table("Where relevance sinks", SINKS, [EXPLAINER, *parts, n], measured)


def _undefined(document: Alignment) -> Iterator[Table]:
    rows = [
        [one.title, name, reason, str(count)]
        for one in document.measured
        for scope, name in SCOPES.items()
        for reason, count in getattr(one.undefined, scope).items()
    ]
    if rows:
        note = (
            "These examples have no correlation. A constant attribution counts as r = 0 where Leave-One-Out varies; no "
            "mean, interval or paired comparison includes the other examples."
        )
        titles = ["explainer", "correlation", "why", "examples"]
        yield plain_table("Undefined correlations", note, titles, rows)


# --- figures ----------------------------------------------------------------------------------------------------------


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


class SideBySide(Struct, frozen=True):
    """A shown example: a map for each explainer, a table of numbers, and the patches in a row of an image, or 0."""

    title: str
    grid: int
    rows: list[relevance.MapRow]
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
        f"{features} that are not special, or of more than 512 in all, are left out. {joined}{relevance.COLOURS}"
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
            relevance.map_row(label, number(row.r), found, of) for (label, row), of in zip(order, values, strict=True)
        ],
        table=plain_table(
            title,
            f"The values of the maps, a {unit} a row.",
            [unit, *(label for label, _ in order)],
            [[word.text, *cells] for word, *cells in zip(found, *values, strict=True)],
        ),
    )
