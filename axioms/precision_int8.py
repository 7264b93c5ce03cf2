"""Consistency under quantisation: with weights of 8 bits the attribution is that of float64, to the model's own loss.

The weights of each linear map are the numbers nearest to them of a grid of 256, a row a grid, see
`faithcheck.models.eight_bit_weights`; all else is float32. The tolerance is derived from what such a change of the
weights does to each model, see `faithcheck.axioms.measure.coarse_types`.
"""

from __future__ import annotations

import torch
from torch import nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.coarse_types import map_in
from faithcheck.axioms.measure.verdicts import Measurement
from faithcheck.explainers.protocol import Explainer
from faithcheck.models.case import Case


@axiom(
    "precision_int8",
    "weights of 8 bits give the attribution of float64, to the round-off of the model",
    part_of="precision",
    subjects=("control.*",),
    usual_cause="the map reads single weights, or is the difference of two large numbers",
    tolerance="four times what simulated round-off moves Leave-One-Out and gradient × input by",
)
def precision_int8(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution with weights of 8 bits is from that in float64, see `map_in`.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
        UnmeasurableInType: the model has no linear map to quantise, or no digit survives.
    """
    return map_in(torch.int8, explainer, model, case)
