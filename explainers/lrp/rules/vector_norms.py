"""Norms of vectors: the ε-rule; and vectors divided by their norm, which is held constant.

1. A norm y = ‖x‖ is positively homogeneous of degree 1: ‖αx‖ = α‖x‖ for α > 0.
2. The derivative of both sides by α, at α = 1, is Euler's theorem: Σ_i x_i ∂y/∂x_i = y.
3. So R_i = x_i (∂y/∂x_i) R / (y + ε) has the form of Eq. 1 of arXiv 2510.18810, and conserves relevance for ε → 0. For
   the Euclidean norm ∂y/∂x_i = x_i/y, and the shares are x_i²/y², those of √Σx². Derived here.
4. x/‖x‖ of n values is RMSNorm over √n. So `normalize` has RMSNorm's rule: the norm is held constant (Ali et al. 2022,
   arXiv 2202.07304). A model that writes x / ‖x‖ as two operations has a norm and a quotient, each by its own rule.
"""

import torch
from torch import Tensor

from faithcheck.explainers.lrp.operation_call import OperationCall, RuleTrait, has
from faithcheck.explainers.lrp.operations import Trait, declare
from faithcheck.explainers.lrp.rules.linear_maps import refuse_several_operands


def vector_norm_rule(call: OperationCall) -> Tensor:
    """Eq. 1 with ∂y/∂x for the weights: the plain gradient, stabilised."""
    if call.argument(1, "ord", call.kwargs.get("p")) == 0:
        raise call.unsupported("no rule for the 0-norm, which counts: it is not homogeneous")
    return call.stabilised(call.value())


@has(RuleTrait.SIGMA_CONSTANT)
def normalize_rule(call: OperationCall) -> Tensor:
    """x / max(‖x‖, eps) with the denominator held constant, then Eq. 1."""
    refuse_several_operands(call)
    x, order, axis = call.argument(0, "input"), call.argument(1, "p", 2.0), call.argument(2, "dim", 1)
    norm = torch.linalg.vector_norm(x.detach(), order, axis, keepdim=True)
    return call.stabilised(x / norm.clamp_min(call.argument(3, "eps", 1e-12)))


declare("norm linalg_vector_norm", Trait.HOMOGENEOUS, rule=vector_norm_rule)
declare("normalize", rule=normalize_rule)
