"""Weights that accelerate offloads: on the device ``meta``, without values, but while their module runs.

`accelerate.dispatch_model` and ``device_map="auto"`` replace each module's ``forward``: it brings the weights from the
CPU's memory or the disk as new tensors, and puts tensors without values in their place when the module has run. Where
the values are is read from accelerate's hooks, without importing accelerate.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn


def offloading_hook(module: nn.Module) -> Any:
    """The hook by which accelerate offloads the weights of a module; None if it does not."""
    hook = module.__dict__.get("_hf_hook")
    if hook is None:
        return None
    return next((single for single in getattr(hook, "hooks", (hook,)) if getattr(single, "offload", False)), None)


def offloading_hooks(model: nn.Module) -> Iterator[tuple[str, nn.Module, Any]]:
    """The modules whose weights accelerate offloads: the name, the module, and accelerate's hook."""
    for name, module in model.named_modules():
        if (hook := offloading_hook(module)) is not None:
            yield name, module, hook


def weights_of(module: nn.Module, hook: Any) -> Iterator[tuple[str, Tensor]]:
    """The parameters and buffers that the hook of a module offloads, by their names in the module."""
    yield from module.named_parameters(recurse=hook.place_submodules)
    yield from module.named_buffers(recurse=hook.place_submodules)


def offloaded_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights that have no values now, by name: the tensors that accelerate keeps, or those on the disk, read."""
    found = {}
    for name, module, hook in offloading_hooks(model):
        for key, weight in weights_of(module, hook):
            if weight.is_meta:
                found[f"{name}.{key}".removeprefix(".")] = hook.weights_map[key]
    return found


def with_values(model: nn.Module, named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Weights by name, and in the place of each that is offloaded what accelerate keeps of it."""
    weights, kept = dict(named), offloaded_weights(model)
    return {name: kept.get(name, weight) for name, weight in weights.items()}


def offload_again(model: nn.Module) -> None:
    """Take away the weights of modules whose forward pass was interrupted, as accelerate does after one that ends."""
    for _, module, hook in offloading_hooks(model):
        if not all(weight.is_meta for weight in module.parameters(recurse=hook.place_submodules)):
            hook.post_forward(module, None)


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's first weight; if that is offloaded, the one where accelerate brings it."""
    device = next(model.parameters()).device
    executing = (torch.device(hook.execution_device) for _, _, hook in offloading_hooks(model))
    return next(executing, device) if device.type == "meta" else device
