"""Determinism: the same explainer on the same model and case gives the same bits."""

from __future__ import annotations

import torch
from torch import nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.evidence import Compared
from faithcheck.axioms.measure.verdicts import Measurement, relative_gap
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case


@axiom(
    "determinism",
    "the same call gives the same bits",
    usual_cause=(
        "the explainer draws random numbers without a seed of its own, leaves dropout on, or keeps "
        "something from one call to the next"
    ),
    tolerance=0.0,
)
def determinism(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far two successive attributions of one case differ.

    Torch's random state is not reset in between: an explainer that draws random numbers must fix their seed itself.

    ``values`` is the second minus the first, ``(batch, features)``; ``gap`` is its largest entry relative to the
    example's largest attribution, in [0, 2]; the tolerance is 0.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    first, second = (attribution_of(explainer, model, case).double() for _ in range(2))
    values, scale = second - first, torch.cat([first, second], 1)
    compared = Compared(second, first, ("the second map", "the first map"))
    return Measurement(relative_gap(values, scale), 0.0, values, scale, compared=compared)
