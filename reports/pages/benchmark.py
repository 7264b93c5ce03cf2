"""The document of ``make bench`` as pages and as text for a terminal: pure functions of the document."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.text import Text

from faithcheck.reports.benchmark import SIZES, curve, exponent, half_width, pareto_front, placed, sweep
from faithcheck.reports.pages import alignment_wording as alignment
from faithcheck.reports.pages import columns, rendering
from faithcheck.reports.pages.wording import number, with_interval
from faithcheck.reports.results import Json

NOT_MEASURED = "not measured"


def to_markdown(document: Json) -> str:
    """The document as Markdown."""
    return rendering.to_page("benchmark.md.j2", _view(document))


def to_html(document: Json) -> str:
    """The document as one self-contained HTML page, with the figures drawn."""
    return rendering.to_page("benchmark.html.j2", _view(document))


def to_terminal(document: Json, width: int = 80, color: bool = False) -> str:
    """The main tables; the pages have the figures and every measurement."""
    return rendering.to_terminal(_parts, document, width, color)


def exported(document: Json) -> tuple[list[Json], list[Json]]:
    """The tables and the figures of the page."""
    view = _view(document)
    return [*view["tables"], view["every"]], view["figures"]


def _view(document: Json) -> Json:
    return {
        "document": document,
        "headline": headline(document),
        "device": device(document),
        "tables": [columns.plain_table(**table) for table in _tables(document)],
        "figures": [*_costs(document), *_agreement_figures(document)],
        "every": columns.plain_table(**_every(document)),
        "facts": facts(document),
    }


def _parts(document: Json) -> Iterator[RenderableType]:
    for table in _tables(document):
        yield Text(f"\n{table['title']}", style="bold")
        yield rendering.terminal_table(columns.plain_table(**table))
        yield Text(table["note"], style="dim")
    yield Text(f"\n{device(document)}")
    yield Text(f"\n{headline(document)}", style="bold")


# --- sentences -------------------------------------------------------------------------------------------------------


def headline(document: Json) -> str:
    """How many ratios were measured, and how many are as precise as was asked for."""
    rows = [row for point in document["points"] for row in point["rows"] if row["turns"]]
    precise = sum(_is_precise(document, row) for row in rows)
    return (
        f"The cost of attributions: {len(rows)} ratios to plain passes at {len(document['points'])} points, "
        f"{precise} of them within ± {document['settings']['within']:.0%}"
    )


def device(document: Json) -> str:
    """The device in a sentence; on a CPU, that no GPU was measured."""
    about = document["device"]
    if about["memory_bytes"] is None:
        return f"Measured on a CPU ({about['name']}): ratios only. No GPU was measured."
    states = [point["state"] for point in document["points"]]
    unknown = next((state["unknown"] for state in states if state["unknown"]), "")
    ranges = [
        f"{what} {number(min(values), 4)} – {number(max(values), 4)} {unit}"
        for what, key, unit in (("clock", "clock_mhz", "MHz"), ("power", "power_watts", "W"))
        if (values := [state[key] for state in states if isinstance(state[key], int | float)])
    ]
    memory = f"{about['memory_bytes'] / 2**30:.0f} GiB"
    return f"Measured on {', '.join([about['name'], memory, *ranges])}, by CUDA events. {unknown}".strip()


def facts(document: Json) -> list[tuple[str, str]]:
    """The settings of the measurement as labels and text."""
    settings = document["settings"]
    return [
        ("arithmetic", f"{settings['dtype']} on {settings['device']}, {settings['threads']} threads"),
        ("middle", ", ".join(f"{size} {settings['middle'][size]}" for size in SIZES)),
        ("precision", f"± {settings['within']:.0%}, or {settings['turns']} turns or {settings['seconds']:g} s"),
        ("seed", str(settings["seed"])),
        ("code and settings", document["key"][:16]),
        *((key, str(value)) for key, value in document["environment"].items() if value is not None),
    ]


def _is_precise(document: Json, row: Json) -> bool:
    width = half_width(row["ratio"])
    return width is not None and width <= float(document["settings"]["within"])


def _precision(document: Json, row: Json) -> str:
    width = half_width(row["ratio"])
    text = "no interval" if width is None else f"± {width:.0%}"
    return text if _is_precise(document, row) else f"{text}, stopped at the limit"


def _ratio(document: Json, row: Json) -> str:
    if not row["turns"]:
        return NOT_MEASURED
    text = with_interval(row["ratio"])
    return text if _is_precise(document, row) else f"{text} ({_precision(document, row)})"


# --- tables ----------------------------------------------------------------------------------------------------------


def _tables(document: Json) -> Iterator[Json]:
    tables = (*_middle_tables(document), *_exponent_tables(document), *_agreement_tables(document))
    yield from (table for table in tables if table["rows"])
    yield from _not_measured(document)


def _middle_tables(document: Json) -> Iterator[Json]:
    """The ratios and the peak memory at the middle point: a row for each explainer, a column for each shape."""
    middle = document["settings"]["middle"]
    points = {point["shape"]: point for point in document["points"] if middle.items() <= point.items()}
    rows = {(shape, row["explainer"]): row for shape, point in points.items() for row in point["rows"]}

    def table(title: str, note: str, cell: Callable[[Json], str]) -> Json:
        cells = [
            [row["label"], row["unit"], *(cell(rows[shape, name]) if (shape, name) in rows else "" for shape in points)]
            for name, row in {name: row for (_, name), row in rows.items()}.items()
        ]
        shown = [row for row in cells if any(row[2:])]
        return {"title": title, "note": note, "columns": ["explainer", "unit", *points], "rows": shown}

    note = "Median ratio to the unit, calls in turn, and its 95 % interval, at the middle point of the matrix."
    yield table("Ratio to plain passes", note, lambda row: _ratio(document, row))
    note = "The most memory that one call uses beyond what is used before it, divided by that of the unit."
    yield table("Peak memory", note, _peak)


def _exponent_tables(document: Json) -> Iterator[Json]:
    """The exponents of the cost in each size: a row for each explainer, a column for each shape."""
    shapes = _shapes(document)
    labels = {row["explainer"]: row["label"] for point in document["points"] for row in point["rows"]}
    for size in SIZES:
        sweeps = [sweep(document, shape, size) for shape in shapes]
        cells = [[label, *(_exponent(points, size, name) for points in sweeps)] for name, label in labels.items()]
        title = f"Exponent of the cost in the {size}"
        note = f"e of cost ∝ {size}ᵉ, the slope on logarithmic axes, and its 95 % interval over the measured points."
        shown = [row for row in cells if any(row[1:])]
        yield {"title": title, "note": note, "columns": ["explainer", *shapes], "rows": shown}


def _shapes(document: Json) -> list[str]:
    return list(dict.fromkeys(point["shape"] for point in document["points"]))


def _peak(row: Json) -> str:
    peak, of = row["peak_bytes"], row["unit_peak_bytes"]
    if not all(isinstance(value, int | float) and value > 0 for value in (peak, of)):
        return ""
    return number(peak / of, 3)


def _exponent(points: list[Json], size: str, name: str) -> str:
    fitted = exponent(*curve(points, size, name))
    return "" if fitted is None else "{} [{}, {}]".format(*(alignment.number(value, 2) for value in fitted))


def _agreement_tables(document: Json) -> Iterator[Json]:
    titles = ["explainer", "cost", "r", "95 %", "n", "Pareto front"]
    for agreement in document["agreements"]:
        front = pareto_front(agreement["rows"])
        rows = [
            [
                *(row["label"], with_interval(row["cost"]), alignment.number(row["r"]["mean"])),
                *(alignment.interval(row["r"]), str(row["r"]["n"]), "on the front" if row in front else ""),
            ]
            for row in sorted(placed(agreement["rows"]), key=lambda row: float(row["cost"]["median"]))
        ]
        note = (
            f"{agreement['model']}, {agreement['data']}; removal: {agreement['removal']}. Cost: median and 95 % "
            f"interval in forward and backward passes of one text of {agreement['length']} tokens. r: mean "
            "correlation with Leave-One-Out over n texts without special tokens, and its 95 % interval. On the front: "
            "no other explainer costs less and agrees as well, by these medians and means."
        )
        yield {"title": _agreement_title(agreement), "note": note, "columns": titles, "rows": rows}


def _agreement_title(agreement: Json) -> str:
    return f"Cost and agreement with Leave-One-Out, {agreement['length']} tokens"


def _not_measured(document: Json) -> Iterator[Json]:
    """The reasons for which explainers were not measured, each with the shapes where it is so."""
    measured = [*((p["shape"], p["rows"]) for p in document["points"])]
    measured += [(f"{one['length']} tokens", one["rows"]) for one in document["agreements"]]
    places: dict[tuple[str, str], list[str]] = {}
    for where, rows in measured:
        for row in rows:
            if row["why"]:
                places.setdefault((row["label"], row["why"]), []).append(where)
    cells = [[label, ", ".join(dict.fromkeys(where)), why] for (label, why), where in places.items()]
    if cells:
        yield {"title": "Not measured", "note": "", "columns": ["explainer", "where", "why"], "rows": cells}


def _every(document: Json) -> Json:
    """Every measurement: a row for each point and explainer."""
    on_cuda = document["device"]["memory_bytes"] is not None
    rows = [
        [point["shape"], *(str(point[size]) for size in SIZES), row["label"], row["unit"], with_interval(row["ratio"])]
        + [_precision(document, row), str(row["turns"]), with_interval(row["cost"]), _peak(row)]
        + ([number(row["milliseconds"], 3)] if on_cuda else [])
        for point in document["points"]
        for row in point["rows"]
        if row["turns"]
    ]
    titles = ["shape", *SIZES, "explainer", "unit", "ratio", "precision", "turns", "cost", "peak memory"]
    return {"title": "Every measurement", "note": "", "columns": [*titles, *["ms"] * on_cuda], "rows": rows}


# --- figures ---------------------------------------------------------------------------------------------------------


def _costs(document: Json) -> Iterator[Json]:
    """The cost against each size, a panel for each shape: faithcheck's explainers, then those of other libraries."""
    shapes = _shapes(document)
    for size in SIZES:
        for title, others in ((f"Cost against {size}", False), (f"Cost against {size}: other libraries", True)):
            panels = [
                {"title": shape, "x": size, "y": "forward + backward passes", "log": "xy", "lines": lines}
                for shape in shapes
                if (lines := list(_lines(sweep(document, shape, size), size, others)))
            ]
            if panels:
                note = (
                    "In plain forward and backward passes of the shape's middle point, measured in the same turns; "
                    "dashed: plain passes."
                )
                yield {"title": title, "note": note, "panels": panels}


