"""The last layer of a Transformer: most rows of its states are not read, and have no gradient.

What belongs here: a backward pass that skips these rows. It serves LRP and the gates; values and gradients stay as they
are, up to round-off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

MANY_ROWS = 32
"""From this number of rows on, rows are skipped. With 16 rows it gained nothing (docs/cost.md); 32 is a choice."""


def all_modules(model: nn.Module) -> list[nn.Module]:
    """The model and its submodules, each once, in the order of `nn.Module.modules`, whose recursion is slow."""
    found: dict[nn.Module, None] = {}
    pending: list[nn.Module | None] = [model]
    while pending:
        module = pending.pop()
        if module is not None and module not in found:
            found[module] = None
            pending += reversed(module._modules.values())
    return list(found)


def outermost_layers(model: nn.Module) -> nn.ModuleList | None:
    """The model's outermost first `nn.ModuleList`, the layers of a Transformer; None if it has none."""
    return next((module for module in model.modules() if isinstance(module, nn.ModuleList)), None)


@contextmanager
def following_last_layer(model: nn.Module, enter: Callable[[], None], leave: Callable[[], None]) -> Iterator[None]:
    """Within the block, call these functions before and after each forward pass of the model's last layer."""
    handles: list[Any] = []
    try:
        for layer in list(outermost_layers(model) or ())[-1:]:
            handles.append(layer.register_forward_pre_hook(lambda *_: enter()))
            handles.append(layer.register_forward_hook(lambda *_: leave()))
        yield
    finally:
        for handle in handles:
            handle.remove()


class RowSparseLinear(torch.autograd.Function):
    """A linear map whose backward pass skips rows with a zero gradient: in the last layer, most rows but one.

    What that gains stands in docs/cost.md.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The linear map, ``(…, rows, inputs)`` to ``(…, rows, outputs)``."""
        ctx.save_for_backward(weight)
        return nn.functional.linear(values, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """The gradient at the values; none at weight and bias, which are not asked for."""
        (weight,) = ctx.saved_tensors
        weight, rows = weight.to(gradient), gradient.any(-1)
        if rows.all():  # keys and values
            return gradient @ weight, None, None
        at_values = gradient.new_zeros(*gradient.shape[:-1], weight.shape[1])
        at_values[rows] = gradient[rows] @ weight
        return at_values, None, None


def row_sparse_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear` by a `RowSparseLinear`.

    By torch alone if there are few rows, or if weight or bias are computed and may need a gradient.
    """
    if input.dim() > 1 and input.shape[-2] >= MANY_ROWS and weight.is_leaf and (bias is None or bias.is_leaf):
        result: Tensor = RowSparseLinear.apply(input, weight, bias)  # type: ignore[no-untyped-call]
        return result
    return nn.functional.linear(input, weight, bias)
