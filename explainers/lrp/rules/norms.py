"""Norms: LayerNorm, GroupNorm and RMSNorm with σ held constant, BatchNorm with running statistics, ‖x‖ and x/‖x‖.

The norm y = ‖x‖ of a vector is positively homogeneous of degree 1, ‖αx‖ = α‖x‖ for α > 0. Both sides derived by α at
α = 1 are Euler's theorem, Σ_i x_i ∂y/∂x_i = y. So R_i = x_i (∂y/∂x_i) R / (y + ε) has the form of Eq. 1 of arXiv
2510.18810, and conserves relevance for ε → 0. For the Euclidean norm the shares are x_i²/y², those of √Σx². Derived
here. A model that writes x / ‖x‖ as two operations has a norm and a quotient, each by its own rule.
"""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from faithcheck.explainers.lrp.modified_gradient import modified
from faithcheck.explainers.lrp.operation_call import OperationCall, RuleTrait, has
from faithcheck.explainers.lrp.operations import Trait, declare
from faithcheck.explainers.lrp.rules.activations import identity_rule
from faithcheck.explainers.lrp.rules.linear_maps import refuse_several_operands


@has(RuleTrait.SIGMA_CONSTANT)
def layer_norm_rule(call: OperationCall) -> Tensor:
    """LayerNorm as the linear map (x − mean x)/σ ⊙ γ + β with σ held constant (Ali et al. 2022), then Eq. 1."""
    refuse_several_operands(call)
    x, shape = call.argument(0, "input"), call.argument(1, "normalized_shape")
    gamma, beta = call.argument(2, "weight"), call.argument(3, "bias")
    value, _, inverse_sigma = torch.native_layer_norm(x.detach(), shape, gamma, beta, call.argument(4, "eps", 1e-5))
    axes = tuple(range(-len(shape), 0))

    def gradient(at_value: Tensor) -> Tensor:
        scaled = at_value if gamma is None else at_value * gamma
        return (scaled - scaled.mean(axes, keepdim=True)).mul_(inverse_sigma)

    return call.stabilised(modified(x, value, gradient))


@has(RuleTrait.SIGMA_CONSTANT)
def group_norm_rule(call: OperationCall) -> Tensor:
    """GroupNorm as LayerNorm of each group of channels, with σ held constant, then Eq. 1."""
    refuse_several_operands(call)
    x, groups = call.argument(0, "input"), call.argument(1, "num_groups")
    grouped = x.reshape(len(x), groups, -1)
    centred = grouped - grouped.mean(-1, keepdim=True)
    variance = centred.detach().square().mean(-1, keepdim=True)
    z = (centred * (variance + call.argument(4, "eps", 1e-5)).rsqrt()).view_as(x)
    gamma, beta = (
        None if c is None else c.view(-1, *(1,) * (x.dim() - 2))
        for c in (call.argument(2, "weight"), call.argument(3, "bias"))
    )
    z = z if gamma is None else z * gamma
    return call.stabilised(z if beta is None else z + beta)


@has(RuleTrait.SIGMA_CONSTANT)
def rms_norm_rule(call: OperationCall) -> Tensor:
    """RMSNorm as the linear map x/rms(x) ⊙ γ with the mean square held constant, then Eq. 1."""
    refuse_several_operands(call)
    x, shape = call.argument(0, "input"), call.argument(1, "normalized_shape")
    gamma, eps = call.argument(2, "weight"), call.argument(3, "eps")
    square = x.detach().square().mean(tuple(range(-len(shape), 0)), keepdim=True)
    z = x * (square + (torch.finfo(x.dtype).eps if eps is None else eps)).rsqrt()
    return call.stabilised(z if gamma is None else z * gamma)


@has(RuleTrait.IDENTITY)
def rms_norm_module_rule(call: OperationCall) -> Tensor:
    """A module that computes RMSNorm, as the linear map x/rms(x) ⊙ γ with the mean square held constant, then Eq. 1.

    The map is diagonal, with the factors y/x: the gradient of the identity rule, at x = 0 too. A module that returns
    1/rms(x) alone, one number a row, returns what is held constant.
    """
    value, (x,) = call.value(), call.operands_with_relevance()
    if value.shape == (*x.shape[:-1], 1):
        statistic: Tensor = value.detach()
        return statistic
    return call.stabilised(identity_rule(call))


def batch_norm_rule(call: OperationCall) -> Tensor:
    """BatchNorm with its running statistics is an affine map: Eq. 1.

    It is computed as one, x ⊙ γ/√(var + eps) + …: torch's own gradient (2.13, CPU) is wrong for a batch of one example
    whose channels lie next to each other in memory.
    """
    refuse_several_operands(call)
    if call.argument(5, "training", False):
        raise call.unsupported("no rule for batch statistics: call model.eval()")
    x, mean, variance = (call.argument(i, name) for i, name in enumerate(("input", "running_mean", "running_var")))
    gamma, beta = call.argument(3, "weight"), call.argument(4, "bias")
    factor = (variance + call.argument(7, "eps", 1e-5)).rsqrt() * (1 if gamma is None else gamma)
    offset = (0 if beta is None else beta) - mean * factor
    channels = (-1, *(1,) * (x.dim() - 2))
    return call.stabilised(x * factor.view(channels) + offset.view(channels))


def variance_rule(call: OperationCall) -> Callable[[], Tensor]:
    """The variance as the mean of (x − mean x)², by operations that each have their own rule."""
    x, axes = call.argument(0, "input"), call.argument(1, "dim")
    if axes is None or isinstance(axes, bool):
        raise call.unsupported("no rule for the variance of all values: name its axes, dim=…")
    correction = call.kwargs.get("correction", int(call.argument(2, "unbiased", True)))
    count = prod(x.shape[axis] for axis in (axes if isinstance(axes, list | tuple) else (axes,)))

    def steps() -> Tensor:
        squares = (x - x.mean(axes, keepdim=True)).square()
        variance: Tensor = squares.sum(axes, keepdim=bool(call.argument(3, "keepdim", False))) / (count - correction)
        return variance

    return steps


def vector_norm_rule(call: OperationCall) -> Tensor:
    """Eq. 1 with ∂y/∂x for the weights: the plain gradient, stabilised."""
    if call.argument(1, "ord", call.kwargs.get("p")) == 0:
        raise call.unsupported("no rule for the 0-norm, which counts: it is not homogeneous")
    return call.stabilised(call.value())


@has(RuleTrait.SIGMA_CONSTANT)
def normalize_rule(call: OperationCall) -> Tensor:
    """x / max(‖x‖, eps), which is RMSNorm over √n of n values: the denominator is held constant, then Eq. 1."""
    refuse_several_operands(call)
    x, order, axis = call.argument(0, "input"), call.argument(1, "p", 2.0), call.argument(2, "dim", 1)
    norm = torch.linalg.vector_norm(x.detach(), order, axis, keepdim=True)
    return call.stabilised(x / norm.clamp_min(call.argument(3, "eps", 1e-12)))


declare("layer_norm", rule=layer_norm_rule)
declare("group_norm", rule=group_norm_rule)
declare("var", rule=variance_rule)
declare("rms_norm", rule=rms_norm_rule)
declare("*RMSNorm *T5LayerNorm", Trait.MODULE, rule=rms_norm_module_rule)  # transformers: one class for each family
declare("batch_norm", Trait.ABSORBS, rule=batch_norm_rule)
declare("norm linalg_vector_norm", Trait.HOMOGENEOUS, rule=vector_norm_rule)
declare("normalize", rule=normalize_rule)
