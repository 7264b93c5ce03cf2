"""Namespaces before and after a block of code: the attributes of modules, classes and objects, compared and put back.

Values are compared by identity, in C, so that comparing takes less time than copying.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import eq, is_
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor, nn

Namespace: TypeAlias = dict[Any, Any]
Changes: TypeAlias = dict[str, list[str]]
"""The places where something was left behind, by its kind, such as "train mode"."""


def report(changes: Changes, kind: str, places: Sequence[str]) -> None:
    """Add the places of a change, if there are any; a place may be ``""`` if the kind says it all."""
    if places:
        changes.setdefault(kind, []).extend(places)


def same_objects(now: Any, before: Namespace) -> bool:
    """Whether a namespace has the same keys, in the same order, with the same objects."""
    return len(now) == len(before) and all(map(is_, now.values(), before.values())) and all(map(eq, now, before))


def unpatched(now: Any, before: Namespace) -> bool:
    """Whether the namespace of a module or a class has equal values: functions and classes are equal if identical."""
    try:
        return bool(now == before)
    except Exception:  # a value that cannot be compared was replaced
        return False


def put_back(namespace: Any, before: Namespace) -> None:
    """Give a namespace the content that it had."""
    namespace.clear()
    namespace.update(before)


def is_function(name: str, value: Any) -> bool:
    """Whether a value counts as a function or class; modules are compared as such."""
    return callable(value) and name != "Storage" and not isinstance(value, nn.Module)  # torch.Storage follows the dtype


def equal(one: Any, other: Any) -> bool:
    """Equality of tensors, arrays, tuples and lists of them, and of anything else."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
        return alike and one.equal(other)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        try:
            return one == other  # in C, unless there is an array inside
        except (ValueError, RuntimeError):
            return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)


class FunctionsSnapshot:
    """The functions and classes of a module before a block of code."""

    def __init__(self, name: str, module: Any) -> None:
        self.name, self.module, self.before = name, module, dict(vars(module))

    def unchanged(self) -> bool:
        """Whether the module is still imported by its name, and has the same attributes."""
        return sys.modules.get(self.name) is self.module and unpatched(vars(self.module), self.before)

    def restore(self, changes: Changes) -> None:
        """Put back what changed, and report it. A new function is no change: code that is loaded adds them."""
        if self.unchanged():
            return
        if sys.modules.get(self.name) is not self.module:
            report(changes, "replaced modules of Python", [self.name])
            sys.modules[self.name] = self.module
        now = vars(self.module)
        changed = [key for key, value in self.before.items() if now.get(key) is not value and is_function(key, value)]
        report(changes, "patched functions", [f"{self.name}.{key}" for key in changed])
        for key in changed:
            setattr(self.module, key, self.before[key])


def _is_method(value: object) -> bool:
    return callable(value) or isinstance(value, classmethod | property)


class ClassSnapshot:
    """The attributes of a class before a block of code."""

    def __init__(self, owner: type) -> None:
        self.owner, self.before = owner, dict(vars(owner))

    def unchanged(self) -> bool:
        """Whether the class has the same attributes."""
        return unpatched(vars(self.owner), self.before)

    def restore(self, changes: Changes) -> None:
        """Put the functions back, take away added ones, and report both."""
        if self.unchanged():
            return
        now = vars(self.owner)
        changed = [key for key, value in self.before.items() if _is_method(value) and now.get(key) is not value]
        added = [key for key, value in now.items() if key not in self.before and _is_method(value)]
        report(changes, "patched classes", [f"{self.owner.__name__}.{key}" for key in sorted([*changed, *added])])
        for key in changed:
            setattr(self.owner, key, self.before[key])
        for key in added:
            delattr(self.owner, key)
