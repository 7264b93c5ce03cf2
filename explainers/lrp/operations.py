"""What an operation is: its name, its traits and its rule, a row of a table.

The modules of `faithcheck.explainers.lrp.rules` declare the rows beside their rules, each a family of operations.
`operation_table` is the whole table.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from typing import Any

from torch.overrides import get_testing_overrides

from faithcheck.explainers.lrp.operation_call import Rule


class Trait(Enum):
    """A property of an operation."""

    REARRANGEMENT = "moves or selects values, or changes their sign: each output value is ± one input value"
    CHOICE = "chooses among several values by their size, such as max"
    ONE_VALUE = "a function of one value, applied element by element, such as relu"
    MODULE = "a class of modules, treated as one operation"
    SUM = "adds values"
    POOLING = "adds values along an axis, and removes it"
    LINEAR_MAP = "a linear map of the first operand, with constant weights, and perhaps a bias"
    MATRIX_PRODUCT = "sums of products of two operands"
    ELEMENTWISE_PRODUCT = "a product, or a quotient, element by element; linear in its first operand"
    QUOTIENT = "a quotient, element by element"
    ELEMENTWISE_AFFINE = "an arithmetic operator that is affine in its first operand: + − × ÷ or a sign"
    HOMOGENEOUS = "f(αx) = α f(x) for α > 0, where no other trait says so already"
    IN_PLACE = "writes its result to its first operand"
    FILLS = "can put a number in the place of values"
    ABSORBS = "keeps a part of the relevance that it receives, even under its own gradient and without a bias"


@dataclass(frozen=True)
class Operation:
    """One row of the table.

    Attributes:
        name: the operation, see `operation_name`; or a class of modules, where ``*`` stands for any beginning.
        rule: the rule that every LRP method has for it unless the method's own table says otherwise; None: a method
            that supports the operation names the rule in its own table.
        traits: its properties.
        power: p of a function xᵖ.
        bias: position and name of the argument that is a bias.
    """

    name: str
    rule: Rule | None
    traits: frozenset[Trait]
    power: float | None = None
    bias: tuple[int, str] | None = None


declared_operations: dict[str, Operation] = {}


def declare(
    names: str, *traits: Trait, rule: Rule | None, power: float | None = None, bias: tuple[int, str] | None = None
) -> None:
    """Add rows to the table: operations, by names separated by spaces, that share their rule and their traits."""
    for name in names.split():
        if name in declared_operations:
            raise ValueError(f"operation {name!r} is declared twice: extend the row that exists")
        declared_operations[name] = Operation(name, rule, frozenset(traits), power, bias)


OPERATORS = {"radd": "add", "rmul": "mul", "truediv": "div", "rtruediv": "rdiv"}
"""Python's names of operators, without the underscores around them."""
ALIAS = re.compile(r"alias (?:for|of) :\w+:`~?(?:torch\.)?(?:Tensor\.|linalg\.|(special)\.)?(\w+)`", re.IGNORECASE)


@cache
def aliases() -> Mapping[str, str]:
    """torch's further names of operations, such as ``multiply`` for ``mul``, also of those in place.

    They are found in the documentation of the functions that torch lets a mode override.
    """
    found = dict[str, str]()
    for function in get_testing_overrides():
        if match := ALIAS.search(function.__doc__ or ""):
            name, original = name_of(function), match[2]
            # torch has sigmoid as the alias of special.expit, and it is sigmoid that has a rule.
            found |= {f"special_{original}": name} if match[1] else {name: original}
    found = {name: original for name, original in found.items() if name != original}
    return {**{f"{name}_": f"{original}_" for name, original in found.items() if name[-1] != "_"}, **found}


@lru_cache(maxsize=1024)
def operation_name(operation: Callable[..., Any]) -> str:
    """The name that rule tables use: ``torch.add``, ``Tensor.__radd__`` and ``x + y`` are all ``add``."""
    name = name_of(operation)
    name = OPERATORS.get(name, name)
    return aliases().get(name, name)


def name_of(operation: Callable[..., Any]) -> str:
    """An operation's own name, without the underscores around it."""
    name = getattr(operation, "__name__", "")
    if name == "__get__":  # a property such as x.T
        name = getattr(operation.__self__, "__name__", "")  # type: ignore[attr-defined]
    return name.removeprefix("__").removesuffix("__")
