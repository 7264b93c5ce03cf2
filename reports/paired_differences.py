"""How far two alignments differ on the examples that both measured: paired differences with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from faithcheck.reports.results import Json

PAIRED = ("pearson_no_special", "delta")
"""The figures whose differences are given."""
METHOD = (
    "the mean of now − before over these examples, with the 95 % interval of 9,999 bootstrap resamples (percentiles); "
    "p is that of Wilcoxon's signed-rank test"
)


def paired_differences(old: Json, new: Json) -> tuple[list[Json], str]:
    """The differences of two alignment documents, explainer by explainer, and how the examples were paired.

    Examples are paired by the digests of their content that documents hold, or by their place if the data are the same.

    Returns:
        Rows with ``explainer``, ``figure``, ``n`` pairs, and ``difference``, ``low``, ``high`` and ``p`` as
        `faithcheck.axioms.measure.statistics.paired` gives them; and a sentence.
    """
    before, now = _values(old), _values(new)
    if None in (keys := _keys(old, new)):
        return [], "no example is paired: the documents do not hold their examples"
    places = [{key: place for place, key in enumerate(of_one or ())} for of_one in keys]
    both = [key for key in places[1] if key in places[0]]
    if not both:
        return [], "no example is paired: the two documents have none in common"
    rows = [
        {"explainer": name, "figure": figure, **_paired(before[name][figure], now[name][figure], places, both)}
        for name in now
        if name in before
        for figure in PAIRED
        if figure in before[name] and figure in now[name]
    ]
    of = f"{len(both)} examples that both measured" if len(both) > 1 else "1 example that both measured"
    return rows, f"{of}: {METHOD}"


def _paired(
    old: Sequence[object], new: Sequence[object], places: Sequence[Mapping[object, int]], both: Sequence[object]
) -> Json:
    """The figures of one explainer, paired; no bootstrap where nothing differs."""
    pairs = [(_number(new, places[1][key]), _number(old, places[0][key])) for key in both]
    defined = [(now, before) for now, before in pairs if now is not None and before is not None]
    if all(now == before for now, before in defined):
        return {"n": len(defined), "difference": 0.0 if defined else None, "low": None, "high": None, "p": None}
    from faithcheck.axioms.measure import statistics  # not at the top: SciPy takes half a second to import

    paired = statistics.paired([now for now, _ in pairs], [before for _, before in pairs])
    return {key: paired[key] for key in ("n", "difference", "low", "high", "p")}


def _number(values: Sequence[object], place: int) -> float | None:
    value = values[place] if place < len(values) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _values(document: Json) -> dict[str, Json]:
    """The figures of each example, by explainer; documents of other tools may leave them out."""
    return {row["name"]: row.get("examples", {}) for row in document["explainers"] if not row["refused"]}


def _keys(old: Json, new: Json) -> tuple[list[object] | None, list[object] | None]:
    """What tells the measured examples of each document from the others of it, the same in both documents."""
    about = [document.get("examples", {}) for document in (old, new)]
    if all("digests" in of_one for of_one in about):
        return list(_numbered(about[0]["digests"])), list(_numbered(about[1]["digests"]))
    if old["data"]["fingerprint"] != new["data"]["fingerprint"]:
        return None, None
    return about[0].get("index"), about[1].get("index")


def _numbered(digests: Sequence[str]) -> Iterator[object]:
    """Each digest with how often it came before: a data set may hold one text twice."""
    seen: dict[str, int] = {}
    for digest in digests:
        seen[digest] = seen.get(digest, 0) + 1
        yield digest, seen[digest]
