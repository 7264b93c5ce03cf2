"""The document of ``make bench``: what attributions cost in plain passes, and how they agree with Leave-One-Out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import ClassVar, TypeGuard

from msgspec import Struct

from faithcheck.reports.documents.document import Document, Number

CONFIDENCE = 0.95


class Ratio(Struct, frozen=True, kw_only=True):
    """The median of the ratios of two times, and its 95 % interval; None where it was not measured."""

    median: Number | None
    low: Number | None
    high: Number | None

    @property
    def half_width(self) -> float | None:
        """The largest distance of the interval's ends from the median, relative to it; None without an interval."""
        if not (known(self.median) and known(self.low) and known(self.high)):
            return None
        return max(self.high - self.median, self.median - self.low) / self.median

    def is_above(self, other: Ratio) -> bool:
        """Whether this ratio is larger beyond both intervals."""
        return self.low is not None and other.high is not None and self.low > other.high


class Row(Struct, frozen=True, kw_only=True):
    """An explainer, or a plain pass, at one point. Peaks are what one call takes beyond what was in use before."""

    explainer: str
    label: str
    origin: str  # the library that it is from; empty for faithcheck's own
    unit: str  # the plain pass that its ratio is to
    why: str  # why it was not measured; else empty
    turns: int  # how many times it was measured
    ratio: Ratio  # its time in units
    cost: Ratio  # its time in passes of the reference
    milliseconds: Number | None  # median, on a GPU
    peak_bytes: Number | None
    unit_peak_bytes: Number | None


class Agreement(Struct, frozen=True, kw_only=True):
    """The mean correlation with Leave-One-Out over ``n`` texts, and its 95 % interval."""

    mean: Number | None
    low: Number | None
    high: Number | None
    n: int


class AgreementRow(Row, frozen=True, kw_only=True):
    """An explainer, its cost and its agreement ``r`` with Leave-One-Out."""

    r: Agreement


class Size(Struct, frozen=True, kw_only=True):
    """A size of model and case: features an example, examples, layers, coordinates a feature."""

    length: int
    batch: int
    depth: int
    width: int

    def of(self, dimension: str) -> int:
        """The size in one of the `SIZES`."""
        size: int = getattr(self, dimension)
        return size


SIZES = Size.__struct_fields__
"""What a point of the matrix varies."""


class State(Struct, frozen=True, kw_only=True):
    """The clock and the power of a GPU, or why they are unknown."""

    clock_mhz: Number | None
    power_watts: Number | None
    unknown: str


class Point(Size, frozen=True, kw_only=True):
    """A model of this shape and size, and what was measured on it."""

    shape: str
    state: State
    rows: list[Row]

    def has_size(self, size: Size) -> bool:
        """Whether it is of this size."""
        return all(self.of(one) == size.of(one) for one in SIZES)


class Agreements(Struct, frozen=True, kw_only=True):
    """Cost and agreement of explainers on the texts of a data set; cost is that of one text of this length."""

    model: str
    data: str
    removal: str
    length: int
    rows: list[AgreementRow]

    @property
    def placed(self) -> list[AgreementRow]:
        """The rows that have both a cost and an r."""
        return [row for row in self.rows if known(row.cost.median) and row.r.mean is not None]

    @property
    def by_cost(self) -> list[AgreementRow]:
        """The same rows in the order of cost, of one cost the largest r first."""
        return sorted(self.placed, key=lambda row: (row.cost.median or 0.0, -(row.r.mean or 0.0)))

    @property
    def pareto_front(self) -> list[AgreementRow]:
        """The rows that no other row beats, in the order of cost: none costs less and agrees as well."""
        front: list[AgreementRow] = []
        best = -math.inf
        for row in self.by_cost:
            if row.r.mean is not None and row.r.mean > best:
                front.append(row)
                best = row.r.mean
        return front


class Settings(Struct, frozen=True, kw_only=True):
    """How costs were measured: until the interval is ``within`` this part of the ratio, or turns or seconds are over.

    The ``middle`` is the point that all others differ from in one dimension.
    """

    dtype: str
    device: str
    seed: int
    threads: int
    within: float
    turns: int
    seconds: float
    middle: Size


