"""Implementation invariance: two models of one function get one attribution.

Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §3.
"""

from __future__ import annotations

import torch
from torch import nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.evidence import Compared
from faithcheck.axioms.measure.measured_once import once
from faithcheck.axioms.measure.roundoff import gap_beyond_roundoff
from faithcheck.axioms.measure.verdicts import Measurement, tolerance
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case


@axiom(
    "invariance",
    "two implementations of one function get one attribution",
    usual_cause=(
        "a rule depends on how the function is written, and not on its values: look at the operations in "
        "which the two models differ"
    ),
    measured_on="pairs",
    of_given_maps=True,
)
def invariance(explainer: Explainer, f: nn.Module, g: nn.Module, case: Case) -> Measurement:
    """Measure how far the attributions of two equivalent models differ.

    ``values`` is a_f − a_g, ``(batch, features)``; ``gap`` its largest entry relative to the example's largest
    attribution, in [0, 2]; an example whose attributions differ by round-off alone counts as 0, see
    `gap_beyond_roundoff`.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    left = once(explainer, f, case, lambda: attribution_of(explainer, f, case))
    right = attribution_of(explainer, g, case)
    values = left.double() - right.double()
    scale = torch.cat([left, right], 1)
    gap, detail = gap_beyond_roundoff(values, scale, case, f, g)
    compared = Compared(left, right, ("the map of f", "the map of g"))
    return Measurement(gap, tolerance(case.inputs), values, scale, detail, compared=compared)
