"""Weights of 8 bits: each row of a linear map holds whole numbers from −128 to 127, times a step of its own.

This is what weight-only quantisation does to a model: the weights of each `nn.Linear` lie on a grid, all else stays
floating point (per-channel symmetric quantisation: Krishnamoorthi 2018, arXiv 1806.08342, §2). The step of a row is its
largest weight divided by 127.5, as in torchao's ``Int8WeightOnlyConfig``.

The numbers of the grid are held in the type of the model. So it computes what it computes with weights stored as int8,
up to the round-off of that type, and needs neither a package nor a class of tensors.
"""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

LOWEST, HIGHEST = -128, 127
"""The least and the largest whole number of the grid."""


def linear_maps(model: nn.Module) -> list[nn.Linear]:
    """The modules whose weights are quantised: each `nn.Linear` that holds real weights of its own.

    Not the output of `nn.MultiheadAttention`, whose weights that module reads itself; nor weights that are computed in
    each pass, such as those of `torch.nn.utils.parametrize`; nor weights that a library quantised.
    """

    def has_weights(module: nn.Linear) -> bool:
        weight = module._parameters.get("weight")
        return type(weight) is nn.Parameter and weight.is_floating_point() and weight.numel() > 0

    found = [module for module in model.modules() if isinstance(module, nn.Linear) and has_weights(module)]
    return [module for module in found if not isinstance(module, NonDynamicallyQuantizableLinear)]


def quantised(model: nn.Module) -> nn.Module:
    """A copy of a model in float32 where each weight of a linear map is the nearest number of its row's grid."""
    copied = deepcopy(model).to(torch.float32)
    put_on_grid(copied, torch.round)
    return copied


def put_on_grid(model: nn.Module, whole: Callable[[Tensor], Tensor]) -> None:
    """Replace the weights of each linear map of a model by numbers of the grid.

    Args:
        model: is written to. A weight that it shares with an embedding is replaced in the linear map alone.
        whole: makes whole numbers of the weights, counted in steps: ``(outputs, inputs)`` to the same shape. Those
            beyond the grid are moved to its border.
    """
    for module in linear_maps(model):
        weights = module.weight.detach()
        step = steps(weights).to(weights)
        on_grid = whole(weights * (1 / step)).clamp(LOWEST, HIGHEST) * step
        module.weight = nn.Parameter(on_grid.to(weights), module.weight.requires_grad)


def steps(weights: Tensor) -> Tensor:
    """The distance of two numbers of the grid, in each row: ``(outputs, inputs)`` to ``(outputs, 1)``, in float32.

    That of a row of zeros is the unit round-off of float32, as in torchao, so that nothing is divided by 0.
    """
    largest = weights.float().abs().amax(1, keepdim=True)
    return (largest / ((HIGHEST - LOWEST) / 2)).clamp(min=torch.finfo(torch.float32).eps)
