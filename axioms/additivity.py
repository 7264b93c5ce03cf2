"""Additivity: the attribution of an answer's log-likelihood is the sum of the attributions of its tokens.

A log-likelihood is a sum, log p(answer | prompt) = Σ_k log p(token k | prompt, tokens before k). So it is linearity,
Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §4, between outputs that a model reads at different positions.
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
from faithcheck.models.networks.derived import SummedOutputs


@axiom(
    "additivity",
    "the sum of the outputs, as of an answer's tokens, gets the sum of their attributions",
    usual_cause="the map is averaged over the outputs, takes absolute values, or reads one position of several",
    subjects=("answer.*", "control.mlp", "control.bert"),
)
def additivity(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution of the sum of all outputs is from the sum of their attributions.

    ``values``, ``(batch, features)``, is a(Σ_k f_k) − Σ_k a(f_k); ``gap`` is its largest entry relative to the largest
    of these terms, the single a(f_k) too; None if the model has one output.

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

    parts = torch.stack([attribution_of_output(model, k) for k in range(outputs)])
    whole, sum_of_parts = attribution_of_output(SummedOutputs(model), 0), parts.sum(0)
    values, scale = whole - sum_of_parts, torch.cat([whole, sum_of_parts, *parts], 1)
    of_the_sum = replace(case, target=torch.zeros_like(case.target))
    gap, detail = gap_beyond_roundoff(values, scale, of_the_sum, SummedOutputs(model))
    compared = Compared(whole, sum_of_parts, ("the map of the sum of the outputs", "the sum of their maps"))
    return Measurement(gap, tolerance(case.inputs), values, scale, {"outputs": outputs, **detail}, compared=compared)
