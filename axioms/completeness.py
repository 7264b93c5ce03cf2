"""Completeness: an attribution sums to what the features add to the output over the baseline.

Σᵢ aᵢ = f(x) − f(x′); Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §3.
"""

from __future__ import annotations

import torch
from torch import nn

from faithcheck.axioms.engine.verdicts import Measurement, relative_gap, tolerance
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case, output_difference


def completeness(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far an attribution's sum is from the change of the explained output.

    ``values`` is Σᵢ aᵢ − (f(x) − f(x′)), ``(batch,)``; ``gap`` is relative to the larger of the two sides, in [0, 2].

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    attribution = attribution_of(explainer, model, case)
    total, added = attribution.double().sum(1), output_difference(model, case).double()
    values = total - added
    scale = torch.stack([total, added], 1)
    return Measurement(relative_gap(values, scale), tolerance(case.inputs), values, scale)
