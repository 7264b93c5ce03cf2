"""Linearity in the output (Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §4), and two cases that people ask about.

Additivity: a log-likelihood is a sum, log p(answer | prompt) = Σ_k log p(token k | prompt, tokens before k), of outputs
that a model reads at different positions. Antisymmetry: of a contrast, what speaks for a against b speaks, by the same
amount, against b against a (contrastive explanations: Yin & Neubig 2022, arXiv 2202.10419): α = −1 and β = 0.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference, nothing_to_measure
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case
from faithcheck.models.networks.derived import OUTPUT_WEIGHTS, SummedOutputs, WeightedOutputs
from faithcheck.models.targets import Contrast

ONE_OUTPUT = "the model has one output"


@torch.no_grad()
def number_of_outputs(model: nn.Module, case: Case) -> int:
    """How many outputs a model has."""
    return case.run(model).shape[1]


def attribution_of_output(explainer: Explainer, model: nn.Module, case: Case, output: int) -> Tensor:
    """The attribution of one output of the model on every example, ``(batch, features)`` float64."""
    return attribution_of(explainer, model, replace(case, target=torch.full_like(case.target, output))).double()


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
    """
    if number_of_outputs(model, case) < 2:
        return nothing_to_measure(case, ONE_OUTPUT)
    alpha, beta = OUTPUT_WEIGHTS
    first = alpha * attribution_of_output(explainer, model, case, 0)
    second = beta * attribution_of_output(explainer, model, case, 1)
    weighted = attribution_of_output(explainer, WeightedOutputs(model), case, 0)
    compared = Compared(weighted, first + second, ("the map of αf₀ + βf₁", "α × the map of f₀ + β × that of f₁"))
    return measured_difference(compared, case, model, relative_to=(weighted, first, second))


@axiom(
    "additivity",
    "the sum of the outputs, as of an answer's tokens, gets the sum of their attributions",
    usual_cause="the map is averaged over the outputs, takes absolute values, or reads one position of several",
    subjects=("answer.*", "control.mlp", "control.bert"),
)
def additivity(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution of the sum of all outputs is from the sum of their attributions.

    ``values``, ``(batch, features)``, is a(Σ_k f_k) − Σ_k a(f_k); ``gap`` is relative to the largest of these terms and
    of the single a(f_k); None if the model has one output.
    """
    if (outputs := number_of_outputs(model, case)) < 2:
        return nothing_to_measure(case, ONE_OUTPUT)
    summed = SummedOutputs(model)
    parts = torch.stack([attribution_of_output(explainer, model, case, k) for k in range(outputs)])
    whole, sum_of_parts = attribution_of_output(explainer, summed, case, 0), parts.sum(0)
    compared = Compared(whole, sum_of_parts, ("the map of the sum of the outputs", "the sum of their maps"))
    of_the_sum = replace(case, target=torch.zeros_like(case.target))
    terms = (whole, sum_of_parts, *parts)
    return measured_difference(compared, of_the_sum, summed, relative_to=terms, detail={"outputs": outputs})


@axiom(
    "antisymmetry",
    "f₀ − f₁ gets minus the attribution of f₁ − f₀",
    usual_cause="the map has no sign, or is multiplied by the sign of the output or divided by it",
    subjects=("answer.*", "control.mlp", "control.bert"),
)
def antisymmetry(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution of f₀ − f₁ is from minus that of f₁ − f₀.

    ``values``, ``(batch, features)``, is a(f₀ − f₁) + a(f₁ − f₀); ``gap`` is None if the model has one output.
    """
    if number_of_outputs(model, case) < 2:
        return nothing_to_measure(case, ONE_OUTPUT)
    first = attribution_of_output(explainer, Contrast(model, 1), case, 0)
    second = attribution_of_output(explainer, Contrast(model, 0), case, 1)
    compared = Compared(first, -second, ("the map of f₀ − f₁", "minus the map of f₁ − f₀"))
    of_the_contrast = replace(case, target=torch.zeros_like(case.target))
    return measured_difference(compared, of_the_contrast, Contrast(model, 1))
