"""No trace: an attribution leaves nothing behind, on the model or in the process, not even where the model fails.

Looked at, of the models: train mode, hooks, weights, buffers, what requires a gradient, ``.grad``, submodules, methods,
and those of their classes. Of the process: the random states of torch, NumPy and Python; torch's settings, hooks,
functions and function modes. Whatever was left is taken away again, so that it reaches no later check.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from faithcheck.axioms.engine.verdicts import Measurement
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case

RANDOM = "random state"
NOTE = "_output_capturing_hooks_installed"

SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "gradient mode": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "anomaly mode": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "deterministic algorithms": (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda was: torch.use_deterministic_algorithms(was[0], warn_only=was[1]),
    ),
    "autocast": (lambda: torch.is_autocast_enabled("cpu"), partial(torch.set_autocast_enabled, "cpu")),
    "autocast of CUDA": (lambda: torch.is_autocast_enabled("cuda"), partial(torch.set_autocast_enabled, "cuda")),
    "cuDNN benchmark": (
        lambda: torch.backends.cudnn.benchmark,
        lambda was: setattr(torch.backends.cudnn, "benchmark", was),
    ),
    "cuDNN deterministic": (
        lambda: torch.backends.cudnn.deterministic,
        lambda was: setattr(torch.backends.cudnn, "deterministic", was),
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
class Kept:
    """One thing that an explainer could change, as it was.

    Attributes:
        what: what a change of it is called.
        changed: where it is otherwise now; nowhere, if it is not.
        restore: make it what it was.
    """

    what: str
    changed: Callable[[], Sequence[str]]
    restore: Callable[[], object]


@contextmanager
def restored(*models: nn.Module) -> Iterator[list[str]]:
    """Run a block, then find what it left on the models and in the process, and take it away, also after an exception.

    Yields:
        What was left, in a line each; filled when the block has ended.
    """
    kept = [*_of_process(), *(one for model in models for one in _of_model(model))]
    left: list[str] = []
    try:
        yield left
    finally:
        places: dict[str, list[str]] = {}
        for one in kept:
            if where := one.changed():
                places.setdefault(one.what, []).extend(where)
                one.restore()
        left.extend(_line(what, where) for what, where in places.items())


def trace(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Count what one attribution leaves behind, and another in which the model fails after its first forward pass.

    ``gap`` is the number of kinds of traces; the tolerance is 0.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    with restored(model) as left:
        attribution_of(explainer, model, case)

    def fail(*_: object) -> None:
        raise _Failure

    handle = model.register_forward_hook(fail)
    try:
        # Whatever comes of the failure is the explainer's affair; here, only what it leaves.
        with restored(model) as left_by_failure, suppress(Exception):
            attribution_of(explainer, model, case)
    finally:
        handle.remove()
    found = [*left, *(f"{line}, when the model failed" for line in left_by_failure if line not in left)]
    detail = {"left behind": "; ".join(found)} if found else {}
    return Measurement(float(len(found)), 0.0, torch.tensor([float(len(found))]), detail=detail)


class _Failure(RuntimeError):
    """The model fails, as one of a user's might."""

    def __init__(self) -> None:
        super().__init__("the model fails, to see what the explainer leaves then")


def _of_process() -> Iterator[Kept]:
    yield _modes()  # first: whatever is called under one that was left could be another's
    for name, space in vars(torch_module).items():
        if name.startswith("_global_") and isinstance(space, dict):
            yield _entries("global hooks", name, space)
    for owner in (torch, torch.nn.functional, Tensor):
        yield _methods("patched functions", owner.__name__, owner, new=False)
    for what, (read, put) in {**SETTINGS, **_random_states()}.items():
        yield _value(what, "", read, put)


def _of_model(model: nn.Module) -> Iterator[Kept]:
    for name, module in model.named_modules():
        where = name or type(model).__name__
        yield _value("train mode", where, partial(getattr, module, "training"), partial(setattr, module, "training"))
        yield _methods("patched methods", where, module, new=True)
        yield _attributes(where, module)
        # What transformers notes when it puts hooks there, at first use: without both it would never do so again.
        yield _value("hooks of transformers", where, partial(vars(module).get, NOTE), partial(_note, module))
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
        # A buffer has no place for the flag where it is no float; a parameter that is no leaf cannot lose it.
        yield _value("requires_grad", name, partial(getattr, tensor, "requires_grad"), tensor.requires_grad_)


def _value(what: str, where: str, read: Callable[[], Any], put: Callable[[Any], object]) -> Kept:
    """Something that can be read, compared and set."""
    was = read()
    return Kept(what, lambda: [] if _equal(read(), was) else [where], lambda: put(was))


