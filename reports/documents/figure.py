"""A figure as data: panels of lines, or of estimates. The pages draw it as SVG or PDF, or write it as tables."""

import math
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from faithcheck.axioms.measure.record import Number


class Line(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A line through points. A ``y`` that is None, NaN or infinite leaves a gap."""

    label: str  # lines of one label share a colour, a marker and one entry in the legend
    x: list[Number]  # finite and increasing
    y: list[Number | None]
    dashed: bool = False

    def __post_init__(self) -> None:
        where = f"line {self.label!r}"
        if len(self.x) != len(self.y):
            raise ValueError(f"{where}: {len(self.x)} x and {len(self.y)} y")
        if not all(map(math.isfinite, self.x)) or not all(a < b for a, b in pairwise(self.x)):
            raise ValueError(f"{where}: the x must be finite and increase")


class Estimate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value with the ends of its interval, which may be None."""

    label: str
    value: Number | None
    low: Number | None
    high: Number | None


class Panel(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One part of a figure with axes of its own: lines, or estimates one below the other, as in a forest plot."""

    title: str
    x: str
    y: str
    lines: list[Line] = []
    estimates: list[Estimate] = []
    log: Literal["", "x", "y", "xy"] = ""

    def __post_init__(self) -> None:
        where = f"panel {self.title!r}"
        if bool(self.lines) == bool(self.estimates):
            raise ValueError(f"{where} has {'both lines and estimates' if self.lines else 'no line'}")
        for line in self.lines:
            for axis, values in (("x", line.x), ("y", line.y)):
                if axis in self.log and any(value is not None and value <= 0 for value in values):
                    raise ValueError(f"{where}, line {line.label!r}: a logarithmic axis cannot show {axis} ≤ 0")


class Figure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A figure with at least one panel.

    Raises `ValueError`, which names the place, if there is no panel; a panel has neither lines nor estimates, or both;
    the x of a line do not increase or are not as many as its y; or a value on a logarithmic axis is ≤ 0.
    """

    title: str
    note: str
    panels: list[Panel]

    def __post_init__(self) -> None:
        if not self.panels:
            raise ValueError(f"figure {self.title!r} has no panel")
