"""Norms: LayerNorm and RMSNorm with their σ held constant, BatchNorm with its running statistics."""

from __future__ import annotations

import torch
from torch import Tensor

from faithcheck.explainers.lrp.modified_gradient import modified
from faithcheck.explainers.lrp.operation_call import OperationCall
from faithcheck.explainers.lrp.operations import Trait, declare
from faithcheck.explainers.lrp.rules.activations import identity_rule
from faithcheck.explainers.lrp.rules.linear_maps import linear_rule, refuse_several_operands


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


def rms_norm_rule(call: OperationCall) -> Tensor:
    """RMSNorm as the linear map x/rms(x) ⊙ γ with the mean square held constant, then Eq. 1."""
    refuse_several_operands(call)
    x, shape = call.argument(0, "input"), call.argument(1, "normalized_shape")
    gamma, eps = call.argument(2, "weight"), call.argument(3, "eps")
    square = x.detach().square().mean(tuple(range(-len(shape), 0)), keepdim=True)
    z = x * (square + (torch.finfo(x.dtype).eps if eps is None else eps)).rsqrt()
    return call.stabilised(z if gamma is None else z * gamma)


def rms_norm_module_rule(call: OperationCall) -> Tensor:
    """A module that computes RMSNorm, as the linear map x/rms(x) ⊙ γ with the mean square held constant, then Eq. 1.

    The map is diagonal, with the factors y/x: the gradient of the identity rule, at x = 0 too.
    """
    return call.stabilised(identity_rule(call))


def batch_norm_rule(call: OperationCall) -> Tensor:
    """BatchNorm with its running statistics is an affine map: Eq. 1."""
    if call.argument(5, "training", False):
        raise call.unsupported("no rule for batch statistics: call model.eval()")
    return linear_rule(call)


declare("layer_norm", rule=layer_norm_rule)
declare("rms_norm", rule=rms_norm_rule)
declare("*RMSNorm *T5LayerNorm", Trait.MODULE, rule=rms_norm_module_rule)  # transformers: one class for each family
declare("batch_norm", Trait.ABSORBS, rule=batch_norm_rule)
