"""Dtype consistency: the attribution in float16 equals that in float64, to the round-off of the model in float16.

A number of float16 has 11 bits, three to four decimal digits. No one bound holds for all models: the tolerance is
derived from the round-off of each model, see `faithcheck.axioms.measure.coarse_types`.
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
    "precision_float16",
    "float16 gives the attribution of float64, to the round-off of the model",
    part_of="precision",
    subjects=("control.*",),
    usual_cause="the map is the difference of two large numbers, or ε is too small for float16",
    tolerance="four times what simulated round-off moves Leave-One-Out and gradient × input by",
)
def precision_float16(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution in float16 is from that in float64, see `map_in`.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
        UnmeasurableInType: torch has no kernel of float16 for an operation, or no digit survives.
    """
    return map_in(torch.float16, explainer, model, case)
