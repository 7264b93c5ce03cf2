"""A forward pass whose inputs are pairs of a token and its position: positions carry relevance, too.

Bakish, Zimerman, Chefer & Wolf 2025, arXiv 2506.02138, make the input space of an explanation of such pairs. Where a
constant that is made of position embeddings meets a tensor with relevance, it becomes an operand with relevance. The
method's own rule of that operation then says what the position gets:

1. Added, z = x + p: p gets p ⊙ G, with G the gradient at z that the rules give, and x gets what it had.
2. Rotary, z = h ⊙ c with c = cos or sin of the angles of a position: the product rule halves, so that c and h get half
   of the relevance of z each, ½ z ⊙ G (Eqs. 3–4 of arXiv 2510.18810). Only half goes on to what h was computed from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from faithcheck.explainers.lrp.constant_names import POSITIONS, NamingConstants
from faithcheck.explainers.lrp.engine import LRP, SinglePassPropagation
from faithcheck.explainers.lrp.operation_call import tensors_with_relevance
from faithcheck.explainers.lrp.operations import operation_name
from faithcheck.explainers.lrp.recorded_operation import is_float, relevance
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.case import Case

ROTARY = re.compile(rf"{POSITIONS.pattern}|rotary|rope|inv_freq")
"""The names of parameters and buffers that cosines and sines of positions are made of."""


@dataclass(frozen=True)
class Position:
    """A constant of positions that became an operand with relevance.

    Attributes:
        leaf: of the shape of the result that it is joined to, ``(batch, …)``.
        varying: the axes along which the constant varies; others repeat it.
        operation: that joins it.
    """

    leaf: Tensor
    varying: frozenset[int]
    operation: str


class AddedPositions(NamingConstants, SinglePassPropagation):
    """A `Propagation` in which position embeddings carry relevance where they are added. Arguments as there.

    Attributes:
        joining: the names of constants that become operands with relevance, by the operation that joins them.
        positions: these operands.
    """

    joining: ClassVar[Mapping[str, re.Pattern[str]]] = dict.fromkeys(("add", "add_"), POSITIONS)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.positions: list[Position] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = operation_name(func)
        names = self.joining.get(name)
        if names is not None and self.module_operation is None and torch.is_grad_enabled():
            operands = [x for x in tensors_with_relevance((args, kwargs)) if not self._is_constant(x)]
            if len(operands) == 1:
                args, kwargs = tree_map(lambda value: self._joined(value, operands[0], name), (args, kwargs))
        return super().__torch_function__(func, types, args, kwargs)

    def _is_constant(self, x: Tensor) -> bool:
        return not x.requires_grad or (x.is_leaf and x is not self.point)

    def _joined(self, value: Any, operand: Tensor, operation: str) -> Any:
        """An operand with relevance in place of a constant of positions; any other value as it is."""
        if not is_float(value) or not self._is_constant(value):
            return value
        if not any(self.joining[operation].search(name) for name in self.constant_names(value)):
            return value
        shape = torch.broadcast_shapes(value.shape, operand.shape)  # type: ignore[no-untyped-call]
        leaf = value.detach().expand(shape).clone().requires_grad_()
        first = len(shape) - value.dim()
        varying = frozenset(first + axis for axis, size in enumerate(value.shape) if size > 1)
        self.positions.append(Position(leaf, varying, operation))
        alias = leaf.view_as(leaf)
        self.visible.add(alias.grad_fn)
        return alias

    def relevances(self, output: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The gradient at the inputs, shaped like them, and the relevance of each of `positions`, in float64."""
        leaves = [position.leaf for position in self.positions]
        point, *gradients = torch.autograd.grad(output.sum(), [self.point, *leaves], allow_unused=True)
        assert point is not None
        return point, [relevance(leaf, g).expand(leaf.shape) for leaf, g in zip(leaves, gradients, strict=True)]


class PositionPairs(AddedPositions):
    """`AddedPositions`, in which the cosines and sines of rotary positions carry relevance where they multiply."""

    joining: ClassVar[Mapping[str, re.Pattern[str]]] = {
        **AddedPositions.joining,
        **dict.fromkeys(("mul", "mul_"), ROTARY),
    }

    def of_tokens(self, relevances: Sequence[Tensor], shape: torch.Size) -> list[Tensor]:
        """The relevance of each position at its token, each of this shape, ``(batch, tokens)``, from `relevances`.

        Of more positions than tokens, such as that of a class token, those of the tokens are the last ones.

        Raises:
            Unsupported: a position embedding is not of the tokens, such as one of pairs of tokens, or of examples that
                the model packs into other rows.
        """
        return [_of_tokens(*one, *shape) for one in zip(self.positions, relevances, strict=True)]


def _of_tokens(position: Position, relevance: Tensor, batch: int, tokens: int) -> Tensor:
    last = relevance.dim() - 1
    # An embedding is added to ``(batch, tokens, width)``; a rotation multiplies that, or one of each head.
    added = position.operation in AddedPositions.joining
    axes = {1} if added else position.varying - {0, last}
    if len(relevance) != batch:
        raise Unsupported(f"position embeddings of {len(relevance)} rows for {batch} examples: take attnlrp")
    if not axes and tokens == 1:
        return relevance.flatten(1).sum(1, keepdim=True)
    if len(axes) != 1 or (added and last != 2) or relevance.shape[min(axes)] < tokens:
        raise Unsupported(
            f"position embeddings in a tensor of shape {(*relevance.shape,)}, which are not of the {tokens} tokens: "
            "take attnlrp"
        )
    return relevance.sum([other for other in range(1, last + 1) if other not in axes])[:, -tokens:]


def position_relevance(lrp: LRP, model: nn.Module, case: Case) -> Tensor:
    """What the position embeddings that a model adds keep of each example's relevance, ``(batch,)``.

    Raises:
        Unsupported: the model adds none; or see `LRP.attribute`.
    """
    pairs, output = lrp.propagate(model, case, AddedPositions)
    assert isinstance(pairs, AddedPositions)
    if not pairs.positions:
        raise Unsupported("the model adds no position embeddings")
    _, relevances = pairs.relevances(output)
    examples = len(case.inputs)
    if any(len(each) % examples for each in relevances):
        raise Unsupported("the model adds position embeddings to a tensor whose first axis is not the batch")
    return torch.stack([each.reshape(examples, -1).sum(1) for each in relevances]).sum(0)
