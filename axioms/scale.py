"""Scale covariance: the unit of the inputs has no influence, and the attribution has the unit of the outputs.

Inputs: Affine Scale Invariance, Friedman 2004; Sundararajan & Najmi 2020, arXiv 1908.08474. Outputs: linearity with
β = 0, Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §4.
"""

from torch import nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case
from faithcheck.models.networks.derived import GAIN, UNIT, Rescaled, affine_case


@axiom(
    "scale",
    "s·f(x/c) at c·x gets s times the attribution of f at x",
    usual_cause="a constant with a unit is in the computation: an ε, a threshold, a fixed step or fixed noise",
)
def scale(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution of s·f(x/c) at c·x is from s times that of f at x; c = 2, s = 3.

    The baseline and the replacements are inputs as well: they are multiplied by c.

    ``values`` is a(s·f(·/c), c·x) − s·a(f, x), ``(batch, features)``, see `measured_difference`.
    """
    scaled = GAIN * attribution_of(explainer, model, case).double()
    rescaled = attribution_of(explainer, Rescaled(model), affine_case(case, factor=UNIT))
    return measured_difference(
        Compared(rescaled, scaled, ("the map of s·f(x/c) at c·x", "s × the map of f at x")), case, model
    )
