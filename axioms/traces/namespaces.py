"""Namespaces before and after a block of code: the attributes of modules, classes and objects, compared and put back.

Values are compared by identity, and only those of dictionaries that were written to.
"""

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
    """Many dictionaries before a block of code.

    Args:
        dictionaries: each, and a copy of its content; one may be the ``vars`` of a class.
    """

    def __init__(self, dictionaries: Sequence[tuple[Any, Namespace]]) -> None:
        self._dictionaries = dictionaries
        self._versions = _versions_of([now for now, _ in dictionaries])
        self._compared: npt.NDArray[np.uint64] | None = None

    def unchanged(self) -> bool:
        """Whether all have the same keys, in the same order, with the same objects."""
        versions = self._versions()
        if versions is None or self._compared is None:
            moved: Iterable[int] = range(len(self._dictionaries))
        else:
            moved = (versions != self._compared).nonzero()[0]  # a method: a function of NumPy may have been replaced
        same = all(same_objects(*self._dictionaries[index]) for index in moved)
        if same:
            self._compared = versions
        return same


def _versions_of(dictionaries: Sequence[Any]) -> Callable[[], npt.NDArray[np.uint64] | None]:
    """A function that gives the versions of the dictionaries; None if this interpreter has none."""
    if not _HAVE_VERSIONS or not dictionaries:
        return lambda: None
    # The vars of a class are a view of its dictionary.
    return _counters([d if isinstance(d, dict) else gc.get_referents(d)[0] for d in dictionaries])


def _counters(dictionaries: Sequence[Namespace]) -> Callable[[], npt.NDArray[np.uint64]]:
    """A function that reads the field that gets another number whenever the dictionary is written.

    Dictionaries of CPython have it up to 3.13. It is the fourth word of each. All are read at once, from an array over
    the memory from the first to the last one: there are thousands, and they are read several times a check.
    """
    word = ctypes.sizeof(ctypes.c_uint64)
    places = np.array([id(dictionary) // word + 3 for dictionary in dictionaries])
    first = int(places.min())
    words: npt.NDArray[np.uint64] = np.ctypeslib.as_array(
        (ctypes.c_uint64 * (int(places.max()) - first + 1)).from_address(first * word)
    )
    indices = places - first
    return lambda: words[indices]


def _versions_count() -> bool:
    """Whether the dictionaries of this interpreter have versions."""
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 14):
        return False
    dictionary = {"a": 1, "b": 2}
    versions = _counters([dictionary])
    seen = [int(versions()[0])]
    for write in (lambda: dictionary.update(a=3), lambda: dictionary.pop("b"), lambda: dictionary.update(b=2)):
        write()
        seen.append(int(versions()[0]))
    return len(set(seen)) == len(seen)


_HAVE_VERSIONS = _versions_count()


def put_back(namespace: Any, before: Namespace) -> None:
    """Give a namespace the content that it had."""
    namespace.clear()
    namespace.update(before)


def is_function(name: str, value: Any) -> bool:
    """Whether a value counts as a function or class; modules are compared as such."""
    return callable(value) and name != "Storage" and not isinstance(value, nn.Module)  # torch.Storage follows the dtype


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


class FunctionsSnapshot:
    """The functions and classes of a module before a block of code."""

    def __init__(self, name: str, module: Any) -> None:
        self.name, self.owner, self.before = name, module, dict(vars(module))

    def replaced(self) -> list[str]:
        """The names of the functions and classes that others have replaced."""
        now = vars(self.owner)
        return [key for key, value in self.before.items() if now.get(key) is not value and is_function(key, value)]

    def restore(self, changes: Changes) -> None:
        """Put back what changed, and report it. A new function is no change: code that is loaded adds them."""
        if sys.modules.get(self.name) is not self.owner:
            report(changes, "replaced modules of Python", [self.name])
            sys.modules[self.name] = self.owner
        changed = self.replaced()
        report(changes, "patched functions", [f"{self.name}.{key}" for key in changed])
        for key in changed:
            setattr(self.owner, key, self.before[key])


def _is_method(value: object) -> bool:
    return callable(value) or isinstance(value, classmethod | property)


class ClassSnapshot:
    """The attributes of a class before a block of code."""

    def __init__(self, owner: type) -> None:
        self.name, self.owner, self.before = f"{owner.__module__}.{owner.__qualname__}", owner, dict(vars(owner))

    def replaced(self) -> list[str]:
        """The names of the methods and properties that others have replaced."""
        now = vars(self.owner)
        return [key for key, value in self.before.items() if _is_method(value) and now.get(key) is not value]

    def restore(self, changes: Changes) -> None:
        """Put the functions back, take away added ones, and report both."""
        now, changed = vars(self.owner), self.replaced()
        added = [key for key, value in now.items() if key not in self.before and _is_method(value)]
        report(changes, "patched classes", [f"{self.owner.__name__}.{key}" for key in sorted([*changed, *added])])
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
    """Modules, by name, and classes before a block of code, with their registries.

    Attributes:
        owners: the ids of the modules and classes.
    """

    def __init__(self, modules: Iterable[tuple[str, Any]], classes: Iterable[type]) -> None:
        functions = [FunctionsSnapshot(name, module) for name, module in modules]
        self.snapshots: list[FunctionsSnapshot | ClassSnapshot] = [*functions, *map(ClassSnapshot, classes)]
        self.owners = {id(snapshot.owner) for snapshot in self.snapshots}
        self._names = [snapshot.name for snapshot in functions]
        self._modules = [snapshot.owner for snapshot in functions]
        owners = [(snapshot.name, snapshot.owner) for snapshot in self.snapshots]
        self._registries = [(where, table, dict(dict.items(table))) for where, table in _registries(owners).values()]
        self._dictionaries = DictionariesSnapshot(
            [(vars(snapshot.owner), snapshot.before) for snapshot in self.snapshots]
            + [(table, before) for _, table, before in self._registries]
        )

    def patched(self) -> list[str]:
        """The functions that were there and have been replaced, and the entries of registries that are others."""
        functions = [f"{snapshot.name}.{key}" for snapshot in self.snapshots for key in snapshot.replaced()]
        tables = [where for where, table, before in self._registries if not same_objects(table, before)]
        return [*functions, *tables]

    def unchanged(self) -> bool:
        """Whether the modules are still imported by their names, and all have the same attributes."""
        return all(map(is_, map(sys.modules.get, self._names), self._modules)) and self._dictionaries.unchanged()

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
