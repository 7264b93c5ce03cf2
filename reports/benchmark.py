"""The benchmark document: what attributions cost in plain passes, and how they agree with Leave-One-Out.

`make bench` measures it. Here: its shape, what follows from its numbers, and what changed between two documents.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from faithcheck.reports.results import ENVIRONMENT, Json, ResultsError
from faithcheck.reports.shape import NUMBER, Shape, mismatch

SCHEMA_VERSION = 1
CONFIDENCE = 0.95
SIZES = ("length", "batch", "depth", "width")
"""What a point of the matrix varies: features an example, examples, layers, coordinates a feature."""

_INTERVAL: Shape = dict.fromkeys(("median", "low", "high"), NUMBER)
_ROW: Shape = {
    **dict.fromkeys(("explainer", "label", "origin", "unit", "why"), str),
    "turns": int,
    "ratio": _INTERVAL,
    "cost": _INTERVAL,
    **dict.fromkeys(("milliseconds", "peak_bytes", "unit_peak_bytes"), NUMBER),
}
_SIZE: Shape = dict.fromkeys(SIZES, int)
_SHAPE: Shape = {
    "faithcheck": str,
    "key": str,
    "environment": ENVIRONMENT,
    "settings": {
        **dict.fromkeys(("dtype", "device"), str),
        **dict.fromkeys(("seed", "threads", "turns"), int),
        **dict.fromkeys(("within", "seconds"), (int, float)),
        "middle": _SIZE,
    },
    "device": {"name": str, "memory_bytes": (int, None)},
    "points": [
        {
            "shape": str,
            **_SIZE,
            "state": {"clock_mhz": NUMBER, "power_watts": NUMBER, "unknown": str},
            "rows": [_ROW],
        }
    ],
    "agreements": [
        {
            **dict.fromkeys(("model", "data", "removal"), str),
            "length": int,
            "rows": [{**_ROW, "r": {**dict.fromkeys(("mean", "low", "high"), NUMBER), "n": int}}],
        }
    ],
}


def check(document: Json, path: Path) -> Json:
    """Return the document if this version can read it.

    Raises:
        ResultsError: the schema version is another one, or something is missing or of another type.
    """
    if document["schema_version"] != SCHEMA_VERSION:
        raise ResultsError(
            f"{path}: benchmark schema version {document['schema_version']!r}, this faithcheck reads "
            f"{SCHEMA_VERSION}: run make bench again"
        )
    if (damage := mismatch(document, _SHAPE)) is not None:
        raise ResultsError(f"{path}: damaged benchmark document: {damage}")
    return document


def interval(ratios: Sequence[float]) -> Json:
    """The median of ratios and its 95 % interval between two order statistics, of any distribution.

    Conover 1999, §3.2, as SciPy's ``quantile_test`` computes it. With fewer than six turns there is no such interval:
    ``low`` and ``high`` are None.
    """
    from scipy import stats  # not at the top: `faithcheck --help` and `compare` need none of it

    bounds = stats.quantile_test(ratios, p=0.5).confidence_interval(CONFIDENCE)
    low, high = (float(bound) if math.isfinite(bound) else None for bound in (bounds.low, bounds.high))
    return {"median": float(median(ratios)), "low": low, "high": high}


def known(cost: object) -> bool:
    """Whether a cost was measured: it is a number above 0."""
    return isinstance(cost, int | float) and cost > 0


def half_width(figure: Json) -> float | None:
    """How far the interval goes from the median at most, relative to the median; None without an interval."""
    median, low, high = figure["median"], figure["low"], figure["high"]
    if not all(map(known, (median, low, high))):
        return None
    return float(max(high - median, median - low) / median)


def sweep(document: Json, shape: str, dimension: str) -> list[Json]:
    """The points of a shape that differ from the middle in this dimension alone, in its order, the middle included."""
    others = [size for size in SIZES if size != dimension]
    middle = document["settings"]["middle"]
    chosen = (p for p in document["points"] if p["shape"] == shape and all(p[s] == middle[s] for s in others))
    return sorted(chosen, key=lambda point: int(point[dimension]))


def curve(points: list[Json], dimension: str, explainer: str) -> tuple[list[int], list[float]]:
    """The sizes of a sweep at which an explainer was measured, and its cost there."""
    measured = [
        (point[dimension], row["cost"]["median"])
        for point in points
        for row in point["rows"]
        if row["explainer"] == explainer and known(row["cost"]["median"])
    ]
    return [size for size, _ in measured], [cost for _, cost in measured]


def exponent(sizes: list[int], costs: list[float]) -> tuple[float, float, float] | None:
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


def placed(rows: list[Json]) -> list[Json]:
    """The rows of an agreement that have both a cost and an r."""
    return [row for row in rows if known(row["cost"]["median"]) and isinstance(row["r"]["mean"], int | float)]


def pareto_front(rows: list[Json]) -> list[Json]:
    """The rows of an agreement that no other row beats, in the order of cost: none costs less and agrees as well."""
    front: list[Json] = []
    for row in sorted(placed(rows), key=lambda row: (row["cost"]["median"], -row["r"]["mean"])):
        if not front or row["r"]["mean"] > front[-1]["r"]["mean"]:
            front.append(row)
    return front


def ratios(document: Json) -> dict[str, Json]:
    """Every measured ratio with its interval, by a name that says what was measured."""
    return dict(_ratios(document))


def _ratios(document: Json) -> Iterator[tuple[str, Json]]:
    places = [
        (f"{p['shape']}, " + ", ".join(f"{size} {p[size]}" for size in SIZES), p["rows"]) for p in document["points"]
    ]
    places += [(f"{one['model']}, {one['data']}", one["rows"]) for one in document["agreements"]]
    for place, rows in places:
        yield from ((f"{row['label']}: {place}", row["ratio"]) for row in rows if half_width(row["ratio"]) is not None)


def slower(old: Json, new: Json) -> bool:
    """Whether the new ratio is larger beyond both intervals."""
    return bool(new["low"] > old["high"])