def _entries(what: str, where: str, space: dict[Any, Any]) -> Kept:
    """A dictionary, with the very objects in it."""
    was = dict(space)

    def changed() -> list[str]:
        same = space.keys() == was.keys() and all(space[key] is value for key, value in was.items())
        return [] if same else [where]

    def restore() -> None:
        space.clear()
        space.update(was)

    return Kept(what, changed, restore)


def _methods(what: str, where: str, owner: object, *, new: bool) -> Kept:
    """The functions of a module, class or object; with ``new``, those that it gets count too."""

    def functions() -> dict[str, Any]:
        # A submodule is looked at as such, and torch.Storage follows the default dtype.
        found = [(key, value) for key, value in vars(owner).items() if callable(value) and key != "Storage"]
        return {key: value for key, value in found if not isinstance(value, nn.Module)}

    return _names(what, where, owner, functions, lambda key, value: True, new=new)


def _names(
    what: str,
    where: str,
    owner: object,
    read: Callable[[], dict[str, Any]],
    followed: Callable[[str, Any], bool],
    *,
    new: bool,
) -> Kept:
    """What an object has under its names: those that are followed, and with ``new`` those that it gets."""
    was = read()

    def others() -> list[str]:
        now = read()
        changed = [key for key, value in was.items() if followed(key, value) and now.get(key) is not value]
        return sorted([*changed, *(now.keys() - was.keys())]) if new else changed

    def restore() -> None:
        for key in others():
            if key in was:
                setattr(owner, key, was[key])
            else:
                delattr(owner, key)

    return Kept(what, lambda: [f"{where}.{key}" for key in others()], restore)


def _note(module: nn.Module, was: object) -> None:
    if was is None:
        vars(module).pop(NOTE, None)
    else:
        vars(module)[NOTE] = was


def _attributes(where: str, module: nn.Module) -> Kept:
    """Tensors, and anything new, in a module's attributes; what transformers notes of its own there is its own."""

    def found() -> dict[str, Any]:
        values = vars(module).items()
        return {key: value for key, value in values if not key.startswith("_") and not callable(value)}

    return _names("attributes", where, module, found, lambda key, value: isinstance(value, Tensor), new=True)


def _tensor_hooks(where: str, tensor: Tensor) -> Kept:
    was = dict(tensor._backward_hooks or {})

    def restore() -> None:
        hooks = tensor._backward_hooks
        if hooks is not None:
            hooks.clear()
            hooks.update(was)

    return Kept("hooks of tensors", lambda: [] if dict(tensor._backward_hooks or {}) == was else [where], restore)


def _weights(where: str, tensor: Tensor) -> Kept:
    was = tensor.detach().clone()

    def restore() -> None:
        tensor.data = was

    return Kept("weights", lambda: [] if _equal(tensor.detach(), was) else [where], restore)


def _gradient(where: str, tensor: Tensor) -> Kept:
    was = None if tensor.grad is None else tensor.grad.detach().clone()

    def restore() -> None:
        tensor.grad = was

    return Kept(".grad", lambda: [] if _equal(tensor.grad, was) else [where], restore)


def _equal(one: Any, other: Any) -> bool:
    """Equality of tensors, arrays, and tuples of them, as of anything else."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
        return alike and torch.equal(one, other)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)


def _random_states() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    states: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        f"{RANDOM} of torch": (torch.get_rng_state, torch.set_rng_state),
        f"{RANDOM} of NumPy": (partial(np.random.get_state, legacy=True), np.random.set_state),
        f"{RANDOM} of Python": (random.getstate, random.setstate),
    }
    if torch.cuda.is_available():
        states[f"{RANDOM} of CUDA"] = (torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all)
    return states


def _modes() -> Kept:
    """The function modes that are entered; a default device is one of them."""
    overrides, held = cast(Any, torch.overrides), cast(Any, torch._GLOBAL_DEVICE_CONTEXT)
    stack: Callable[[], list[Any]] = overrides._get_current_function_mode_stack
    was, device = stack(), getattr(held, "device_context", None)

    def changed() -> list[str]:
        now = stack()
        same = len(now) == len(was) and all(one is other for one, other in zip(now, was, strict=True))
        return [] if same else [", ".join(type(mode).__name__ for mode in now) or "left"]

    def restore() -> None:
        while stack():
            overrides._pop_mode()
        for mode in was:
            overrides._push_mode(mode)
        held.device_context = device

    return Kept("default device or function mode", changed, restore)


def _line(what: str, where: Sequence[str]) -> str:
    """``train mode (encoder.0 and 4 more)``."""
    first, others = where[0], len(where) - 1
    return what + (f" ({first}{f' and {others} more' if others else ''})" if first else "")
