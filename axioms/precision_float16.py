"""Dtype consistency: the attribution in float16 is that in float64, to the round-off of the model in float16.

A number of float16 has 11 bits: three to four decimal digits.
"""

import torch
from torch import nn

from faithcheck.axioms.measure.coarse_maps import axiom_of_coarse_type, map_in
from faithcheck.axioms.measure.measurement import Measurement
from faithcheck.explainers.protocol import Explainer
from faithcheck.models.case import Case


@axiom_of_coarse_type(
    "precision_float16",
    "float16 gives the attribution of float64, to the round-off of the model",
    usual_cause="the map is the difference of two large numbers, or ε is too small for float16",
)
def precision_float16(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution in float16 is from that in float64, see `map_in`."""
    return map_in(torch.float16, explainer, model, case)
