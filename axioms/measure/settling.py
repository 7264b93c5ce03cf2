"""Settling: a measurement is compared with what theory expects, and one that holds on empty maps is marked.

A degenerate map is zero everywhere, one number at every feature, or a number at one feature alone. Two such maps are
equal whatever the models do, so that a check that holds on them says little. It says something where the function
itself is like that: a constant function has an attribution of zero. So a map counts as degenerate only where
Leave-One-Out of the same model on the same case is not degenerate in the same way.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from faithcheck.axioms.measure.measurement import Measurement, relative_gap
from faithcheck.axioms.measure.statuses import Status
from faithcheck.models.case import Case
from faithcheck.models.closed_forms import leave_one_out
from faithcheck.models.expectation import Expectation

CLOSE = 1e-6
"""The largest difference of two numbers of a map that count as equal, relative to its largest number."""


def settle(measurement: Measurement, expectation: Expectation, predicted: Tensor | None) -> tuple[Status, float | None]:
    """Compare a measurement with its expectation: the status, and the relative error of the prediction.

    ``predicted``, shaped like ``measurement.values``, is what ``expectation.predict`` gives. Without a closed form it
    is None, and so is the error.
    """
    error = None
    if predicted is not None:
        values = measurement.values
        scales = [values, predicted, torch.full_like(values, measurement.unit)]
        # A difference of two maps has the round-off of the maps, which may be far larger than their difference.
        scales += [] if measurement.scale is None else [measurement.scale]
        error = relative_gap(values - predicted, *scales)
    gap = measurement.gap
    if expectation.verdict == "ERROR":
        return Status.VIOLATION_VANISHED, error
    if gap is None:
        return Status.UNSUPPORTED, error
    if expectation.verdict == "UNCLAIMED":
        return Status.RECORDED, error
    if expectation.verdict == "HOLDS":
        largest = max(measurement.tol, expectation.ceiling or 0)
        return (Status.HOLDS if gap <= largest else Status.BROKEN_CLAIM), error
    if gap <= measurement.tol:
        return Status.VIOLATION_VANISHED, error
    if error is not None:
        return (Status.PREDICTED_VIOLATION if error <= measurement.tol else Status.INCONCLUSIVE), error
    assert expectation.floor is not None
    within = expectation.floor <= gap <= (expectation.ceiling or math.inf)
    return (Status.PREDICTED_VIOLATION if within else Status.INCONCLUSIVE), error


def degenerate_kind(measurement: Measurement, model: nn.Module, case: Case) -> str:
    """In which way all maps that a check compared are degenerate; ``""`` if they are not, or the check does not hold.

    ``zero``, ``constant``, ``one-hot``, or several of them joined by "or", if the examples differ. Only an axiom that
    compares the explainer's maps with each other can be vacuous. ``model`` was explained, or is the first of two.
    """
    if measurement.gap is None or measurement.gap > measurement.tol:
        return ""
    kinds = kinds_of(measurement.maps, case.unpadded)
    if not kinds or kinds <= kinds_of([leave_one_out(model, case)], case.unpadded):
        return ""
    return " or ".join(sorted(kinds))


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
    """How the numbers of one example ``(features,)`` are degenerate; ``""`` if they are not."""
    size = features.abs().max()
    if size == 0:
        return "zero"
    if features.max() - features.min() <= CLOSE * size:
        return "constant"
    return "one-hot" if len(features) > 2 and (features.abs() > CLOSE * size).sum() == 1 else ""
