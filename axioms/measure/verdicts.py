"""Measurements, and how a measurement is settled against what theory expects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

from faithcheck.axioms.measure.evidence import Compared
from faithcheck.axioms.measure.statuses import Status
from faithcheck.models.expectation import Expectation


@dataclass(frozen=True)
class Measurement:
    """What an axiom measured for one explainer.

    Attributes:
        gap: the size of the violation, relative, 0 where the axiom holds exactly; None where it is undefined on
            every example, with the reason in ``detail["reason"]``.
        tol: the largest gap that round-off explains.
        values: what the axiom measured, ``(batch, …)``; an expectation's ``predict`` predicts this.
        scale: ``(batch, …)``, the sizes that the gap is relative to; with it a prediction is reported as a gap too.
        detail: further figures for the report: strings, numbers, None.
        unit: the error of a prediction is relative to the values and to their scale, but at least to this: 1 for 1 − r
            of a correlation r, whose round-off is relative to 1.
        compared: what was compared, for the evidence of a red record.
    """

    gap: float | None
    tol: float
    values: Tensor
    scale: Tensor | None = None
    detail: Mapping[str, object] = field(default_factory=dict)
    unit: float = 0.0
    compared: Compared | None = None


TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
"""The largest relative gap that round-off explains, by dtype."""


_derived: ContextVar[tuple[float, torch.dtype] | None] = ContextVar("derived", default=None)


@contextmanager
def tolerance_is(derived: float, dtype: torch.dtype) -> Iterator[None]:
    """Within the block, the tolerance is this one, derived from the round-off of a model in this dtype."""
    token = _derived.set((derived, dtype))
    try:
        yield
    finally:
        _derived.reset(token)


def tolerance_is_derived() -> bool:
    """Whether the tolerance is one that `tolerance_is` set, and holds all of the round-off."""
    return _derived.get() is not None


def tolerance(inputs: Tensor) -> float:
    """The largest relative gap that round-off explains for inputs of this dtype.

    A sum of 10⁵ products loses at most about five digits in float64 and, in practice, three in float32; the smallest
    violation that the registry predicts is above 10⁻³, so both leave room on either side. In a coarser dtype round-off
    may be as large as a violation, so that the tolerance is derived for each check, see
    `faithcheck.axioms.measure.coarse_types`.

    Raises:
        ValueError: a coarser dtype, without a derived tolerance.
    """
    if (derived := _derived.get()) is not None:
        return derived[0]
    if inputs.dtype not in TOLERANCES:
        raise ValueError(
            f"no one tolerance holds in {inputs.dtype}: a check derives its own (--dtype); float64 and float32 have one"
        )
    return TOLERANCES[inputs.dtype]


def tolerance_of_outputs(outputs: Tensor) -> float:
    """The largest relative difference of two outputs of one model that round-off explains: whether a feature counts.

    It is `tolerance`. Where that is derived, it is not known yet, or is of what an axiom measures, and not of outputs:
    then it is √ε of the dtype, half of its digits, so that the same features count in every measurement of a check.
    """
    derived = _derived.get()
    return tolerance(outputs) if derived is None else math.sqrt(torch.finfo(derived[1]).eps)


def relative_gap(difference: Tensor, *scales: Tensor) -> float:
    """The largest ``|difference| / max |scales|`` over the batch, each example on its own scale; 0/0 counts as 0.

    All tensors are ``(batch, …)``.
    """

    def size(values: Tensor) -> Tensor:
        return values.abs().reshape(len(values), -1).amax(1)

    gap, scale = size(difference), torch.stack([size(values) for values in scales]).amax(0)
    return float(torch.where(gap == 0, gap, gap / scale).max())


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
