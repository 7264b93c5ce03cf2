"""Linearity: the attribution of αf₀ + βf₁ is α times that of f₀ plus β times that of f₁.

Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §4.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference, nothing_to_measure
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
    a(αf₀ + βf₁) − α·a(f₀) − β·a(f₁); ``gap`` is relative to the largest of the three terms, in [0, 3]; None if the
    model has one output.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    if number_of_outputs(model, case) < 2:
        return nothing_to_measure(case, ONE_OUTPUT)
    alpha, beta = OUTPUT_WEIGHTS
    first = alpha * attribution_of_output(explainer, model, case, 0)
    second = beta * attribution_of_output(explainer, model, case, 1)
    weighted = attribution_of_output(explainer, WeightedOutputs(model), case, 0)
    compared = Compared(weighted, first + second, ("the map of αf₀ + βf₁", "α × the map of f₀ + β × that of f₁"))
    return measured_difference(compared, case, model, relative_to=(weighted, first, second))


ONE_OUTPUT = "the model has one output"


@torch.no_grad()
def number_of_outputs(model: nn.Module, case: Case) -> int:
    """How many outputs a model has."""
    return case.run(model).shape[1]


def attribution_of_output(explainer: Explainer, model: nn.Module, case: Case, output: int) -> Tensor:
    """The attribution of one output of the model on every example, ``(batch, features)`` float64."""
    return attribution_of(explainer, model, replace(case, target=torch.full_like(case.target, output))).double()
