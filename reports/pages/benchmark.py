"""The document of ``make bench`` as pages and as text for a terminal: pure functions of the document."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from faithcheck.reports.documents.benchmark import (
    SIZES,
    AgreementRow,
    Agreements,
    Benchmark,
    Point,
    Row,
    curve,
    exponent,
    known,
)
from faithcheck.reports.documents.figure import Figure, Line, Panel
from faithcheck.reports.pages import alignment_wording as alignment
from faithcheck.reports.pages import rendering
from faithcheck.reports.pages.tables import Column, Table, plain_table, table
from faithcheck.reports.pages.wording import number, with_interval

NOT_MEASURED = "not measured"


def exported(document: Benchmark) -> tuple[list[Table], list[Figure]]:
    """The tables and the figures of the page."""
    return [*_tables(document), _every(document)], _figures(document)


def _view(document: Benchmark) -> dict[str, object]:
    return {
        "document": document,
        "headline": headline(document),
        "device": device(document),
        "tables": list(_tables(document)),
        "figures": _figures(document),
        "every": _every(document),
        "facts": facts(document),
    }


def _parts(document: Benchmark) -> Iterator[RenderableType]:
    """The main tables; the pages have the figures and every measurement."""
    for one in _tables(document):
        yield Text(f"\n{one.title}", style="bold")
        yield rendering.terminal_table(one)
        yield Text(one.note, style="dim")
    yield Text(f"\n{device(document)}")
    yield Text(f"\n{headline(document)}", style="bold")


to_markdown, to_html, to_terminal = rendering.views_of("benchmark", _view, _parts)


# --- sentences -------------------------------------------------------------------------------------------------------


def headline(document: Benchmark) -> str:
    """How many ratios were measured, and how many are as precise as was asked for."""
    rows = [row for point in document.points for row in point.rows if row.turns]
    precise = sum(document.is_precise(row.ratio) for row in rows)
    return (
        f"The cost of attributions: {len(rows)} ratios to plain passes at {len(document.points)} points, "
        f"{precise} of them within ± {document.settings.within:.0%}"
    )


def device(document: Benchmark) -> str:
    """The device in a sentence; on a CPU, that no GPU was measured."""
    about, states = document.device, [point.state for point in document.points]
    if about.memory_bytes is None:
        return f"Measured on a CPU ({about.name}): ratios only. No GPU was measured."
    unknown = next((state.unknown for state in states if state.unknown), "")
    measured = (
        ("clock", [state.clock_mhz for state in states], "MHz"),
        ("power", [state.power_watts for state in states], "W"),
    )
    ranges = [
        f"{what} {number(min(values), 4)} – {number(max(values), 4)} {unit}"
        for what, found, unit in measured
        if (values := [value for value in found if value is not None])
    ]
    memory = f"{about.memory_bytes / 2**30:.0f} GiB"
    return f"Measured on {', '.join([about.name, memory, *ranges])}, by CUDA events. {unknown}".strip()


def facts(document: Benchmark) -> list[tuple[str, str]]:
    """The settings of the measurement as labels and text."""
    settings = document.settings
    return [
        ("arithmetic", f"{settings.dtype} on {settings.device}, {settings.threads} threads"),
        ("middle", ", ".join(f"{size} {settings.middle.of(size)}" for size in SIZES)),
        ("precision", f"± {settings.within:.0%}, or {settings.turns} turns or {settings.seconds:g} s"),
        ("seed", str(settings.seed)),
        ("code and settings", document.key[:16]),
        *((key, value) for key, value in document.environment.items() if value is not None),
    ]


def _precision(document: Benchmark, row: Row) -> str:
    width = row.ratio.half_width
    text = "no interval" if width is None else f"± {width:.0%}"
    return text if document.is_precise(row.ratio) else f"{text}, stopped at the limit"


def _ratio(document: Benchmark, row: Row) -> str:
    if not row.turns:
        return NOT_MEASURED
    text = with_interval(row.ratio)
    return text if document.is_precise(row.ratio) else f"{text} ({_precision(document, row)})"


# --- tables ----------------------------------------------------------------------------------------------------------


def _tables(document: Benchmark) -> Iterator[Table]:
    made = (*_middle_tables(document), *_exponent_tables(document), *_agreement_tables(document))
    yield from (one for one in made if one.rows)
    yield from _not_measured(document)


def _middle_tables(document: Benchmark) -> Iterator[Table]:
    """The ratios and the peak memory at the middle point: a row for each explainer, a column for each shape."""
    middle = document.settings.middle
    points = {point.shape: point for point in document.points if point.has_size(middle)}
    rows = {(shape, row.explainer): row for shape, point in points.items() for row in point.rows}

    def made(title: str, note: str, cell: Callable[[Row], str]) -> Table:
        cells = [
            [row.label, row.unit, *(cell(rows[shape, name]) if (shape, name) in rows else "" for shape in points)]
            for name, row in {name: row for (_, name), row in rows.items()}.items()
        ]
        return plain_table(title, note, ["explainer", "unit", *points], [row for row in cells if any(row[2:])])

    note = "Median ratio to the unit, calls in turn, and its 95 % interval, at the middle point of the matrix."
    yield made("Ratio to plain passes", note, lambda row: _ratio(document, row))
    note = "The most memory that one call uses beyond what is used before it, divided by that of the unit."
    yield made("Peak memory", note, _peak)


def _exponent_tables(document: Benchmark) -> Iterator[Table]:
    """The exponents of the cost in each size: a row for each explainer, a column for each shape."""
    labels = {row.explainer: row.label for point in document.points for row in point.rows}
    for size in SIZES:
        sweeps = [document.sweep(shape, size) for shape in document.shapes]
        cells = [[label, *(_exponent(points, size, name) for points in sweeps)] for name, label in labels.items()]
        note = f"e of cost ∝ {size}ᵉ, the slope on logarithmic axes, and its 95 % interval over the measured points."
        shown = [row for row in cells if any(row[1:])]
        yield plain_table(f"Exponent of the cost in the {size}", note, ["explainer", *document.shapes], shown)


def _peak(row: Row) -> str:
    if not known(row.peak_bytes) or not known(row.unit_peak_bytes):
        return ""
    return number(row.peak_bytes / row.unit_peak_bytes, 3)


def _exponent(points: Sequence[Point], size: str, name: str) -> str:
    fitted = exponent(*curve(points, size, name))
    return "" if fitted is None else "{} [{}, {}]".format(*(alignment.number(value, 2) for value in fitted))


def _agreement_tables(document: Benchmark) -> Iterator[Table]:
    for agreement in document.agreements:
        front = agreement.pareto_front
        columns: Sequence[Column[AgreementRow]] = (
            Column("explainer", lambda row: row.label),
            Column("cost", lambda row: with_interval(row.cost)),
            Column("r", lambda row: alignment.number(row.r.mean)),
            Column("95 %", lambda row: alignment.interval(row.r.low, row.r.high)),
            Column("n", lambda row: str(row.r.n)),
            Column("Pareto front", lambda row, front=front: "on the front" if row in front else ""),  # type: ignore[misc]
        )
        note = (
            f"{agreement.model}, {agreement.data}; removal: {agreement.removal}. Cost: median and 95 % "
            f"interval in forward and backward passes of one text of {agreement.length} tokens. r: mean "
            "correlation with Leave-One-Out over n texts without special tokens, and its 95 % interval. On the front: "
            "no other explainer costs less and agrees as well, by these medians and means."
        )
        yield table(_agreement_title(agreement), note, columns, agreement.by_cost)


def _agreement_title(agreement: Agreements) -> str:
    return f"Cost and agreement with Leave-One-Out, {agreement.length} tokens"


def _not_measured(document: Benchmark) -> Iterator[Table]:
    """The reasons for which explainers were not measured, each with the shapes where it is so."""
    measured: list[tuple[str, Sequence[Row]]] = [(point.shape, point.rows) for point in document.points]
    measured += [(f"{one.length} tokens", one.rows) for one in document.agreements]
    places: dict[tuple[str, str], list[str]] = {}
    for where, rows in measured:
        for row in rows:
            if row.why:
                places.setdefault((row.label, row.why), []).append(where)
    cells = [[label, ", ".join(dict.fromkeys(where)), why] for (label, why), where in places.items()]
    if cells:
        yield plain_table("Not measured", "", ["explainer", "where", "why"], cells)


def _every(document: Benchmark) -> Table:
    """Every measurement: a row for each point and explainer."""
    columns: Sequence[Column[tuple[Point, Row]]] = (
        Column("shape", lambda of: of[0].shape),
        *(Column(size, lambda of, size=size: str(of[0].of(size))) for size in SIZES),  # type: ignore[misc]
        Column("explainer", lambda of: of[1].label),
        Column("unit", lambda of: of[1].unit),
        Column("ratio", lambda of: with_interval(of[1].ratio)),
        Column("precision", lambda of: _precision(document, of[1])),
        Column("turns", lambda of: str(of[1].turns)),
        Column("cost", lambda of: with_interval(of[1].cost)),
        Column("peak memory", lambda of: _peak(of[1])),
        Column("ms", lambda of: "" if of[1].milliseconds is None else number(of[1].milliseconds, 3)),
    )
    measured = [(point, row) for point in document.points for row in point.rows if row.turns]
    return table("Every measurement", "", columns, measured)


# --- figures ---------------------------------------------------------------------------------------------------------


def _figures(document: Benchmark) -> list[Figure]:
    return [*_costs(document), *_agreement_figures(document)]


def _costs(document: Benchmark) -> Iterator[Figure]:
    """The cost against each size, a panel for each shape: faithcheck's explainers, then those of other libraries."""
    for size in SIZES:
        for title, others in ((f"Cost against {size}", False), (f"Cost against {size}: other libraries", True)):
            panels = [
                Panel(title=shape, x=size, y="forward + backward passes", log="xy", lines=lines)
                for shape in document.shapes
                if (lines := list(_lines(document.sweep(shape, size), size, others)))
            ]
            if panels:
                note = (
                    "In plain forward and backward passes of the shape's middle point, measured in the same turns; "
                    "dashed: plain passes."
                )
                yield Figure(title=title, note=note, panels=panels)


