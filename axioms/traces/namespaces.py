"""Attributes of modules, classes and objects, compared by identity before and after a block of code, and put back."""

import ctypes
import gc
import sys
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from operator import eq, is_
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
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
    values = dict.values(now) if isinstance(now, dict) else now.values()  # a registry may make what it is asked for
    return len(now) == len(before) and all(map(is_, values, before.values())) and all(map(eq, now, before))


class DictionariesSnapshot:
    """Dictionaries, each with a copy of its content before a block of code; one may be the ``vars`` of a class."""

    def __init__(self, dictionaries: Sequence[tuple[Any, Namespace]]) -> None:
        self._dictionaries = dictionaries
        self._versions = _versions_of([now for now, _ in dictionaries])
        self._compared: npt.NDArray[np.uint64] | None = None

    def unchanged(self) -> bool:
        """Whether all have the same keys, in the same order, with the same objects."""
        versions = None if self._versions is None else self._versions()
        if versions is None or self._compared is None:
            moved: Iterable[int] = range(len(self._dictionaries))
        else:
            moved = (versions != self._compared).nonzero()[0]  # a method: a function of NumPy may have been replaced
        same = all(same_objects(*self._dictionaries[index]) for index in moved)
        if same:
            self._compared = versions
        return same


def _versions_of(dictionaries: Sequence[Any]) -> Callable[[], npt.NDArray[np.uint64]] | None:
    """A function that reads the field that gets another number whenever a dictionary is written; None without one."""
    if not _HAVE_VERSIONS or not dictionaries:
        return None
    word = ctypes.sizeof(ctypes.c_uint64)
    # The vars of a class are a view of its dictionary.
    owned = [d if isinstance(d, dict) else gc.get_referents(d)[0] for d in dictionaries]
    places = np.array([id(dictionary) // word + 3 for dictionary in owned])
    first = int(places.min())
    words: npt.NDArray[np.uint64] = np.ctypeslib.as_array(
        (ctypes.c_uint64 * (int(places.max()) - first + 1)).from_address(first * word)
    )
    return lambda: words[places - first]


def _versions_count() -> bool:
    """Whether the dictionaries of this interpreter have versions."""
    dictionary = {"a": 1, "b": 2}
    versions = _versions_of([dictionary])
    assert versions is not None
    seen = [int(versions()[0])]
    for write in (lambda: dictionary.update(a=3), lambda: dictionary.pop("b"), lambda: dictionary.update(b=2)):
        write()
        seen.append(int(versions()[0]))
    return len(set(seen)) == len(seen)


_HAVE_VERSIONS = sys.implementation.name == "cpython" and sys.version_info < (3, 14)
_HAVE_VERSIONS = _HAVE_VERSIONS and _versions_count()


def put_back(namespace: Any, before: Namespace) -> None:
    """Give a namespace the content that it had."""
    namespace.clear()
    namespace.update(before)


def is_function(name: str, value: Any) -> bool:
    """Whether a value counts as a function, class, method or property; modules are compared as such."""
    is_any = callable(value) or isinstance(value, classmethod | property)
    return is_any and name != "Storage" and not isinstance(value, nn.Module)  # torch.Storage follows the dtype


def equal(one: Any, other: Any) -> bool:
    """Equality of tensors, arrays, tuples and lists of them, and of anything else that can be compared."""
    if isinstance(one, Tensor) is not isinstance(other, Tensor):
        return False
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
    try:
        return bool(one == other)
    except Exception:  # what cannot be compared is no equal of anything
        return False


class OwnerSnapshot:
    """The functions and classes of a module, or the methods of a class, before a block of code."""

    def __init__(self, name: str, owner: Any) -> None:
        self.name, self.owner, self.before = name, owner, dict(vars(owner))

    def replaced(self) -> list[str]:
        """The names of the functions, classes and methods that others have replaced."""
        now = vars(self.owner)
        return [key for key, value in self.before.items() if now.get(key) is not value and is_function(key, value)]

    def restore(self, changes: Changes) -> None:
        """Put back what changed, and report it. A new function of a module is no change: loading code adds them."""
        changed, added = self.replaced(), list[str]()
        if isinstance(self.owner, type):
            added = [k for k, value in vars(self.owner).items() if k not in self.before and is_function(k, value)]
            patched = [f"{self.owner.__name__}.{key}" for key in sorted([*changed, *added])]
            report(changes, "patched classes", patched)
        else:
            report(changes, "patched functions", [f"{self.name}.{key}" for key in changed])
        for key in changed:
            setattr(self.owner, key, self.before[key])
        for key in added:
            delattr(self.owner, key)


def _registries(owners: Iterable[tuple[str, Any]]) -> dict[int, tuple[str, Namespace]]:
    """The tables in which transformers looks up functions, such as those of attention, by their id."""
    found: dict[int, tuple[str, Namespace]] = {}
    for where, owner in owners:
        if where.startswith("transformers"):
            for key, value in list(vars(owner).items()):
                for table in _tables_of(value) if not key.startswith("__") else ():
                    found.setdefault(id(table), (f"{where}.{key}", table))
    return found


def _tables_of(value: object) -> list[Namespace]:
    """A dictionary of functions or classes, or the dictionaries that make up another mapping."""
    if isinstance(value, dict):
        return [value] if any(map(callable, dict.values(value))) else []
    if isinstance(value, MutableMapping):
        parts = (*vars(type(value)).values(), *getattr(value, "__dict__", {}).values())
        return [part for part in parts if isinstance(part, dict)]
    return []


class NamespacesSnapshot:
    """Modules, by name, and classes before a block of code, with their registries; ``owners`` are their ids."""

    def __init__(self, modules: Iterable[tuple[str, Any]], classes: Iterable[type]) -> None:
        owners = [*modules, *((f"{owner.__module__}.{owner.__qualname__}", owner) for owner in classes)]
        self.snapshots = [OwnerSnapshot(name, owner) for name, owner in owners]
        self.owners = {id(owner) for _, owner in owners}
        self._registries = [(where, table, dict(dict.items(table))) for where, table in _registries(owners).values()]
        self._dictionaries = DictionariesSnapshot(
            [(vars(snapshot.owner), snapshot.before) for snapshot in self.snapshots]
            + [(table, before) for _, table, before in self._registries]
        )

    def unchanged(self) -> bool:
        """Whether all have the same attributes."""
        return self._dictionaries.unchanged()

    def patched(self) -> list[str]:
        """The functions that were there and have been replaced, and the entries of registries that are others."""
        functions = [f"{snapshot.name}.{key}" for snapshot in self.snapshots for key in snapshot.replaced()]
        tables = [where for where, table, before in self._registries if not same_objects(table, before)]
        return [*functions, *tables]

    def restore(self, changes: Changes) -> None:
        """Put back what changed, and report it."""
        if self.unchanged():
            return
        for snapshot in self.snapshots:
            snapshot.restore(changes)
        for where, table, before in self._registries:
            if not same_objects(table, before):
                keys = dict.fromkeys([*before, *table])
                changed = [key for key in keys if dict.get(table, key) is not before.get(key)]
                report(changes, "patched registries", [f"{where}[{key!r}]" for key in changed] or [where])
                put_back(table, before)
