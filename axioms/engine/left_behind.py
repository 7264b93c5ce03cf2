"""What a block of code leaves behind on models and in the process: it is found, reported and undone.

Compared before and after the block:

* of the models: train mode, hooks, weights, buffers, ``requires_grad``, ``.grad``, submodules, methods, and the methods
  of their classes;
* of the process: the random states of torch, NumPy and Python; torch's settings, hooks, functions and function modes.

Every change is undone, so that it reaches no later check.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

RANDOM = "random state"
TRANSFORMERS_HOOKS = "_output_capturing_hooks_installed"
"""The attribute by which transformers remembers that it put its hooks on a module, at first use."""

SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "gradient mode": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "anomaly mode": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "deterministic algorithms": (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda before: torch.use_deterministic_algorithms(before[0], warn_only=before[1]),
    ),
    "autocast": (lambda: torch.is_autocast_enabled("cpu"), partial(torch.set_autocast_enabled, "cpu")),
    "autocast of CUDA": (lambda: torch.is_autocast_enabled("cuda"), partial(torch.set_autocast_enabled, "cuda")),
    "cuDNN benchmark": (
        lambda: torch.backends.cudnn.benchmark,
        lambda before: setattr(torch.backends.cudnn, "benchmark", before),
    ),
    "cuDNN deterministic": (
        lambda: torch.backends.cudnn.deterministic,
        lambda before: setattr(torch.backends.cudnn, "deterministic", before),
    ),
    "flash attention": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    "memory-efficient attention": (
        torch.backends.cuda.mem_efficient_sdp_enabled,
        torch.backends.cuda.enable_mem_efficient_sdp,
    ),
    "attention written out": (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    "float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "threads": (torch.get_num_threads, torch.set_num_threads),
}
"""Torch's settings, each with how to read and how to set it."""


@dataclass(frozen=True)
class Snapshot:
    """The state before the block of one thing that an explainer could change.

    Attributes:
        kind: the name of such a change in reports, such as "train mode".
        changes: the places where the state is different now; empty if it is unchanged.
        restore: puts the state back.
    """

    kind: str
    changes: Callable[[], Sequence[str]]
    restore: Callable[[], object]


@contextmanager
def restored(*models: nn.Module) -> Iterator[list[str]]:
    """Run a block, then find what it left behind on the models and in the process, and undo it, also on an exception.

    Yields:
        The traces, a line for each kind; the list is filled when the block has ended.
    """
    snapshots = [*_of_process(), *(snapshot for model in models for snapshot in _of_model(model))]
    left_behind: list[str] = []
    try:
        yield left_behind
    finally:
        places: dict[str, list[str]] = {}
        for snapshot in snapshots:
            if changes := snapshot.changes():
                places.setdefault(snapshot.kind, []).extend(changes)
                snapshot.restore()
        left_behind.extend(_line(kind, where) for kind, where in places.items())


def _of_process() -> Iterator[Snapshot]:
    yield _modes()  # first: a function mode that was left behind would intercept the calls below
    for name, space in vars(torch_module).items():
        if name.startswith("_global_") and isinstance(space, dict):
            yield _entries("global hooks", name, space)
    for owner in (torch, torch.nn.functional, Tensor):
        yield _methods("patched functions", owner.__name__, owner, new=False)
    for kind, (read, put) in {**SETTINGS, **_random_states()}.items():
        yield _value(kind, "", read, put)


def _of_model(model: nn.Module) -> Iterator[Snapshot]:
    for name, module in model.named_modules():
        where = name or type(model).__name__
        yield _value("train mode", where, partial(getattr, module, "training"), partial(setattr, module, "training"))
        yield _methods("patched methods", where, module, new=True)
        yield _attributes(where, module)
        # Removed together with the hooks themselves: otherwise transformers would never install them again.
        read = partial(vars(module).get, TRANSFORMERS_HOOKS)
        yield _value("hooks of transformers", where, read, partial(_set_transformers_hooks, module))
        for key, space in vars(module).items():
            if isinstance(space, dict) and "_hooks" in key:
                yield _entries("hooks", where, space)
            elif key in ("_parameters", "_buffers", "_modules"):
                yield _entries(f"replaced {key[1:]}", where, space)
    for owner in {owner for module in model.modules() for owner in type(module).__mro__ if owner is not object}:
        yield _methods("patched classes", owner.__name__, owner, new=True)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        yield _weights(name, tensor)
        yield _tensor_hooks(name, tensor)
        yield _gradient(name, tensor)
        yield _value("requires_grad", name, partial(getattr, tensor, "requires_grad"), tensor.requires_grad_)


def _value(kind: str, where: str, read: Callable[[], Any], put: Callable[[Any], object]) -> Snapshot:
    """A value that can be read, compared and set."""
    before = read()
    return Snapshot(kind, lambda: [] if _equal(read(), before) else [where], lambda: put(before))


