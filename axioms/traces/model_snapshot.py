"""What a block of code leaves behind on models and in the process: it is found, reported and undone.

`process_snapshot` says what of the process is compared. This module has the state of a model that explainers change.

Compared before and after a block of code, and put back: train mode, hooks, weights, buffers, ``requires_grad``,
``.grad``, submodules, attributes, configuration, methods, the class of each module, the methods of the classes, and the
functions of the Python modules that define them. The values of weights are compared, since their version counters do
not count changes by ``.data``. Of weights that accelerate offloads, what it keeps is compared, and that the model has
none of it between its passes.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import isroutine
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.axioms.traces.namespaces import (
    Changes,
    DictionariesSnapshot,
    Namespace,
    NamespacesSnapshot,
    equal,
    is_function,
    put_back,
    report,
    same_objects,
)
from faithcheck.axioms.traces.process_snapshot import ProcessSnapshot, current_namespaces
from faithcheck.explainers.refused_modules import parts_of
from faithcheck.models.offloaded_weights import offloaded_weights

TRANSFORMERS_HOOKS = "_output_capturing_hooks_installed"
"""The attribute by which transformers remembers that it put its hooks on a module, at first use."""
HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
CAPTURING_HOOKS = "transformers.utils.output_capturing"
"""The module that defines these hooks."""


class ModelSnapshot:
    """A model before a block of code. It holds a copy of the weights, and serves any number of blocks."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules = [ModuleSnapshot(name or type(model).__name__, module) for name, module in model.named_modules()]
        classes = dict.fromkeys(
            owner for module in self.modules for owner in module.kind.__mro__ if owner is not object
        )
        self._dictionaries = DictionariesSnapshot(
            [(vars(snapshot.module), snapshot.attributes) for snapshot in self.modules]
            + [(space, before) for snapshot in self.modules for _, space, before in snapshot.spaces]
        )
        self.namespaces = _namespaces_of(classes)
        self.tensors = [TensorSnapshot(name, tensor) for name, tensor in _tensors(model)]

    def restore(self, changes: Changes) -> None:
        """Put back what changed, and report it."""
        unchanged = self._dictionaries.unchanged()
        for snapshot in self.modules:
            if type(snapshot.module) is not snapshot.kind:
                report(changes, "replaced classes", [snapshot.where])
                snapshot.module.__class__ = snapshot.kind
            if not unchanged:
                snapshot.restore(changes)
        self.namespaces.restore(changes)
        for tensor in self.tensors:
            tensor.restore(changes)

    def has_same_weights(self) -> bool:
        """Whether every parameter and buffer has the values that it had."""
        return all(same_values(tensor.tensor.detach(), tensor.values) for tensor in self.tensors)


def _namespaces_of(classes: Iterable[type]) -> NamespacesSnapshot:
    """The classes and the Python modules that define them, but for those that `ProcessSnapshot` compares anyway."""
    compared = current_namespaces().owners
    modules = {owner.__module__: sys.modules.get(owner.__module__) for owner in classes}
    return NamespacesSnapshot(
        [(name, module) for name, module in modules.items() if module is not None and id(module) not in compared],
        [owner for owner in classes if id(owner) not in compared],
    )


def _added_by_transformers(now: Namespace, before: Namespace) -> bool:
    """Whether all that changed are hooks that transformers puts in where a model is first asked for its attentions."""
    added = [hook for key, hook in now.items() if key not in before]
    kept = all(now.get(key) is hook for key, hook in before.items())
    return kept and all(getattr(hook, "__module__", "") == CAPTURING_HOOKS for hook in added)


def _offloaded_again(now: Namespace, before: Namespace) -> bool:
    """Whether all that changed are tensors without values, which accelerate makes anew after each forward pass."""

    def same(one: Any, other: Any) -> bool:
        return one is other or (
            isinstance(one, Tensor)
            and isinstance(other, Tensor)
            and one.is_meta
            and same_values(one, other)
            and one.requires_grad == other.requires_grad
        )

    return now.keys() == before.keys() and all(same(now[key], before[key]) for key in before)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters, the buffers, and the attributes that are tensors, such as one that a model computed and kept."""
    yield from (*model.named_parameters(), *model.named_buffers(), *offloaded_weights(model).items())
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, Tensor):
                yield f"{name}.{key}".lstrip("."), value


def _dictionaries_of(attributes: Namespace) -> Iterator[tuple[str, Namespace]]:
    """The dictionaries among a module's attributes, and those of its attributes that are objects, such as a config."""
    for key, value in attributes.items():
        if isinstance(value, dict):
            yield key, value
        elif not isinstance(value, nn.Module | Tensor | ModuleType | type) and not isroutine(value):
            namespace = getattr(value, "__dict__", None)
            if isinstance(namespace, dict):
                yield key, namespace
                yield from ((key, inner) for inner in namespace.values() if isinstance(inner, dict))


