"""Completeness: an attribution sums to the difference between the outputs at the input and at the baseline.

Σᵢ aᵢ = f(x) − f(x′); Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §3.
"""

from dataclasses import replace

import torch
from torch import nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference
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

    ``values`` is Σᵢ aᵢ − (f(x) − f(x′)), ``(batch,)``, see `measured_difference`: either side may cancel.
    """
    attribution = attribution_of(explainer, model, case)
    total, difference = attribution.double().sum(1), output_difference(model, case)
    compared = Compared(
        total, difference, ("the sum of the map", "f(x) − f(baseline)"), map=attribution, reference=True
    )
    measured = measured_difference(compared, case, model)
    if measured.gap is not None and measured.gap <= measured.tol:
        return measured
    return replace(measured, compared=with_mistakes(compared, model, case))


@torch.no_grad()
def with_mistakes(compared: Compared, model: nn.Module, case: Case) -> Compared:
    """The sums, with what they are if the baseline is forgotten, or if it is 0 instead of that of the case."""
    at_input, at_baseline, at_zero = (
        explained_output(model, replace(case, inputs=inputs)).double()
        for inputs in (case.inputs, case.baseline, torch.zeros_like(case.inputs))
    )
    return replace(
        compared,
        mistakes={"f(x)": at_input, "f(x) − f(0)": at_input - at_zero},
        figures={"f(x)": at_input, "f(baseline)": at_baseline},
    )
