"""Antisymmetry of a contrast: what speaks for a against b speaks, by the same amount, against b against a.

Contrastive explanations: Yin & Neubig 2022, arXiv 2202.10419. It is linearity, Sundararajan, Taly & Yan 2017, arXiv
1703.01365, §4, with α = −1 and β = 0, for the output that people ask about.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.evidence import Compared
from faithcheck.axioms.measure.roundoff import gap_beyond_roundoff
from faithcheck.axioms.measure.verdicts import Measurement, tolerance
from faithcheck.explainers.protocol import Explainer, attribution_of
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

    ``values``, ``(batch, features)``, is a(f₀ − f₁) + a(f₁ − f₀); ``gap`` is its largest entry relative to the larger
    of the two terms, in [0, 2]; None if the model has one output.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    with torch.no_grad():
        outputs = case.run(model).shape[1]
    if outputs < 2:
        nothing = torch.zeros(case.shape).to(case.inputs)
        return Measurement(None, tolerance(case.inputs), nothing, detail={"reason": "the model has one output"})

    def attribution_of_contrast(output: int, against: int) -> Tensor:
        target = torch.full_like(case.target, output)
        return attribution_of(explainer, Contrast(model, against), replace(case, target=target)).double()

    first, second = attribution_of_contrast(0, 1), attribution_of_contrast(1, 0)
    values, scale = first + second, torch.cat([first, second], 1)
    of_the_contrast = replace(case, target=torch.zeros_like(case.target))
    gap, detail = gap_beyond_roundoff(values, scale, of_the_contrast, Contrast(model, 1))
    compared = Compared(first, -second, ("the map of f₀ − f₁", "minus the map of f₁ − f₀"))
    return Measurement(gap, tolerance(case.inputs), values, scale, detail, compared=compared)
