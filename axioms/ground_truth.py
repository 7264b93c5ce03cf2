"""Ground truth: on a model whose right attribution is known, the attribution is that one.

The right attribution is the Shapley value of removal, see `faithcheck.models.known_answer`, which has its sources.
"""

from __future__ import annotations

import torch
from torch import nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.evidence import Compared
from faithcheck.axioms.measure.roundoff import gap_beyond_roundoff
from faithcheck.axioms.measure.verdicts import Measurement, tolerance
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case
from faithcheck.models.known_answer import KnownAnswer


@axiom(
    "ground_truth",
    "on a model built by hand, the attribution is the one that is known to be right",
    usual_cause=(
        "features that act together are treated one at a time, the output is flat at the inputs, or a feature that is "
        "absent gets nothing"
    ),
    of_given_maps=True,
)
def ground_truth(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far an attribution is from the right one.

    ``values`` is the attribution minus the right one, ``(batch, features)``; ``gap`` is its largest entry relative to
    the example's largest entry of either map, in [0, 2], beyond round-off, see `gap_beyond_roundoff`; None of a model
    whose right attribution is not known.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    attribution = attribution_of(explainer, model, case).double()
    tol = tolerance(case.inputs)
    if not isinstance(model, KnownAnswer):
        reason = "the right attribution of this model is not known: register it by known_answer"
        return Measurement(None, tol, attribution, detail={"reason": reason})
    right = model.right_attribution(case).double()
    values, scale = attribution - right, torch.cat([attribution, right], 1)
    gap, detail = gap_beyond_roundoff(values, scale, case, model)
    compared = Compared(attribution, right, ("the map", "the right map"))
    return Measurement(gap, tol, values, scale, {"why it is right": model.why, **detail}, compared=compared)
