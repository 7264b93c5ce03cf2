"""Determinism: the same explainer on the same model and case gives the same bits."""

from torch import nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference
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

    ``values`` is the second minus the first, ``(batch, features)``, see `measured_difference`; the tolerance is 0.
    """
    first, second = (attribution_of(explainer, model, case) for _ in range(2))
    return measured_difference(Compared(second, first, ("the second map", "the first map")), case, tol=0.0)
