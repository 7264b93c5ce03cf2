"""A call of one operation, as an LRP rule receives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from types import EllipsisType
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_iter, tree_unflatten

from faithcheck.explainers.lrp.modified_gradient import epsilon_over, stabilised
from faithcheck.explainers.protocol import Unsupported

HOLDING_NO_TENSOR = frozenset(
    {bool, int, float, str, type(None), slice, EllipsisType, torch.dtype, torch.device, torch.memory_format}
)
"""The common types of arguments that hold no tensor."""


def tensors_with_relevance(values: Any) -> list[Tensor]:
    """The tensors in these values that depend on the explained inputs, in order."""
    tensors: list[Tensor] = []
    _collect(values, tensors)
    return tensors


def _collect(values: Any, tensors: list[Tensor]) -> None:
    # The common types are handled here: torch's pytree takes longer than a small operation.
    if isinstance(values, Tensor):
        if values.requires_grad:
            tensors.append(values)
    elif type(values) in HOLDING_NO_TENSOR:
        pass
    elif isinstance(values, (tuple, list)):
        for value in values:
            _collect(value, tensors)
    elif isinstance(values, dict):
        for value in values.values():
            _collect(value, tensors)
    else:
        tensors += [x for x in tree_iter(values) if isinstance(x, Tensor) and x.requires_grad]


@dataclass
class OperationCall:
    """One call of an operation, or of a module treated as one operation.

    ``name`` is its key in the table of rules, ``where`` names the module whose forward pass is running, and ``number``
    counts the earlier calls of this name. ``signed``: the stabiliser ε ≥ 0 has the sign of the value it is added to.
    """

    name: str
    operation: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    epsilon: float
    where: Callable[[], str]
    number: int = 0
    signed: bool = True
    operands: list[Tensor] | None = field(default=None, init=False)  # see `operands_with_relevance`

    def value(self) -> Any:
        """The operation's own result, with its plain gradient."""
        return self.operation(*self.args, **self.kwargs)

    def operands_with_relevance(self) -> list[Tensor]:
        """The operands that carry relevance, in order; an operand used twice counts twice."""
        if self.operands is None:
            self.operands = tensors_with_relevance((self.args, self.kwargs))
        return self.operands

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument, passed by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def with_first_constant(self) -> OperationCall:
        """The same call, with its first operand that carries relevance held constant."""
        first, *others = self.operands_with_relevance()
        return self.with_operands([first.detach(), *others])

    def with_operands(self, operands: Sequence[Any]) -> OperationCall:
        """The same call, with other values in place of the operands that carry relevance, in their order."""
        others = iter(operands)
        leaves, structure = tree_flatten((self.args, self.kwargs))
        leaves = [next(others) if isinstance(x, Tensor) and x.requires_grad else x for x in leaves]
        args, kwargs = tree_unflatten(leaves, structure)
        return replace(self, args=args, kwargs=kwargs)

    def stabilised(self, z: Tensor, parts: int = 1) -> Tensor:
        """`stabilised` by this call's stabiliser; ZeroDivisionError if it has no sign and parts·z + ε is 0."""
        if not self.signed and self.epsilon > 0 and (epsilon_over(z, self.epsilon) == -parts).any():
            raise ZeroDivisionError(
                f"{self.name} in {self.where()}: the stabiliser has no sign, and the denominator {parts}·z + ε is 0 "
                f"for ε = {self.epsilon:g}: use the signed stabiliser, or another ε"
            )
        return stabilised(z, self.epsilon, parts, self.signed)

    def unsupported(self, why: str) -> Unsupported:
        """The error that refuses this call."""
        return Unsupported(f"{self.name} in {self.where()}: {why}")


Rule: TypeAlias = Callable[[OperationCall], Any]
"""A rule returns the operation's value with a modified gradient. Or it returns a function without arguments that
computes the value in several operations: the engine then applies each operation's own rule."""


class RuleTrait(Enum):
    """A property of a rule. A rule without traits is one about which nothing is known."""

    PLAIN_GRADIENT = "returns the operation's own value for ε → 0, and refuses nothing"
    PLAIN_GRADIENT_OF_ONE_OPERAND = "the same, if one operand carries relevance"
    HALVES = "gives each of two operands half of the relevance"
    CONSTANT = "passes on nothing"
    IDENTITY = "passes on all relevance, except at an operand that is exactly 0"
    FROM_ZERO = "passes on φ(x) − φ(0): the function's value at 0 keeps its share"
    SIGMA_CONSTANT = "holds the σ of a norm constant, so that the norm's bias alone keeps a share"
    ATTENTION = "computes scaled dot-product attention by its steps"


SomeRule = TypeVar("SomeRule", bound=Callable[..., Any])


def has(*traits: RuleTrait) -> Callable[[SomeRule], SomeRule]:
    """Declare the traits of a rule: a decorator."""

    def declared(rule: SomeRule) -> SomeRule:
        rule.traits = frozenset(traits)  # type: ignore[attr-defined]
        return rule

    return declared


def traits_of(rule: Rule | None) -> frozenset[RuleTrait]:
    """The traits that a rule, or the function of a `functools.partial`, was declared with."""
    while isinstance(rule, partial):
        rule = rule.func
    traits: frozenset[RuleTrait] = getattr(rule, "traits", frozenset())
    return traits
