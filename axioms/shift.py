"""Input-shift invariance: f at x and f(· − c) at x + c get one attribution.

Kindermans et al. 2017, arXiv 1711.00867; with a baseline, half of the Affine Scale Invariance of Sundararajan &
Najmi 2020, arXiv 1908.08474.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from faithcheck.axioms.engine.verdicts import Measurement, relative_gap, tolerance
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case
from faithcheck.models.networks.derived import SHIFT, Shifted, affine_case


def shift(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far an attribution changes when inputs and model are shifted against each other, by c = 1.

    The baseline, and whatever else a removed feature can become, is an input as well and shifts with the inputs.
    ``detail["gap, baseline fixed"]`` is the gap where it does not, as Kindermans et al. have it for a zero
    baseline: there the question has changed, and whoever answers it relative to the baseline answers otherwise.

    ``values`` is a(f(· − c), x + c) − a(f, x), ``(batch, features)``; ``gap`` is its largest entry relative to the
    example's largest attribution, in [0, 2].

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    here, there = attribution_of(explainer, model, case).double(), affine_case(case, offset=SHIFT)

    def compared(shifted: Case) -> tuple[Tensor, Tensor]:
        attribution = attribution_of(explainer, Shifted(model), shifted).double()
        return attribution - here, torch.cat([attribution, here], 1)

    values, scale = compared(there)
    fixed = relative_gap(*compared(replace(there, baseline=case.baseline, replacements=case.replacements)))
    return Measurement(
        relative_gap(values, scale), tolerance(case.inputs), values, scale, {"gap, baseline fixed": fixed}
    )
