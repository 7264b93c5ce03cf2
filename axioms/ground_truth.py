"""Ground truth: on a model whose right attribution is known, the attribution is that one.

The right attribution is the Shapley value of removal, see `faithcheck.models.known_answer`, which has its sources.
"""

from torch import nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference, nothing_to_measure
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

    ``values`` is the attribution minus the right one, ``(batch, features)``, see `measured_difference`; ``gap`` is None
    where the right attribution of the model is not known.
    """
    attribution = attribution_of(explainer, model, case)
    if not isinstance(model, KnownAnswer):
        return nothing_to_measure(case, "the right attribution of this model is not known: register it by known_answer")
    compared = Compared(attribution, model.right_attribution(case), ("the map", "the right map"), reference=True)
    return measured_difference(compared, case, model, detail={"why it is right": model.why})
