"""Continuity in ε: LRP without a stabiliser gives the limit ε → 0 of LRP with one.

The stabiliser scales the gradient at z by |z|/(parts·|z| + ε) (arXiv 2510.18810, Eqs. 1, 3 and 4). If z is not 0, this
is 1/parts to round-off for every ε below |z| times the unit round-off; if z = 0, it is 0 for every ε. So the map at the
smallest normal ε of the type is the limit, and nothing has to be extrapolated. Derived here; what faithcheck does at
z = 0 is in docs/explanation/epsilon.md.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case


def no_limit(explainer: Explainer) -> str | None:
    """Why an explainer is not the limit of others; None for LRP with ε = 0."""
    epsilon = getattr(explainer, "epsilon", None)
    if epsilon is None:
        return "it has no stabiliser ε"
    return None if epsilon == 0 else f"its ε is {epsilon:g}, and not the limit ε → 0"


@axiom(
    "continuity",
    "ε = 0 gives the limit ε → 0",
    usual_cause="a value that a rule divides by is exactly 0, and the rule for ε = 0 passes something on there",
    measured_on="pairs",
    not_applicable=no_limit,
    subjects=(
        *("activation.*", "control.*", "degree.*", "kernel_attention.*", "linear_attention.*"),
        *("log_sum_exp.*", "no_op.*", "norm.*", "online_softmax.*", "probe.*", "product.*", "relu.*", "softmax.*"),
    ),
)
def continuity(explainer: Any, f: nn.Module, g: nn.Module, case: Case) -> Measurement:
    """Measure how far the attributions of both models with ε = 0 are from those with the smallest ε.

    ``values`` is the first minus the second, ``(batch, 2 · features)`` of f and then of g, see `measured_difference`.
    """
    smallest = replace(explainer, epsilon=torch.finfo(case.inputs.dtype).tiny)
    limit, stabilised = (
        torch.cat([attribution_of(one, model, case) for model in (f, g)], 1) for one in (explainer, smallest)
    )
    return measured_difference(Compared(limit, stabilised, ("the map with ε = 0", "the map with the smallest ε")), case)
