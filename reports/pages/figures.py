"""Figures of the report, drawn as SVG or PDF, or written as tables."""

import io
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from faithcheck.reports.documents.figure import Estimate, Figure, Line, Panel
from faithcheck.reports.pages.tables import Table, plain_table

# Those of Okabe & Ito's colours, made for colour-blind readers too, that are visible on white and on black.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKED = 10  # points of a line, about: more markers would hide each other
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LONGEST = 64
"""The most characters of a text in a figure: a label of an axis is as long as the axis."""
# A placeholder: `to_svg` replaces it by ``currentColor``, the colour of the text around the figure.
_INK = "#010203"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.15,
    "lines.linewidth": 1.3,
    "lines.markersize": 6,
    "lines.markerfacecolor": "none",  # both markers of lines that coincide stay visible
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    "grid.color": _INK,
}


def to_svg(figure: Figure) -> str:
    """The figure as one ``<svg>`` element; equal figures give equal bytes.

    Its ink is the colour of the text around it (``currentColor``), so that it is visible on a dark page too. Lines of
    one label share a colour, a marker and one entry in the legend.
    """
    svg = _drawn(figure, "svg", {"svg.fonttype": "none"}).decode()
    # The ids of the groups would clash with those of another figure on the page.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg") :])
    return svg.replace(_INK, "currentColor")


def to_file(figure: Figure, kind: str) -> bytes:
    """The figure as a file ``svg`` or ``pdf`` that holds its fonts; equal figures give equal bytes."""
    black = {key: "#000000" for key, value in _STYLE.items() if value == _INK}
    return _drawn(figure, kind, {"svg.fonttype": "path", "pdf.fonttype": 42, **black})


def _drawn(figure: Figure, kind: str, style: dict[Any, Any]) -> bytes:
    """The figure as matplotlib writes it, without a date."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    panels = figure.panels
    columns = min(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    labels = dict.fromkeys(line.label for panel in panels for line in panel.lines)
    appearances = zip(labels, itertools.cycle(_COLOURS), itertools.cycle(_MARKERS), strict=False)
    styles = {label: {"color": colour, "marker": marker} for label, colour, marker in appearances}
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # ignore the user's own style
        matplotlib.rcParams.update({**_STYLE, **style, "svg.hashsalt": figure.title})
        width = max(4 * columns, 6.4)
        legend_columns = _legend_columns(labels, width) if labels else 1
        legend_rows = math.ceil(len(labels) / legend_columns)
        height = max(3.3, *(0.8 + 0.3 * len(panel.estimates) for panel in panels))
        canvas = Canvas(figsize=(width, height * rows + 0.25 + 0.25 * legend_rows), layout="constrained")
        handles: dict[str, Any] = {}
        for i, panel in enumerate(panels):
            for label, artist in _draw(panel, canvas.add_subplot(rows, columns, i + 1), styles):
                handles.setdefault(label, artist)
        if handles:
            entries = [_text(label) for label in handles]
            canvas.legend(list(handles.values()), entries, loc="outside lower center", ncols=legend_columns)
        buffer = io.BytesIO()
        # No date and no addresses, which would change from run to run.
        names = {"svg": ("Date", "Creator", "Format", "Type"), "pdf": ("CreationDate", "Creator", "Producer")}[kind]
        canvas.savefig(buffer, format=kind, transparent=True, metadata=dict.fromkeys(names))
    return buffer.getvalue()


def to_tables(figure: Figure) -> Iterator[Table]:
    """The numbers of each panel as a table: a row for each x, a column for each line; or a row for each estimate."""
    for panel in figure.panels:
        if panel.estimates:
            rows = [[one.label, one.value, one.low, one.high] for one in panel.estimates]
            yield plain_table(panel.title, "", [panel.y, panel.x, "low", "high"], rows)
            continue
        lines: dict[str, dict[float, float | None]] = {}
        for line in panel.lines:
            lines.setdefault(_named(line), {}).update(zip(line.x, line.y, strict=True))
        yield plain_table(
            ": ".join(filter(None, (panel.title, panel.y))),
            "",
            [panel.x, *lines],
            [[x, *(line.get(x) for line in lines.values())] for x in sorted(set().union(*lines.values()))],
        )


def _draw(panel: Panel, axes: Any, styles: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, Any]]:
    """Draw the panel, and yield the label and the artist of each line."""
    axes.set(title=_text(panel.title), xlabel=_text(panel.x), ylabel=_text(panel.y))
    axes.set(**{f"{axis}scale": "log" for axis in panel.log})
    _draw_estimates(panel.estimates, axes)
    for line in panel.lines:
        dashes, every = "--" if line.dashed else "-", max(1, len(line.x) // _MARKED)
        values = [_number(y) for y in line.y]
        (artist,) = axes.plot(line.x, values, dashes, markevery=every, **styles[line.label])
        yield line.label, artist
    for name in "xy":
        if name not in panel.log and _is_counted(panel, name):
            getattr(axes, f"{name}axis").get_major_locator().set_params(integer=True, min_n_ticks=1)


def _is_counted(panel: Panel, name: str) -> bool:
    """Whether an axis shows whole numbers, of runs or checks: it has no tick at 1.5."""
    values = [value for line in panel.lines for value in (line.x if name == "x" else line.y) if value is not None]
    return bool(values) and all(float(value).is_integer() for value in values)


def _draw_estimates(estimates: Sequence[Estimate], axes: Any) -> None:
    """Draw the forest plot, the first estimate on top."""
    for place, estimate in enumerate(estimates):
        axes.plot([_number(estimate.low), _number(estimate.high)], [place, place], "-", color=_COLOURS[0])
        axes.plot([_number(estimate.value)], [place], "o", color=_COLOURS[0], markerfacecolor=_COLOURS[0])
    if estimates:
        axes.set_yticks(range(len(estimates)), [_text(estimate.label) for estimate in estimates])
        axes.set_ylim(len(estimates) - 0.5, -0.5)


def _legend_columns(labels: Collection[str], width: float) -> int:
    """How many columns of these labels fit a width in inches, at 14 characters an inch: at most seven."""
    characters = max(len(_text(label)) for label in labels) + 9.5  # the line's marker, and the space between columns
    return max(1, min(len(labels), 7, int(14 * width / characters)))


def _named(line: Line) -> str:
    return f"{line.label} (dashed)" if line.dashed else str(line.label)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _text(text: str) -> str:
    """Text on one line, shortened if too long, with escaped dollar signs, between which matplotlib reads a formula."""
    line = " ".join(text.split())
    return (line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…").replace("$", r"\$")
