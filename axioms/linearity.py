"""Linearity: the attribution of αf₀ + βf₁ is α times that of f₀ plus β times that of f₁.

Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §4.
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
from faithcheck.models.networks.derived import OUTPUT_WEIGHTS, WeightedOutputs


@axiom(
    "linearity",
    "αf₀ + βf₁ gets α times the attribution of f₀ plus β times that of f₁",
    usual_cause=(
        "the map is not linear in the output: it takes absolute values, normalises, or explains the "
        "predicted class in place of case.target"
    ),
)
def linearity(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution of a weighted sum of two outputs is from the weighted sum of their attributions.

    The outputs are the first two, α = 2, β = −3. ``values``, ``(batch, features)``, is
    a(αf₀ + βf₁) − α·a(f₀) − β·a(f₁); ``gap`` is its largest entry relative to the largest of the three terms, in
    [0, 3]; None if the model has one output.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    with torch.no_grad():
        outputs = case.run(model).shape[1]
    if outputs < 2:
        nothing = torch.zeros(case.shape).to(case.inputs)
        return Measurement(None, tolerance(case.inputs), nothing, detail={"reason": "the model has one output"})

    def attribution_of_output(model: nn.Module, output: int) -> Tensor:
        return attribution_of(explainer, model, replace(case, target=torch.full_like(case.target, output))).double()

    alpha, beta = OUTPUT_WEIGHTS
    first = alpha * attribution_of_output(model, 0)
    second = beta * attribution_of_output(model, 1)
    weighted = attribution_of_output(WeightedOutputs(model), 0)
    values, scale = weighted - first - second, torch.cat([weighted, first, second], 1)
    gap, detail = gap_beyond_roundoff(values, scale, case, model)
    compared = Compared(weighted, first + second, ("the map of αf₀ + βf₁", "α × the map of f₀ + β × that of f₁"))
    return Measurement(gap, tolerance(case.inputs), values, scale, detail, compared=compared)