class ModuleSnapshot:
    """One module before a block of code: its class, its attributes, and their dictionaries.

    Private attributes are put back without a report: a module may change its own. Those that say something about others
    fit together again, such as the flag of transformers' hooks: if the hooks were taken away and the flag stayed,
    transformers would never put them there again.
    """

    def __init__(self, where: str, module: nn.Module) -> None:
        self.where, self.module, self.kind, self.attributes = where, module, type(module), dict(vars(module))
        # (name of the attribute, dictionary, copy): of hooks, parameters, submodules; of a configuration, a tokenizer
        self.spaces = [(key, space, dict(space)) for key, space in _dictionaries_of(self.attributes)]

    def restore(self, changes: Changes) -> None:
        """Put back the attributes and the dictionaries, and report them."""
        if not same_objects(vars(self.module), self.attributes):
            self._restore_attributes(changes)
        for key, space, before in self.spaces:
            if same_objects(space, before):
                continue
            if key in ("_parameters", "_buffers", "_modules", "config"):
                if not _offloaded_again(space, before):
                    report(changes, f"replaced {key.lstrip('_')}", [self.where])
            elif "_hooks" in key:
                if not _added_by_transformers(space, before):
                    report(changes, "hooks", [self.where])
            elif not key.startswith("_"):
                report(changes, "attributes", [f"{self.where}.{key}"])
            put_back(space, before)

    def _restore_attributes(self, changes: Changes) -> None:
        now, before = vars(self.module), self.attributes
        if now.get("training") is not before["training"]:
            report(changes, "train mode", [self.where])
        # Where the flag was not set before, transformers put its hooks there itself.
        if before.get(TRANSFORMERS_HOOKS) and now.get(TRANSFORMERS_HOOKS) is not before[TRANSFORMERS_HOOKS]:
            report(changes, "hooks of transformers", [self.where])
        changed = [key for key in before if now.get(key) is not before[key]]
        added = [key for key in now if key not in before]
        functions = {key for key in (*changed, *added) if is_function(key, {**now, **before}[key])}
        public = [k for k in changed if not (callable(before[k]) or equal(now.get(k), before[k]))] + added
        plain = {key for key in public if not key.startswith("_") and key != "training"} - functions
        for what, keys in (("patched methods", sorted(functions)), ("attributes", sorted(plain))):
            report(changes, what, [f"{self.where}.{key}" for key in keys])
        now.update({key: before[key] for key in changed})
        for key in added:
            del now[key]


class TensorSnapshot:
    """A parameter or buffer before a block of code."""

    def __init__(self, where: str, tensor: Tensor) -> None:
        self.where, self.tensor = where, tensor
        self.values = tensor.detach().clone()
        self.requires_grad = tensor.requires_grad
        self.hooks = {name: dict(getattr(tensor, name) or {}) for name in HOOKS_OF_TENSORS}
        self.gradient = None if tensor.grad is None else tensor.grad.detach().clone()

    def restore(self, changes: Changes) -> None:
        """Put back what changed, and report it."""
        tensor = self.tensor
        if not same_values(tensor.detach(), self.values):
            report(changes, "weights", [self.where])
            tensor.data = self.values.clone()  # the snapshot keeps its own, for the next block
        for name, before in self.hooks.items():
            hooks = getattr(tensor, name)
            if (hooks or before) and dict(hooks or {}) != before:
                report(changes, "hooks of tensors", [self.where])
                if hooks is not None:
                    put_back(hooks, before)
        if (tensor.grad is not None or self.gradient is not None) and not equal(tensor.grad, self.gradient):
            report(changes, ".grad", [self.where])
            tensor.grad = None if self.gradient is None else self.gradient.clone()
        if tensor.requires_grad != self.requires_grad:
            report(changes, "requires_grad", [self.where])
            tensor.requires_grad_(self.requires_grad)


def same_values(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal; NaN equals a NaN of the same bits, and no value no value."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    if one.is_meta:
        return True
    ours, theirs = parts_of(one), parts_of(other)
    same = [a.equal(b) or _bits(a).equal(_bits(b)) for a, b in zip(ours, theirs, strict=False)]
    return len(ours) == len(theirs) and all(same)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


@contextmanager
def restored(*models: nn.Module | ModelSnapshot) -> Iterator[list[str]]:
    """Run a block, then find what it left behind on the models and in the process, and undo it, also on an exception.

    Yields the traces, a line for each kind, such as ``train mode (encoder.0 and 4 more)``; filled at the end of the
    block. Given snapshots, it does not copy the weights anew for each of many blocks.
    """
    of_models = [model if isinstance(model, ModelSnapshot) else ModelSnapshot(model) for model in models]
    snapshots: list[ProcessSnapshot | ModelSnapshot] = [ProcessSnapshot(), *of_models]
    lines: list[str] = []
    try:
        yield lines
    finally:
        changes: Changes = {}
        for snapshot in snapshots:
            snapshot.restore(changes)
        lines.extend(_line(kind, places) for kind, places in changes.items())


def _line(kind: str, places: Sequence[str]) -> str:
    first, more = places[0], len(places) - 1
    return kind + (f" ({first}{f' and {more} more' if more else ''})" if first else "")
