"""A seeded fault: a correct explainer, one change that makes it wrong, and the reason why it is wrong.

The change is data: a line of the explainer's code, a constant, a rule in its table, what is done to its attribution, or
what is done to the model before or after. Nothing on the disk is changed, and everything is undone.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any, Protocol
from unittest import mock

from torch import Tensor, nn

from faithcheck.explainers.protocol import Explainer
from faithcheck.explainers.registry import builtin_explainers
from faithcheck.models.case import Case


class Change(Protocol):
    """What makes an explainer wrong."""

    def applied(self, explainer: Explainer) -> Any:
        """A context manager that yields the faulty explainer; at its end everything is undone."""
        ...


@dataclass(frozen=True)
class Fault:
    """One change of a built-in explainer."""

    name: str
    explainer: str
    change: Change
    why: str
    escapes: str = ""

    @property
    def id(self) -> str:
        """The explainer and the name."""
        return f"{self.explainer}: {self.name}"

    @contextmanager
    def faulty(self) -> Iterator[Explainer]:
        """The faulty explainer, under the name of the built-in one."""
        with self.change.applied(builtin_explainers()[self.explainer]) as explainer:
            yield explainer


class Unchanged:
    """No change: the correct explainer."""

    @contextmanager
    def applied(self, explainer: Explainer) -> Iterator[Explainer]:
        yield explainer


@dataclass(frozen=True)
class Line:
    """A change of the code of one function."""

    function: str
    old: str
    new: str

    @contextmanager
    def applied(self, explainer: Explainer) -> Iterator[Explainer]:
        # The code object is replaced in place, so that every table and import that holds the function has the fault.
        function = inspect.unwrap(located(self.function))
        function = function.fget if isinstance(function, property) else function
        assert isinstance(function, FunctionType)
        before = function.__code__
        function.__code__ = self.code(function)
        try:
            yield explainer
        finally:
            function.__code__ = before

    def code(self, function: FunctionType) -> CodeType:
        """The code of the changed function."""
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(self.old) != 1:
            raise ValueError(f"{self.function} has {self.old!r} {source.count(self.old)} times, not once")
        (node,) = ast.parse(source.replace(self.old, self.new)).body
        assert isinstance(node, ast.FunctionDef)
        node.decorator_list = []
        free = ", ".join(function.__code__.co_freevars)
        (outer,) = ast.parse(f"def outer({free}): pass").body  # it has the variables that the function closes over
        assert isinstance(outer, ast.FunctionDef)
        outer.body = [node]
        module = ast.Module([outer], [])
        # Compiled with the `annotations` of this module: those of a nested function need not exist when it runs.
        for code in _codes(compile(module, f"<{self.function} with a fault>", "exec")):
            if code.co_name == function.__name__:
                return code
        raise AssertionError("unreachable")


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code objects within a code object, the outermost first."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    yield from inner
    for each in inner:
        yield from _codes(each)


@dataclass(frozen=True)
class Constant:
    """Another value of a constant or function of a module, ``module:NAME`` below `faithcheck.explainers`."""

    place: str
    value: Any

    @contextmanager
    def applied(self, explainer: Explainer) -> Iterator[Explainer]:
        owner, name = owner_of(self.place)
        with mock.patch.object(owner, name, self.value):
            yield explainer


@dataclass(frozen=True)
class Rule:
    """Another rule for an operation."""

    table: str
    operations: str
    rule: Callable[..., Any] | None

    @contextmanager
    def applied(self, explainer: Explainer) -> Iterator[Explainer]:
        table = located(self.table)
        names = self.operations.split()
        if unknown := [name for name in names if name not in table]:
            raise ValueError(f"{self.table} has no {unknown}")
        with mock.patch.dict(table):
            for name in names:
                table.pop(name)
                if self.rule is not None:
                    table[name] = self.rule
            yield explainer


@dataclass(frozen=True)
class Settings:
    """The built-in explainer with other settings: its fields by name."""

    fields: dict[str, Any]

    @contextmanager
    def applied(self, explainer: Explainer) -> Iterator[Explainer]:
        yield changed(explainer, **self.fields)


Attribute = Callable[[Explainer, nn.Module, Case], Tensor]
"""A method ``attribute`` that calls the correct explainer."""


@dataclass(frozen=True)
class Around:
    """Another method ``attribute``, which gets the correct explainer, the model and the case."""

    make: Callable[[], Attribute]

    @contextmanager
    def applied(self, explainer: Explainer) -> Iterator[Explainer]:
        correct, attribute = explainer, self.make()
        body = {
            "attribute": lambda self, model, case: attribute(correct, model, case),
            "like": explainer.name,  # another class may not borrow the name without saying so
        }
        yield changed(explainer, type(type(explainer).__name__, (type(explainer),), body))


def around(attribute: Attribute) -> Around:
    """A method that keeps nothing from one call to the next."""
    return Around(lambda: attribute)


def result(change: Callable[[Tensor, Case], Tensor]) -> Around:
    """A change of the attribution, which gets the attribution ``(batch, features)`` and the case."""
    return around(lambda explainer, model, case: change(explainer.attribute(model, case), case))


def foreign(explainer: Explainer) -> Explainer:
    """The explainer under a name that theory knows nothing of.

    It keeps its claims, those about single subjects included: what it says holds there, and limits, such as a least
    correlation with Leave-One-Out. It loses its closed forms and predicted violations.
    """
    kind = type(explainer)
    stated = getattr(explainer, "expected", {})
    limits = {
        key: expectation
        for key, expectation in stated.items()
        if expectation.verdict == "HOLDS" or expectation.ceiling is not None
    }
    # In the class too: where the class has a property of this name, an object cannot have its own.
    unlike = type(kind.__name__, (kind,), {"expected": limits, "like": ""})
    return changed(explainer, unlike, expected=limits, name="a_foreign_explainer")


def changed(explainer: Explainer, kind: type | None = None, /, **fields: Any) -> Explainer:
    """A copy of the explainer with these fields, of this class; frozen dataclasses too."""
    copied = copy.copy(explainer)
    if kind is not None:
        object.__setattr__(copied, "__class__", kind)
    for name, value in fields.items():
        object.__setattr__(copied, name, value)
    return copied


def located(place: str) -> Any:
    """The object at ``module:name``, below `faithcheck.explainers`."""
    owner, name = owner_of(place)
    return inspect.getattr_static(owner, name)


def owner_of(place: str) -> tuple[Any, str]:
    """The module or class that has the object at ``module:name``, and the object's name there."""
    module_name, _, path = place.partition(":")
    owner: ModuleType | Any = importlib.import_module(f"faithcheck.explainers.{module_name}")
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    return owner, name
