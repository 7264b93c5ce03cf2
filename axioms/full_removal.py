"""Full removal: where the output is linear in what a removal changes, an attribution is Leave-One-Out itself.

LOO_i = f(x) − f(x without i), arXiv 2510.18810, §3.1. A feature is removed by the attention mask if the case has one,
else by its baseline. Removal by the mask changes attention weights. On these models the output is linear in the one
attention's output, or in the inputs, so that an explainer that is exact for each of them is exact for the output.
Derived here. A gate in the attention that takes each row exactly without the feature claims it; LOO holds everywhere.
"""

from torch import nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case
from faithcheck.models.closed_forms import leave_one_out


def removes_otherwise(explainer: Explainer) -> str | None:
    """Why a removal that the case determines says nothing about an explainer that is set to another."""
    if getattr(explainer, "removal", None) is None:
        return None
    return "it is set to one removal; the axiom is about the removal that the case determines"


@axiom(
    "full_removal",
    "where the output is linear in what a removal changes, attributions are Leave-One-Out",
    usual_cause="a feature is removed in another way than the case says, or the map is a slope, not a difference",
    not_applicable=removes_otherwise,
    of_given_maps=True,
    subjects=("probe.affine", "probe.attention", "probe.linear"),
)
def full_removal(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far an attribution is from f(x) − f(x without i).

    ``values`` is the difference, ``(batch, features)``, see `measured_difference`.
    """
    attribution, change = attribution_of(explainer, model, case), leave_one_out(model, case)
    compared = Compared(attribution, change, ("the map", "f(x) − f(x without i)"), reference=True)
    return measured_difference(compared, case)