def _lines(points: list[Json], size: str, others: bool) -> Iterator[Json]:
    named = {row["explainer"]: row for point in points for row in point["rows"]}
    for name, row in named.items():
        plain = name == row["unit"]
        sizes, costs = curve(points, size, name)
        if len(sizes) > 1 and (plain or bool(row["origin"]) == others):
            yield {"label": row["label"], "x": sizes, "y": costs, **({"dashed": True} if plain else {})}


def _agreement_figures(document: Json) -> Iterator[Json]:
    """The cost against the agreement with Leave-One-Out, and the Pareto front."""

    def line(label: str, of: list[Json]) -> Json:
        return {"label": label, "x": [row["cost"]["median"] for row in of], "y": [row["r"]["mean"] for row in of]}

    for agreement in document["agreements"]:
        if rows := placed(agreement["rows"]):
            front = {**line("Pareto front", pareto_front(rows)), "dashed": True}
            lines = [front, *(line(row["label"], [row]) for row in rows)]
            axes = {"x": "forward + backward passes", "y": "r with Leave-One-Out", "log": "x"}
            note = "An explainer on the dashed line is not beaten: no other one costs less and agrees as well."
            panels = [{"title": "", **axes, "lines": lines}]
            yield {"title": _agreement_title(agreement), "note": note, "panels": panels}
