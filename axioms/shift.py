"""Input-shift invariance: f at x and f(· − c) at x + c get one attribution.

Kindermans et al. 2017, arXiv 1711.00867. With a baseline that shifts too, it is the shift in the Affine Scale
Invariance of Sundararajan & Najmi 2020, arXiv 1908.08474.
"""

from dataclasses import replace

from torch import nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case
from faithcheck.models.networks.derived import SHIFT, Shifted, affine_case


@axiom(
    "shift",
    "f(x − c) at x + c gets the attribution of f at x",
    usual_cause="the map multiplies by the input in place of the input minus the baseline",
)
def shift(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far an attribution changes if the inputs are shifted by c = 1 and the model subtracts c again.

    The baseline and the replacements are inputs as well and shift with the inputs.
    ``detail["gap, baseline fixed"]`` is the gap if they do not, as in Kindermans et al. for a zero baseline. This
    changes the question: an explainer that answers relative to the baseline gives another answer.

    ``values`` is a(f(· − c), x + c) − a(f, x), ``(batch, features)``, see `measured_difference`.
    """
    original, shifted_case = attribution_of(explainer, model, case), affine_case(case, offset=SHIFT)
    baseline_fixed = replace(shifted_case, baseline=case.baseline, replacements=case.replacements)
    of_shifted, of_fixed = (
        Compared(
            attribution_of(explainer, Shifted(model), shifted), original, ("the map of the shifted inputs", "the map")
        )
        for shifted in (shifted_case, baseline_fixed)
    )
    fixed = measured_difference(of_fixed, case).gap
    return measured_difference(of_shifted, case, model, detail={"gap, baseline fixed": fixed})