class Device(Struct, frozen=True, kw_only=True):
    """The name of the processor or the GPU, and the memory of the GPU; None on a processor."""

    name: str
    memory_bytes: int | None


class Benchmark(Document, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="benchmark"):
    """What attributions cost: at points on random weights, and agreements on data."""

    NAME: ClassVar[str] = "benchmark"
    WRITER: ClassVar[str] = "make bench"
    VERSION: ClassVar[int] = 1

    key: str  # a digest of the settings, of the code that was measured and of the code that measures
    settings: Settings
    device: Device
    points: list[Point]
    agreements: list[Agreements]

    def is_precise(self, ratio: Ratio) -> bool:
        """Whether a ratio is as precise as was asked for."""
        width = ratio.half_width
        return width is not None and width <= self.settings.within

    @property
    def shapes(self) -> list[str]:
        """The shapes of the points, each once."""
        return list(dict.fromkeys(point.shape for point in self.points))

    def sweep(self, shape: str, dimension: str) -> list[Point]:
        """The points of a shape that differ from the middle in this dimension alone, in its order, with the middle."""
        others = [size for size in SIZES if size != dimension]
        middle = self.settings.middle
        chosen = (p for p in self.points if p.shape == shape and all(p.of(s) == middle.of(s) for s in others))
        return sorted(chosen, key=lambda point: point.of(dimension))

    @property
    def ratios(self) -> dict[str, Ratio]:
        """Every measured ratio with an interval, by a name that says what was measured."""
        return dict(self._ratios())

    def _ratios(self) -> Iterator[tuple[str, Ratio]]:
        places: list[tuple[str, Sequence[Row]]] = [
            (f"{p.shape}, " + ", ".join(f"{size} {p.of(size)}" for size in SIZES), p.rows) for p in self.points
        ]
        places += [(f"{one.model}, {one.data}", one.rows) for one in self.agreements]
        for place, rows in places:
            yield from ((f"{row.label}: {place}", row.ratio) for row in rows if row.ratio.half_width is not None)


# --- statistics of ratios ---------------------------------------------------------------------------------------------


def known(cost: float | None) -> TypeGuard[float]:
    """Whether a cost was measured: it is a finite number above 0."""
    return cost is not None and 0 < cost < math.inf


def interval(ratios: Sequence[float]) -> Ratio:
    """The median of ratios and its 95 % interval between two order statistics, of any distribution.

    Conover 1999, §3.2, as SciPy's ``quantile_test`` computes it. With fewer than six turns there is no such interval:
    ``low`` and ``high`` are None.
    """
    from scipy import stats  # not at the top: `faithcheck --help` and `compare` need none of it

    bounds = stats.quantile_test(ratios, p=0.5).confidence_interval(CONFIDENCE)
    low, high = (float(bound) if math.isfinite(bound) else None for bound in (bounds.low, bounds.high))
    return Ratio(median=float(median(ratios)), low=low, high=high)


def curve(points: Sequence[Point], dimension: str, explainer: str) -> tuple[list[int], list[float]]:
    """The sizes of a sweep at which an explainer was measured, and its cost there."""
    measured = [
        (point.of(dimension), row.cost.median)
        for point in points
        for row in point.rows
        if row.explainer == explainer and known(row.cost.median)
    ]
    return [size for size, _ in measured], [cost for _, cost in measured]


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> tuple[float, float, float] | None:
    """The exponent e of cost ∝ sizeᵉ and its 95 % interval: the slope of the logarithms' regression line.

    The interval is that of Student's t for the residuals: it says how straight the line is, not how far the exponent
    holds beyond the sizes. None for fewer than three sizes.
    """
    if len(sizes) < 3:
        return None
    from scipy import stats

    line = stats.linregress([math.log(size) for size in sizes], [math.log(cost) for cost in costs])
    margin = line.stderr * stats.t.ppf((1 + CONFIDENCE) / 2, len(sizes) - 2)
    return float(line.slope), float(line.slope - margin), float(line.slope + margin)
