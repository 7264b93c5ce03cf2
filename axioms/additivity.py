"""Additivity: the attribution of an answer's log-likelihood is the sum of the attributions of its tokens.

A log-likelihood is a sum, log p(answer | prompt) = Σ_k log p(token k | prompt, tokens before k). So it is linearity,
Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §4, between outputs that a model reads at different positions.
"""

from dataclasses import replace

import torch
from torch import nn

from faithcheck.axioms.linearity import ONE_OUTPUT, attribution_of_output, number_of_outputs
from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference, nothing_to_measure
from faithcheck.explainers.protocol import Explainer
from faithcheck.models.case import Case
from faithcheck.models.networks.derived import SummedOutputs


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

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
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
