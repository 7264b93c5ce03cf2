"""Completeness: an attribution sums to the difference between the outputs at the input and at the baseline.

Σᵢ aᵢ = f(x) − f(x′); Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §3.
"""

from __future__ import annotations

import torch
from torch import nn

from faithcheck.axioms.engine.axiom import axiom
from faithcheck.axioms.engine.roundoff import gap_beyond_roundoff
from faithcheck.axioms.engine.verdicts import Measurement, tolerance
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case, output_difference


@axiom("completeness", "attributions sum to f(x) − f(baseline)")
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
    return Measurement(gap, tolerance(case.inputs), values, scale, detail=detail)
