"""Observe the forward passes of a model while an explainer runs it."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import nn


@contextmanager
def observed_forward_passes(
    model: nn.Module, begin: Callable[[], object], succeed: Callable[[], object]
) -> Iterator[None]:
    """Within the block, call ``begin`` before and ``succeed`` after each forward pass of the model and of its copies.

    ``model.forward(…)`` is a forward pass, as ``model(…)`` is. The latter calls the former, and then each function is
    called twice. Other modules of the model's own class are observed, too. TorchScript is not observed: it
    has no hooks.
    """
    if isinstance(model, torch.jit.ScriptModule):
        yield
        return

    # Functions, because a copy of the model shares them: its passes count too. Methods would be copied with it.
    def before(*_: object) -> None:
        begin()

    def after(*_: object) -> None:
        succeed()

    # The hooks see a model whose ``forward`` is an attribute of the instance, the method sees ``model.forward(…)``.
    handles = (model.register_forward_pre_hook(before), model.register_forward_hook(after))
    try:
        with _observed_method(type(model), begin, succeed):
            yield
    finally:
        for handle in handles:
            handle.remove()


def only_observes(hook: Callable[..., object]) -> bool:
    """Whether a hook is one of `observed_forward_passes`, which looks at no tensor."""
    return getattr(hook, "__module__", None) == __name__


@contextmanager
def _observed_method(
    kind: type[nn.Module], begin: Callable[[], object], succeed: Callable[[], object]
) -> Iterator[None]:
    """Within the block, the class's method ``forward`` calls both functions; what is no function stays as it is."""
    own, method = vars(kind).get("forward"), kind.forward
    if not isinstance(method, FunctionType):
        yield
        return

    @functools.wraps(method)
    def forward(*arguments: Any, **named: Any) -> Any:
        begin()
        output = method(*arguments, **named)
        succeed()
        return output

    kind.forward = forward
    try:
        yield
    finally:
        if vars(kind).get("forward") is forward:  # if the explainer replaced it, `trace` must find that
            if own is None:
                del kind.forward
            else:
                kind.forward = own
