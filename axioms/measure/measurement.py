"""Measurements: what an axiom compared, how far the two sides differ, and on which scale.

This file alone decides how a gap is scaled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.axioms.measure.roundoff import roundoff_of_sums, tolerance, tolerance_is_derived
from faithcheck.models.case import Case


@dataclass(frozen=True)
class Compared:
    """What an axiom compared."""

    first: Tensor  # the attributions, (batch, features), or their sums, (batch,)
    second: Tensor  # what they should equal, of the same shape
    names: tuple[str, str]  # of the two, such as "the map of f" and "the map of g"
    map: Tensor | None = None  # the attributions, (batch, features), where sums were compared
    mistakes: Mapping[str, Tensor] = field(default_factory=dict)  # what the first side equals after a known mistake
    places: Mapping[str, Tensor] = field(default_factory=dict)  # masks (batch, features) of what a mistake changes
    figures: Mapping[str, Tensor] = field(default_factory=dict)  # further numbers of each example, (batch,)
    terms: Sequence[Any] = ()  # the two expressions that were explained, as JSON; empty if they are none
    reference: bool = False  # whether the second side needs no explainer: then the check says something of any map


@dataclass(frozen=True)
class Measurement:
    """What an axiom measured for one explainer.

    Attributes:
        gap: the relative size of the violation, 0 where the axiom holds exactly; None where it is undefined on every
            example, with the reason in ``detail["reason"]``.
        tol: the largest gap that round-off explains.
        values: what the axiom measured, ``(batch, …)``; an expectation's ``predict`` predicts this.
        scale: ``(batch, …)``, the sizes that the gap is relative to; with it a prediction is reported as a gap too.
        detail: further figures for the report: strings, numbers, None.
        unit: the least scale of the error of a prediction: 1 for 1 − r of a correlation r, whose round-off is relative
            to 1.
        compared: what was compared, for the evidence of a red record.
        maps: the explainer's maps, ``(batch, features)``, if the axiom compares them with each other alone: if all are
            degenerate, that it holds says little.
    """

    gap: float | None
    tol: float
    values: Tensor
    scale: Tensor | None = None
    detail: Mapping[str, object] = field(default_factory=dict)
    unit: float = 0.0
    compared: Compared | None = None
    maps: Sequence[Tensor] = ()


def measured_difference(
    compared: Compared,
    case: Case,
    *models: nn.Module,
    relative_to: Sequence[Tensor] | None = None,
    tol: float | None = None,
    detail: Mapping[str, object] | None = None,
) -> Measurement:
    """Measure how far the two sides of a comparison differ.

    ``values`` is the first side minus the second. ``gap`` is its largest entry relative to the example's largest entry
    of either side, in [0, 2], or of the tensors ``relative_to``, ``(batch, …)``. An example counts as 0 if its
    difference is the round-off of ``models``, whose attributions differ, see `gap_beyond_roundoff`; without models
    every difference counts.
    """
    first, second = compared.first.double(), compared.second.double()
    values = first - second
    sizes = (first, second) if relative_to is None else relative_to
    scale = torch.cat([size.reshape(len(values), -1) for size in sizes], 1)
    gap, of_roundoff = (
        gap_beyond_roundoff(values, scale, case, *models) if models else (relative_gap(values, scale), {})
    )
    return Measurement(
        gap,
        tolerance(case.inputs) if tol is None else tol,
        values,
        scale,
        {**(detail or {}), **of_roundoff},
        compared=compared,
        maps=() if compared.reference else (compared.first, compared.second),
    )


def nothing_to_measure(case: Case, reason: str) -> Measurement:
    """The measurement of an axiom that is undefined on every example of the case."""
    return Measurement(None, tolerance(case.inputs), torch.zeros(case.shape).to(case.inputs), detail={"reason": reason})


def relative_gap(difference: Tensor, *scales: Tensor) -> float:
    """The largest ``|difference| / max |scales|``, each example of ``(batch, …)`` on its own scale; 0/0 counts as 0."""

    def size(values: Tensor) -> Tensor:
        return values.abs().reshape(len(values), -1).amax(1)

    gap, scale = size(difference), torch.stack([size(values) for values in scales]).amax(0)
    return float(torch.where(gap == 0, gap, gap / scale).max())


def gap_beyond_roundoff(
    difference: Tensor, scale: Tensor, case: Case, *models: nn.Module
) -> tuple[float, dict[str, object]]:
    """`relative_gap` of two attributions, where an example whose difference is round-off counts as 0.

    A token's attribution is a sum over the coordinates of its embedding. If they cancel, as the gradient's do before a
    LayerNorm, the sum is nothing but round-off, and relative to itself any difference is large. Its round-off is
    relative to what was summed: see `roundoff_of_sums`. Any larger difference has its own relative gap, unchanged.

    ``difference`` is of two attributions, ``(batch, features)``, or of two sums, ``(batch,)``. The second result, for
    the report, is the number of examples whose difference is round-off, if there are any.
    """
    gap = relative_gap(difference, scale)
    if tolerance_is_derived() or not gap > tolerance(case.inputs):
        return gap, {}
    difference = difference.reshape(len(difference), -1)
    beyond = difference.abs().amax(1) > roundoff_of_sums(case, *models)
    within = int((difference.any(1) & ~beyond).sum())
    gap = relative_gap(torch.where(beyond.unsqueeze(1), difference, 0), scale)
    return gap, {"examples that differ by round-off": within} if within else {}
