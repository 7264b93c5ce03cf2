"""How far two alignments differ on the examples that both measured: paired differences with their intervals."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from faithcheck.reports.documents.alignment import Alignment

PAIRED = ("pearson_no_special", "delta")
"""The figures whose differences are given."""
METHOD = (
    "the mean of now − before over these examples, with the 95 % interval of 9,999 bootstrap resamples (bootstrap-t), "
    "or of Student's t below eight examples; p is that of Wilcoxon's signed-rank test"
)


@dataclass(frozen=True)
class Difference:
    """The mean difference of a figure of an explainer, now − before, with its 95 % interval; None where undefined."""

    explainer: str
    figure: str  # one of `PAIRED`
    n: int  # how many examples
    difference: float | None
    low: float | None = None
    high: float | None = None
    p: float | None = None  # of the test that there is no difference


@dataclass(frozen=True)
class Paired:
    """The differences of two alignments."""

    sentence: str  # how the examples were paired
    differences: list[Difference] = field(default_factory=list)  # explainer by explainer; none if no example is paired


def paired_differences(old: Alignment, new: Alignment) -> Paired:
    """The differences of two alignments, explainer by explainer.

    Examples are paired by the digests of their content that documents hold, or by their place if the data are the same.
    """
    before, now = ({row.name: row.examples for row in one.explainers if not row.refused} for one in (old, new))
    old_keys, new_keys = _keys(old, new)
    if old_keys is None or new_keys is None:
        return Paired("no example is paired: the documents do not hold their examples")
    places = [{key: place for place, key in enumerate(keys)} for keys in (old_keys, new_keys)]
    both = [(places[0][key], places[1][key]) for key in places[1] if key in places[0]]
    if not both:
        return Paired("no example is paired: the two documents have none in common")
    differences = [
        _difference(name, figure, [(_at(before[name][figure], i), _at(now[name][figure], j)) for i, j in both])
        for name in now
        if name in before
        for figure in PAIRED
        if figure in before[name] and figure in now[name]
    ]
    of = f"{len(both)} examples that both measured" if len(both) > 1 else "1 example that both measured"
    return Paired(f"{of}: {METHOD}", differences)


def _difference(explainer: str, figure: str, pairs: Sequence[tuple[float | None, float | None]]) -> Difference:
    """The figures of one explainer, paired; no bootstrap where nothing differs."""
    defined = [(before, now) for before, now in pairs if before is not None and now is not None]
    if all(before == now for before, now in defined):
        return Difference(explainer, figure, len(defined), 0.0 if defined else None)
    from faithcheck.axioms.measure import statistics  # not at the top: SciPy takes half a second to import

    paired = statistics.paired([now for _, now in pairs], [before for before, _ in pairs])
    return Difference(explainer, figure, len(defined), *(paired[key] for key in ("difference", "low", "high", "p")))


def _at(values: Sequence[float | None], place: int) -> float | None:
    value = values[place] if place < len(values) else None
    return value if value is not None and math.isfinite(value) else None


def _keys(old: Alignment, new: Alignment) -> tuple[list[object] | None, list[object] | None]:
    """What tells the measured examples of a document apart, the same in both documents; None if one does not say."""
    before, now = old.examples, new.examples
    if before is None or now is None:
        return None, None
    if before.digests is not None and now.digests is not None:
        return list(_numbered(before.digests)), list(_numbered(now.digests))
    if old.data.fingerprint != new.data.fingerprint:
        return None, None
    return _listed(before.index), _listed(now.index)


def _listed(places: Sequence[int] | None) -> list[object] | None:
    return None if places is None else list(places)


def _numbered(digests: Sequence[str]) -> Iterator[object]:
    """Each digest with how often it came before: a data set may hold one text twice."""
    seen: dict[str, int] = {}
    for digest in digests:
        seen[digest] = seen.get(digest, 0) + 1
        yield digest, seen[digest]
