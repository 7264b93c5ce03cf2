"""Linearity: the attribution of αf₀ + βf₁ is α times that of f₀ plus β times that of f₁.

Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §4.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from faithcheck.axioms.engine.verdicts import Measurement, relative_gap, tolerance
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case
from faithcheck.models.networks.derived import OUTPUT_WEIGHTS, WeightedOutputs


def linearity(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution of a mixture of the first two outputs is from the mixture of theirs.

    α = 2, β = −3. ``values``, ``(batch, features)``, is a(αf₀ + βf₁) − α·a(f₀) − β·a(f₁); ``gap`` is its largest entry
    relative to the largest of the three terms, in [0, 3]; None where the model has one output.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    with torch.no_grad():
        outputs = case.run(model).shape[1]
    if outputs < 2:
        nothing = torch.zeros(case.shape).to(case.inputs)
        return Measurement(None, tolerance(case.inputs), nothing, detail={"reason": "the model has one output"})

    def of(model: nn.Module, output: int) -> Tensor:
        return attribution_of(explainer, model, replace(case, target=torch.full_like(case.target, output))).double()

    alpha, beta = OUTPUT_WEIGHTS
    first, second, mixed = alpha * of(model, 0), beta * of(model, 1), of(WeightedOutputs(model), 0)
    values, scale = mixed - first - second, torch.cat([mixed, first, second], 1)
    return Measurement(relative_gap(values, scale), tolerance(case.inputs), values, scale)
