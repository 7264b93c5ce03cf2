"""Which explainer to take on a model: one sentence and one ranking, from the document of an alignment."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from faithcheck.axioms.measure import statistics
from faithcheck.reports.documents.alignment import Alignment, Explainer
from faithcheck.reports.pages import rendering
from faithcheck.reports.pages.alignment_tables import COST, EXPLAINER
from faithcheck.reports.pages.alignment_wording import counted, interval, number
from faithcheck.reports.pages.tables import Column, Table, table

LOO = "loo"
CLOSE = 0.9
"""The mean r from which a map follows Leave-One-Out closely: 0.9² of the variance is then shared."""


def ranked(document: Alignment) -> list[Explainer]:
    """The explainers that can be recommended, the largest mean r with Leave-One-Out first."""
    return [
        one
        for one in document.measured
        if one.name != LOO and one.figures.r.mean is not None and not (one.left_behind or one.left_out)
    ]


def advice(document: Alignment) -> list[str]:
    """What to take and why, what is cheaper, and what not to take: a sentence each."""
    found = ranked(document)
    if not found:
        return ["Use Leave-One-Out: no other explainer could be compared with it."]
    best, rest = found[0], found[1:]
    as_good = [one for one in rest if _is_as_good(one, best)]
    equal = [one for one in as_good if _is_cheaper(one, best)]
    worse = [one for one in rest if one not in as_good]
    unrelated = [one for one in found if one.figures.r.low is None or one.figures.r.low <= 0]
    return [
        *_choice(document, best),
        *([f"Cheaper, and no difference from {best.title} shows: {_titles(equal)}."] if equal else []),
        *([f"Not {_titles(worse)}: the mean r is lower, see below."] if worse else []),
        *([f"Do not trust {_titles(unrelated)} here: r may as well be 0."] if unrelated else []),
    ]


def _choice(document: Alignment, best: Explainer) -> Iterator[str]:
    """Use the best one, or Leave-One-Out where that costs no more."""
    loo = next((one for one in document.measured if one.name == LOO), None)
    if loo and loo.cost is not None and best.cost is not None and best.cost >= loo.cost:
        yield f"Use Leave-One-Out: it costs no more than {best.title}, which follows it best: {_r(best)}."
        return
    exact = f", where Leave-One-Out costs {number(loo.cost, 1)}" if loo and loo.cost is not None else ""
    cost = "" if best.cost is None else f" It costs {number(best.cost, 1)} forward passes{exact}."
    yield f"Use {best.title}: it follows Leave-One-Out best, {_r(best)}.{cost}"
    if best.figures.r.low is None or best.figures.r.low < CLOSE:
        yield f"Where single features decide, use Leave-One-Out itself: r may be below {CLOSE}."


def ranking(document: Alignment) -> Table:
    """The explainers with their agreement, the difference from the best one, and their cost."""
    found = ranked(document)
    items = document.data.items
    columns = (
        EXPLAINER,
        Column[Explainer]("r", lambda one: number(one.figures.r.mean)),
        Column[Explainer]("95 %", lambda one: interval(one.figures.r.low, one.figures.r.high)),
        Column[Explainer]("less than the best", lambda one: "" if one is found[0] else _less(one, found[0])),
        Column[Explainer]("cost", lambda one: "" if one.cost is None else number(one.cost, 1)),
    )
    note = (
        f"r: mean over {items} of Pearson's correlation with Leave-One-Out, special {document.model.features} left "
        f"out; less than the best: the mean difference of r, {items} paired; brackets: bootstrap 95 % intervals. {COST}"
    )
    return table("Ranking by agreement with Leave-One-Out", note, columns, found)


def _less(one: Explainer, best: Explainer) -> str:
    paired = _paired(best, one)
    return f"{number(paired['difference'])} {interval(paired['low'], paired['high'])}"


def _paired(first: Explainer, second: Explainer) -> dict[str, float | int | None]:
    """The difference of their r over the examples that both have."""
    figure = "pearson_no_special"
    values = first.examples.get(figure, []), second.examples.get(figure, [])
    return statistics.paired(*values) if len(values[0]) == len(values[1]) else statistics.paired([], [])


def _is_as_good(one: Explainer, best: Explainer) -> bool:
    low = _paired(best, one)["low"]
    return low is not None and low <= 0


def _is_cheaper(one: Explainer, best: Explainer) -> bool:
    return one.cost is not None and best.cost is not None and one.cost < best.cost


def _r(one: Explainer) -> str:
    r = one.figures.r
    return f"mean r {number(r.mean)} {interval(r.low, r.high)} over {r.n}"


def _titles(found: list[Explainer]) -> str:
    return ", ".join(one.title for one in found)


def _parts(document: Alignment) -> Iterator[RenderableType]:
    for sentence in advice(document):
        yield Text(sentence, style="bold" if sentence.startswith("Use ") else "")
    shown = ranking(document)
    yield Text(f"\n{shown.title}", style="bold")
    yield rendering.terminal_table(shown)
    yield Text(shown.note, style="dim")
    for one in document.explainers:
        if one.refused:
            yield Text.assemble((f"\n{one.title} was not measured: ", "bold"), one.refused)
        if one.warned:
            yield Text.assemble((f"\n{one.title} ", "bold"), one.warned)
    yield Text()
    for sentence in counted(document):
        yield Text(sentence)


def to_terminal(document: Alignment, width: int = 80, color: bool = False) -> str:
    """The advice and the ranking as text for a terminal."""
    return rendering.to_terminal(_parts, document, width, color)
