"""Dtype consistency: the attribution in float32 equals that in float64, to float32's round-off.

The bound is that of Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. 2002, §3.1.
"""

from copy import deepcopy

import torch
from torch import nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference
from faithcheck.axioms.measure.roundoff import additions
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.explainers.refused_modules import offloaded, refuse_modules
from faithcheck.models.case import Case

UNIT_ROUNDOFF = torch.finfo(torch.float32).eps / 2


@axiom(
    "precision",
    "float32 gives the attribution of float64, to round-off",
    usual_cause="something is computed in float16 or bfloat16, or as the difference of two large numbers",
    tolerance="nu/(1 − nu) of n additions, u = 2⁻²⁴",
)
def precision(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution in float32 is from that in float64.

    Weights and inputs are first rounded to float32, so that both runs start from the same numbers.

    ``values`` is the attribution in float32 minus that in float64, ``(batch, features)``, see `measured_difference`.
    The tolerance is nu/(1 − nu), see `additions`, with u = 2⁻²⁴: it bounds the round-off of n additions if no large
    terms cancel. An attribution beyond it is the difference of numbers much larger than itself, and cannot be trusted
    in float32.

    Raises:
        Unsupported: accelerate offloads weights of the model.
    """
    refuse_modules(model, offloaded)
    single, rounded = deepcopy(model).to(torch.float32), case.to(torch.float32)
    coarse = attribution_of(explainer, single, rounded)
    fine = attribution_of(explainer, deepcopy(single).to(torch.float64), rounded.to(torch.float64))
    roundoff = additions(model, case) * UNIT_ROUNDOFF
    compared = Compared(coarse, fine, ("the map in float32", "the map in float64"))
    return measured_difference(compared, case, tol=roundoff / (1 - roundoff))
