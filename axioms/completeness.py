"""Completeness: an attribution sums to the difference between the outputs at the input and at the baseline.

Σᵢ aᵢ = f(x) − f(x′); Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §3.
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
from faithcheck.models.case import Case, output_difference
from faithcheck.models.closed_forms import explained_output


@axiom(
    "completeness",
    "attributions sum to f(x) − f(baseline)",
    usual_cause=(
        "the map is scaled or normalised, the baseline is not the one of the case, or the steps of an "
        "integral are too few"
    ),
    of_given_maps=True,
)
def completeness(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far an attribution's sum is from the difference of the target output.

    ``values`` is Σᵢ aᵢ − (f(x) − f(x′)), ``(batch,)``; ``gap`` is relative to the larger of the two sides, in [0, 2],
    beyond the round-off of sums, see `gap_beyond_roundoff`: either side may cancel.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    attribution = attribution_of(explainer, model, case)
    total, difference = attribution.double().sum(1), output_difference(model, case).double()
    values = total - difference
    scale = torch.stack([total, difference], 1)
    gap, detail = gap_beyond_roundoff(values.unsqueeze(1), scale, case, model)
    tol = tolerance(case.inputs)
    compared = None if gap <= tol else compared_sums(attribution, total, difference, model, case)
    return Measurement(gap, tol, values, scale, detail=detail, compared=compared)


@torch.no_grad()
def compared_sums(attribution: Tensor, total: Tensor, difference: Tensor, model: nn.Module, case: Case) -> Compared:
    """The sums beside what they should be, and beside what they are if the baseline is forgotten or another one."""
    at_input, at_baseline, at_zero = (
        explained_output(model, replace(case, inputs=inputs)).double()
        for inputs in (case.inputs, case.baseline, torch.zeros_like(case.inputs))
    )
    return Compared(
        total,
        difference,
        ("the sum of the map", "f(x) − f(baseline)"),
        map=attribution,
        mistakes={"f(x)": at_input, "f(x) − f(0)": at_input - at_zero},
        figures={"f(x)": at_input, "f(baseline)": at_baseline},
    )
