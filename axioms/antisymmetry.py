"""Antisymmetry of a contrast: what speaks for a against b speaks, by the same amount, against b against a.

Contrastive explanations: Yin & Neubig 2022, arXiv 2202.10419. It is linearity, Sundararajan, Taly & Yan 2017, arXiv
1703.01365, §4, with α = −1 and β = 0, for the output that people ask about.
"""

from dataclasses import replace

import torch
from torch import nn

from faithcheck.axioms.linearity import ONE_OUTPUT, attribution_of_output, number_of_outputs
from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference, nothing_to_measure
from faithcheck.explainers.protocol import Explainer
from faithcheck.models.case import Case
from faithcheck.models.targets import Contrast


@axiom(
    "antisymmetry",
    "f₀ − f₁ gets minus the attribution of f₁ − f₀",
    usual_cause="the map has no sign, or is multiplied by the sign of the output or divided by it",
    subjects=("answer.*", "control.mlp", "control.bert"),
)
def antisymmetry(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution of f₀ − f₁ is from minus that of f₁ − f₀.

    ``values``, ``(batch, features)``, is a(f₀ − f₁) + a(f₁ − f₀); ``gap`` is None if the model has one output.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    if number_of_outputs(model, case) < 2:
        return nothing_to_measure(case, ONE_OUTPUT)
    first = attribution_of_output(explainer, Contrast(model, 1), case, 0)
    second = attribution_of_output(explainer, Contrast(model, 0), case, 1)
    compared = Compared(first, -second, ("the map of f₀ − f₁", "minus the map of f₁ − f₀"))
    of_the_contrast = replace(case, target=torch.zeros_like(case.target))
    return measured_difference(compared, of_the_contrast, Contrast(model, 1))
