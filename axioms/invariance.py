"""Implementation invariance: two models of one function get one attribution.

Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §3.
"""

from torch import nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference
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
    """Measure how far the attributions of two equivalent models differ, see `measured_difference`."""
    left, right = attribution_of(explainer, f, case), attribution_of(explainer, g, case)
    return measured_difference(Compared(left, right, ("the map of f", "the map of g")), case, f, g)
