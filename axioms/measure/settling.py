"""Settling: a measurement is compared with what theory expects."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from faithcheck.axioms.measure.measurement import Measurement, relative_gap
from faithcheck.axioms.measure.statuses import Status
from faithcheck.models.expectation import Expectation


def settle(measurement: Measurement, expectation: Expectation, predicted: Tensor | None) -> tuple[Status, float | None]:
    """Compare a measurement with its expectation.

    Args:
        measurement: what was measured.
        expectation: what theory expects.
        predicted: the value of ``expectation.predict``, shaped like ``measurement.values``; None without a closed form.

    Returns:
        The status, and the relative error of the prediction, None without a closed form.
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
