"""Activations and other functions of one value: the identity rule."""

from math import isfinite

import torch
from torch import Tensor

from faithcheck.explainers.lrp.modified_gradient import modified
from faithcheck.explainers.lrp.operation_call import OperationCall, RuleTrait, has
from faithcheck.explainers.lrp.operations import Trait, declare


@has(RuleTrait.IDENTITY)
def identity_rule(call: OperationCall) -> Tensor:
    """An element-wise function of one operand: R_x = R_f(x), so the gradient is f(x)/x.

    At x = 0 the gradient is f′(0), the limit if f(0) = 0. If f(0) ≠ 0 (a sigmoid, an exponential), f(x)/x has a pole,
    and x = 0 can carry no relevance: the function absorbs it, as a bias does, and the gradient is 0, as for ε → 0.
    """
    if len(call.operands_with_relevance()) != 1:
        raise call.unsupported("no rule for several operands that carry relevance")
    if call.kwargs.get("inplace"):
        raise call.unsupported("no rule for an activation that overwrites its input: set inplace=False")
    (x,) = call.operands_with_relevance()
    value = call.value()
    ratio = value.detach() / x.detach()
    if not isfinite(ratio.sum()) and (zero := x.detach() == 0).any():
        (slope,) = torch.autograd.grad(value.sum(), x)
        if not slope[zero].isfinite().all():
            raise call.unsupported("no rule for a function whose slope at 0 is infinite")
        ratio = torch.where(zero, slope.masked_fill(value.detach() != 0, 0), ratio)
    return modified(x, value, lambda gradient: gradient * ratio)


FUNCTIONS = (
    *("gelu", "silu", "mish", "tanh", "sigmoid", "log_sigmoid", "softplus", "softsign", "elu", "selu", "celu"),
    *("hardtanh", "hardsigmoid", "hardswish", "relu6", "clamp", "clamp_min", "clamp_max", "erf"),
    *("exp", "expm1", "log", "log1p", "pow", "rpow", "special_ndtr"),
)
declare(" ".join(FUNCTIONS), Trait.ONE_VALUE, rule=identity_rule)
declare("leaky_relu", Trait.ONE_VALUE, Trait.HOMOGENEOUS, rule=identity_rule)
for _name, _power in {"square": 2.0, "sqrt": 1 / 2, "rsqrt": -1 / 2, "reciprocal": -1.0}.items():
    declare(_name, Trait.ONE_VALUE, rule=identity_rule, power=_power)

WRITTEN_OUT_BY_TRANSFORMERS = (
    *("GELUTanh", "NewGELUActivation", "GELUActivation", "FastGELUActivation", "QuickGELUActivation"),
    *("AccurateGELUActivation", "ClippedGELUActivation", "MishActivation", "LaplaceActivation"),
    *("ReLUSquaredActivation", "SqrtSoftplusActivation", "BloomGelu"),
)
"""Modules of `transformers` that compute an activation by several operations; each is treated as one operation."""
declare(" ".join(WRITTEN_OUT_BY_TRANSFORMERS), Trait.ONE_VALUE, Trait.MODULE, rule=identity_rule)
