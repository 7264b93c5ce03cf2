"""Quantised weights: some products with them are computed without a gradient.

The gradient then lacks every path through them, without an error: where a residual connection leads around them, a map
made from it looks like any other.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from faithcheck.explainers.linear_map import is_plain

COARSE = 2**-5
"""The largest error of a sum in bfloat16, relative to what is added; a missing gradient errs by all of it."""


def quantised_weights(module: nn.Module) -> str | None:
    """A reason to refuse a module: its quantised weights, if products with them have no gradient.

    Those are quantised modules of torch, and weights of torchao that round the inputs to whole numbers, too. Weights of
    torchao that leave the inputs as they are have the right gradient, and are not refused.
    """
    weight = module._parameters.get("weight")
    of_torch = type(module).__module__.startswith("torch.ao.nn.quantized")
    if of_torch or (weight is not None and is_of_torchao(weight) and not has_gradient(weight)):
        return (
            "has quantised weights, which have no gradient: explain the model that it was made from, or use "
            "Leave-One-Out"
        )
    return None


def parts_of(tensor: Tensor) -> list[Tensor]:
    """The tensors that a tensor of a class of its own is made of, which can be compared; of any other, itself."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    return [tensor] if flatten is None else [part for name in flatten()[0] for part in parts_of(getattr(tensor, name))]


def is_of_torchao(weight: Tensor) -> bool:
    """Whether a weight is of a class of torchao, which is not imported for that."""
    if is_plain(weight):  # asked first: each attribution looks at every module
        return False
    return any(kind.__module__.partition(".")[0] == "torchao" for kind in type(weight).__mro__)


def has_gradient(weight: Tensor) -> bool:
    """Whether the linear map of a weight ``(outputs, inputs)`` has a gradient: that of Σ Wx at x = 1 sums up to Σ W."""
    if weight.dim() != 2:
        return False
    with torch.enable_grad():
        ones = torch.ones(1, weight.shape[1], dtype=weight.dtype, device=weight.device, requires_grad=True)
        total = linear(ones, weight).sum()
        (gradient,) = torch.autograd.grad(total, ones, allow_unused=True) if total.requires_grad else (None,)
        return gradient is not None and bool((gradient.sum() - total).abs() <= COARSE * gradient.abs().sum())
