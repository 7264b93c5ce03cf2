"""A call of one operation, as an LRP rule receives it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import is_
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

    Attributes:
        name: the operation's key in the table of rules.
        operation: the function that computes it.
        args: its arguments.
        kwargs: its arguments by keyword.
        epsilon: the stabiliser ε ≥ 0.
        where: names the module whose forward pass is running.
        number: how many calls of this name the forward pass made before.
        signed: whether the stabiliser has the sign of the value it is added to.
        recorded: whether the ledger records the call. It compares the gradients at the result before and after a
            rule's factor, so that the factor must stand there.
    """

    name: str
    operation: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    epsilon: float
    where: Callable[[], str]
    number: int = 0
    signed: bool = True
    recorded: bool = False
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

    def with_operands(self, operands: list[Tensor]) -> OperationCall:
        """The same call, with other tensors in place of the operands that carry relevance, in their order."""
        of, others = self.operands_with_relevance(), iter(operands)
        if len(self.args) == len(of) and all(map(is_, self.args, of)):  # torch's pytree takes longer
            return replace(self, args=tuple(others))
        leaves, structure = tree_flatten((self.args, self.kwargs))
        leaves = [next(others) if isinstance(x, Tensor) and x.requires_grad else x for x in leaves]
        args, kwargs = tree_unflatten(leaves, structure)
        return replace(self, args=args, kwargs=kwargs)

    def stabilised(self, z: Tensor, parts: int = 1) -> Tensor:
        """`stabilised`, by the stabiliser of this call.

        Raises:
            ZeroDivisionError: a denominator parts·z + ε without a sign is 0.
        """
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


SomeRule = TypeVar("SomeRule", bound=Rule)


def plain_gradient(operands: int) -> Callable[[SomeRule], SomeRule]:
    """Declare that a rule is the plain gradient in the limit ε → 0 if at most so many operands carry relevance.

    Then the rule returns the operation's own value and refuses nothing, so that the engine need not call it.
    """

    def declared(rule: SomeRule) -> SomeRule:
        rule.operands_of_plain_gradient = operands  # type: ignore[attr-defined]
        return rule

    return declared


ANY_NUMBER = sys.maxsize
"""For `plain_gradient`: any number of operands."""
