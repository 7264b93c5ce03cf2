"""The last layer of a Transformer: most rows of its states are not read, and have no gradient.

What belongs here: when the last layer runs. Not here: the linear maps that skip these rows in the backward pass
(`faithcheck.explainers.linear_map`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList


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
    """The model's outermost first `nn.ModuleList`, the layers of a Transformer; None if it has none.

    A parametrization of a weight is a list of modules for torch, and no layers.
    """
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return next((modules for modules in lists if not isinstance(modules, ParametrizationList)), None)


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