def _entries(kind: str, where: str, entries: dict[Any, Any]) -> Snapshot:
    """The entries of a dictionary, compared by identity."""
    before = dict(entries)

    def changes() -> list[str]:
        same = entries.keys() == before.keys() and all(entries[key] is value for key, value in before.items())
        return [] if same else [where]

    def restore() -> None:
        entries.clear()
        entries.update(before)

    return Snapshot(kind, changes, restore)


def _methods(kind: str, where: str, owner: object, *, new: bool) -> Snapshot:
    """The functions of a module, class or object; with ``new``, functions that are added count too."""

    def functions() -> dict[str, Any]:
        # Submodules have snapshots of their own, and torch.Storage follows the default dtype.
        callables = [(key, value) for key, value in vars(owner).items() if callable(value) and key != "Storage"]
        return {key: value for key, value in callables if not isinstance(value, nn.Module)}

    return _names(kind, where, owner, functions, lambda key, value: True, new=new)


def _attributes(where: str, module: nn.Module) -> Snapshot:
    """A module's public attributes: tensors that are replaced, and attributes that are added.

    Private attributes are left alone: transformers keeps caches in them.
    """

    def attributes() -> dict[str, Any]:
        values = vars(module).items()
        return {key: value for key, value in values if not key.startswith("_") and not callable(value)}

    return _names("attributes", where, module, attributes, lambda key, value: isinstance(value, Tensor), new=True)


def _names(
    kind: str,
    where: str,
    owner: object,
    read: Callable[[], dict[str, Any]],
    compared: Callable[[str, Any], bool],
    *,
    new: bool,
) -> Snapshot:
    """The objects under an owner's names: those that ``compared`` selects, and with ``new`` names that are added."""
    before = read()

    def changed_names() -> list[str]:
        now = read()
        changed = [key for key, value in before.items() if compared(key, value) and now.get(key) is not value]
        return sorted([*changed, *(now.keys() - before.keys())]) if new else changed

    def restore() -> None:
        for key in changed_names():
            if key in before:
                setattr(owner, key, before[key])
            else:
                delattr(owner, key)

    return Snapshot(kind, lambda: [f"{where}.{key}" for key in changed_names()], restore)


def _set_transformers_hooks(module: nn.Module, value: object) -> None:
    if value is None:
        vars(module).pop(TRANSFORMERS_HOOKS, None)
    else:
        vars(module)[TRANSFORMERS_HOOKS] = value


def _tensor_hooks(where: str, tensor: Tensor) -> Snapshot:
    before = dict(tensor._backward_hooks or {})

    def restore() -> None:
        hooks = tensor._backward_hooks
        if hooks is not None:
            hooks.clear()
            hooks.update(before)

    def changes() -> list[str]:
        return [] if dict(tensor._backward_hooks or {}) == before else [where]

    return Snapshot("hooks of tensors", changes, restore)


def _weights(where: str, tensor: Tensor) -> Snapshot:
    before = tensor.detach().clone()

    def restore() -> None:
        tensor.data = before

    return Snapshot("weights", lambda: [] if _equal(tensor.detach(), before) else [where], restore)


def _gradient(where: str, tensor: Tensor) -> Snapshot:
    before = None if tensor.grad is None else tensor.grad.detach().clone()

    def restore() -> None:
        tensor.grad = before

    return Snapshot(".grad", lambda: [] if _equal(tensor.grad, before) else [where], restore)


def _equal(a: Any, b: Any) -> bool:
    """Equality of tensors, of arrays, of tuples and lists of them, and of all other values by ``==``."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        alike = a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
        return alike and torch.equal(a, b)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b)
    return bool(a == b)


def _random_states() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    states: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        f"{RANDOM} of torch": (torch.get_rng_state, torch.set_rng_state),
        f"{RANDOM} of NumPy": (partial(np.random.get_state, legacy=True), np.random.set_state),
        f"{RANDOM} of Python": (random.getstate, random.setstate),
    }
    if torch.cuda.is_available():
        states[f"{RANDOM} of CUDA"] = (torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all)
    return states


def _modes() -> Snapshot:
    """The function modes that are active; a default device is one of them."""
    overrides, device_holder = cast(Any, torch.overrides), cast(Any, torch._GLOBAL_DEVICE_CONTEXT)
    stack: Callable[[], list[Any]] = overrides._get_current_function_mode_stack
    before, device = stack(), getattr(device_holder, "device_context", None)

    def changes() -> list[str]:
        now = stack()
        same = len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))
        return [] if same else [", ".join(type(mode).__name__ for mode in now) or "removed"]

    def restore() -> None:
        while stack():
            overrides._pop_mode()
        for mode in before:
            overrides._push_mode(mode)
        device_holder.device_context = device

    return Snapshot("default device or function mode", changes, restore)


def _line(kind: str, places: Sequence[str]) -> str:
    """``train mode (encoder.0 and 4 more)``."""
    first, more = places[0], len(places) - 1
    return kind + (f" ({first}{f' and {more} more' if more else ''})" if first else "")
