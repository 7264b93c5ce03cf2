"""Consistency under quantisation: with weights of 8 bits the attribution is that in float64, to the model's own loss.

The weights of each linear map are rounded to a grid of 256 numbers for each row, see
`faithcheck.models.eight_bit_weights`; everything else is float32.
"""

import torch
from torch import nn

from faithcheck.axioms.measure.coarse_maps import axiom_of_coarse_type, map_in
from faithcheck.axioms.measure.measurement import Measurement
from faithcheck.explainers.protocol import Explainer
from faithcheck.models.case import Case


@axiom_of_coarse_type(
    "precision_int8",
    "weights of 8 bits give the attribution of float64, to the round-off of the model",
    usual_cause="the map reads single weights, or is the difference of two large numbers",
)
def precision_int8(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution with weights of 8 bits is from that in float64, see `map_in`."""
    return map_in(torch.int8, explainer, model, case)
