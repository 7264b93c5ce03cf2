"""Weights of 8 bits: each row of a linear map holds whole numbers from −128 to 127, times a step of its own.

Weight-only quantisation puts the weights of each `nn.Linear` on such a grid (per-channel symmetric: Krishnamoorthi
2018, arXiv 1806.08342, §2). A row's step is its largest weight over 127.5, as in torchao's ``Int8WeightOnlyConfig``.
The grid's numbers keep the model's type, which changes round-off alone and needs no package and no class of tensors.
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
    each pass, as by `torch.nn.utils.parametrize`; nor weights that a library quantised.
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
    """Replace the weights of each linear map, ``(outputs, inputs)``, by numbers of the grid, in place.

    ``whole`` makes whole numbers of weights counted in steps; those beyond the grid are moved to its border. A weight
    shared with an embedding is replaced in the linear map alone.
    """
    for module in linear_maps(model):
        weights = module.weight.detach()
        step = steps(weights).to(weights)
        on_grid = whole(weights * (1 / step)).clamp(LOWEST, HIGHEST) * step
        module.weight = nn.Parameter(on_grid.to(weights), module.weight.requires_grad)


def steps(weights: Tensor) -> Tensor:
    """Each row's step, ``(outputs, 1)`` float32; for a row of zeros float32's unit round-off, as in torchao."""
    largest = weights.float().abs().amax(1, keepdim=True)
    return (largest / ((HIGHEST - LOWEST) / 2)).clamp(min=torch.finfo(torch.float32).eps)
