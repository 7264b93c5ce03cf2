"""Local limit: an attribution is the change of the output per removed part of a feature, as the part goes to 0.

a_i = lim_{t → 0} D(t) with D(t) = (f(x) − f(x without the part t of i)) / t. A part is removed by the attention mask if
the case has one, A_k ∝ (1 − t) exp z_k, else by moving the feature the part t of the way to its baseline. So the limit
is the derivative with respect to a gate at 1: the first-order effect. Derived here.

The limit needs no derivative of the model. It is computed in float64. D is analytic, so that Richardson's extrapolation
from t = 2⁻², …, 2⁻⁹ has the following errors, both far below the tolerance:

1. Truncation: D's eighth Taylor coefficient times Π t_j = 2⁻⁴⁴. Through one softmax D's coefficients shrink like Aᵏ,
   since m A/(1 − A + m A) has its only pole at a distance 1/A > 1 from m = 1.
2. Round-off: twice the rounding of f over the smallest t, times the sum of the extrapolation's weights, which is below
   `AMPLIFICATION` = Π (1 + 2⁻ᵏ)/(1 − 2⁻ᵏ).
"""

import math
from copy import deepcopy
from itertools import pairwise

import torch
from torch import Tensor, nn

from faithcheck.axioms.full_removal import removes_otherwise
from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference, relative_gap
from faithcheck.axioms.measure.roundoff import tolerance
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case
from faithcheck.models.closed_forms import explained_output, leave_one_out

PARTS = [2.0**-k for k in range(2, 10)]
AMPLIFICATION = math.prod((1 + 2.0**-k) / (1 - 2.0**-k) for k in range(1, len(PARTS)))
NOT_CONVERGED = 1e-3
"""The least relative distance of the last two extrapolations at which there is no limit: of a limit it is 1e-9."""


@axiom(
    "local_limit",
    "attributions are the change under removal of a small part, per part",
    usual_cause="the map is a difference to the baseline and not a slope, or it is scaled",
    not_applicable=removes_otherwise,
    of_given_maps=True,
    tolerance="that of the dtype, and the round-off of the limit",
    subjects=("control.mlp", "control.bert", "probe.linear", "probe.tokens"),
)
def local_limit(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far an attribution is from the limit.

    ``values`` is the difference, ``(batch, features)``, see `measured_difference`. The tolerance includes the round-off
    of the limit.

    Raises:
        ValueError: there is no limit: the model does not take an attention mask between 0 and 1 as a gate.
    """
    attribution = attribution_of(explainer, model, case).double()
    # In float32, the round-off of f over the smallest part would be larger than the violations.
    precise, point = deepcopy(model).double(), case.to(torch.float64)
    limit = change_per_part(precise, point)
    largest = torch.maximum(attribution.abs(), limit.abs()).amax(1)
    round_off = 2 * torch.finfo(torch.float64).eps / PARTS[-1] * AMPLIFICATION * explained_output(precise, point).abs()
    tol = tolerance(case.inputs) + float(torch.where(largest > 0, round_off / largest, 0).max())
    compared = Compared(attribution, limit, ("the map", "the change per removed part"), reference=True)
    return measured_difference(compared, case, tol=tol)


def change_per_part(model: nn.Module, case: Case) -> Tensor:
    """lim D(t) for every feature, ``(batch, features)``; raises `ValueError` if there is no limit."""
    column = [leave_one_out(model, case, part) / part for part in PARTS]
    no_part_counts = not any(bool(quotients.any()) for quotients in column)
    while len(column) > 2:
        column = extrapolated(column)
    (limit,) = extrapolated(column)
    diverges = relative_gap(limit - column[-1], limit, column[-1]) > NOT_CONVERGED
    if diverges or (no_part_counts and bool(leave_one_out(model, case).any())):
        found = "has no limit as the part goes to 0" if diverges else "is 0, and that of a whole feature is not"
        raise ValueError(
            f"the change of the output per removed part {found}: the model must be smooth, and must take an attention "
            "mask between 0 and 1 as a gate, A_k ∝ m_k exp z_k"
        )
    return limit


def extrapolated(column: list[Tensor]) -> list[Tensor]:
    """The next column of Richardson's scheme (Neville's, at t = 0), shorter by one."""
    factor = 2.0 ** (len(PARTS) + 1 - len(column))  # the ratio of the outer parts that each entry combines
    return [later + (later - earlier) / (factor - 1) for earlier, later in pairwise(column)]