def _lines(points: Sequence[Point], size: str, others: bool) -> Iterator[Line]:
    named = {row.explainer: row for point in points for row in point.rows}
    for name, row in named.items():
        plain = name == row.unit
        sizes, costs = curve(points, size, name)
        if len(sizes) > 1 and (plain or bool(row.origin) == others):
            yield Line(label=row.label, x=list(sizes), y=list(costs), dashed=plain)


def _agreement_figures(document: Benchmark) -> Iterator[Figure]:
    """The cost against the agreement with Leave-One-Out, and the Pareto front."""

    def line(label: str, of: Sequence[AgreementRow], dashed: bool = False) -> Line:
        costs = [row.cost.median for row in of if row.cost.median is not None]
        return Line(label=label, x=costs, y=[row.r.mean for row in of], dashed=dashed)

    for agreement in document.agreements:
        if rows := agreement.placed:
            lines = [
                line("Pareto front", agreement.pareto_front, dashed=True),
                *(line(row.label, [row]) for row in rows),
            ]
            note = "An explainer on the dashed line is not beaten: no other one costs less and agrees as well."
            panel = Panel(title="", x="forward + backward passes", y="r with Leave-One-Out", log="x", lines=lines)
            yield Figure(title=_agreement_title(agreement), note=note, panels=[panel])
