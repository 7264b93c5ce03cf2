"""Degenerate maps: zero everywhere, one number at every feature, or a number at one feature alone.

Two such maps are equal whatever the models do, so that a check that holds on them says little. It says something where
the function itself is like that: a constant function has an attribution of zero. So a map counts as degenerate only
where Leave-One-Out of the same model on the same case is not degenerate in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from faithcheck.axioms.measure.measurement import Measurement
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.protocol import InvalidAttribution, Unsupported, attribution_of
from faithcheck.models.case import Case

CLOSE = 1e-6
"""The largest difference of two numbers that count as equal, relative to the largest number of the map."""


def degenerate_kind(measurement: Measurement, model: nn.Module, case: Case) -> str:
    """In which way the maps that a check compared are degenerate; ``""`` if one is not, or the check does not hold.

    Args:
        measurement: of an axiom; only one that compares the explainer's maps with each other can be vacuous.
        model: the model that was explained, or the first of two.
        case: of the check.

    Returns:
        ``zero``, ``constant``, ``one-hot``, or several of them joined by "or", if the examples differ.
    """
    if measurement.gap is None or measurement.gap > measurement.tol:
        return ""
    kinds = kinds_of(measurement.maps, case.unpadded)
    if not kinds:
        return ""
    try:
        of_function = kinds_of([attribution_of(LeaveOneOut(), model, case)], case.unpadded)
    except (Unsupported, InvalidAttribution):  # nothing is known of the function
        of_function = set()
    return "" if kinds <= of_function else " or ".join(sorted(kinds))


def kinds_of(maps: Iterable[Tensor], unpadded: Tensor) -> set[str]:
    """The ways in which maps ``(batch, features)`` are degenerate; empty if one example of one map is not.

    Examples of a single feature, which have no other maps, do not count. ``unpadded`` is ``(batch, features)``; padding
    of a map of this shape is left out.
    """
    kinds: set[str] = set()
    for one in maps:
        for i, row in enumerate(one.detach()):
            features = row[unpadded[i]] if one.shape == unpadded.shape else row
            if len(features) > 1:
                kind = _kind(features)
                if not kind:
                    return set()
                kinds.add(kind)
    return kinds


def _kind(features: Tensor) -> str:
    """How the numbers of one example ``(features,)`` are degenerate; ``""`` if they are not.

    Of two features, one often has no effect, and a map that gives all to the other one is no sign of a fault.
    """
    size = features.abs().max()
    if size == 0:
        return "zero"
    if features.max() - features.min() <= CLOSE * size:
        return "constant"
    return "one-hot" if len(features) > 2 and (features.abs() > CLOSE * size).sum() == 1 else ""
