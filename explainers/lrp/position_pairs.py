"""A forward pass whose inputs are pairs of a token and its position: positions carry relevance, too.

Bakish, Zimerman, Chefer & Wolf 2025, arXiv 2506.02138, make the input space of an explanation of such pairs. Where a
constant that is made of position embeddings meets a tensor with relevance, it becomes an operand with relevance. The
method's own rule of that operation then says what the position gets:

1. Added, z = x + p: p gets p ⊙ G, with G the gradient at z that the rules give, and x gets what it had.
2. Rotary, z = h ⊙ c with c = cos or sin of the angles of a position: the product rule halves, so that c and h get half
   of the relevance of z each, ½ z ⊙ G (Eqs. 3–4 of arXiv 2510.18810). Only half goes on to what h was computed from.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from faithcheck.explainers.lrp.constant_names import POSITIONS, NamingConstants, is_float
from faithcheck.explainers.lrp.operation_call import tensors_with_relevance
from faithcheck.explainers.lrp.operations import operation_name
from faithcheck.explainers.lrp.recorded_operation import relevance
from faithcheck.explainers.protocol import Unsupported

ROTARY = re.compile(rf"{POSITIONS.pattern}|rotary|rope|inv_freq")
"""The names of parameters and buffers that cosines and sines of positions are made of."""


def has_positions(model: nn.Module) -> bool:
    """Whether a parameter, buffer or module of the model has a name of positions; a model without has none here."""
    modules = (f"{name} ({type(module).__name__})" for name, module in model.named_modules())
    tensors = (name for name, _ in (*model.named_parameters(), *model.named_buffers()))
    return any(ROTARY.search(name) for name in (*modules, *tensors))


@dataclass(frozen=True)
class Position:
    """A constant of positions that became an operand with relevance."""

    leaf: Tensor  # of the shape of the result that it is joined to, ``(batch, …)``
    varying: frozenset[int]  # the axes along which the constant varies; others repeat it
    operation: str  # that joins it

    @property
    def rotates(self) -> bool:
        """Whether it multiplies, and is not added."""
        return self.operation not in AddedPositions.joining

    @property
    def other_axes(self) -> tuple[int, ...]:
        """All axes but the first, and the one of the tokens, along which the positions of a rotation vary."""
        last = self.leaf.dim() - 1
        # An embedding is added to ``(batch, tokens, width)``; a rotation multiplies that, or one of each head.
        kept = self.varying - {0, last} if self.rotates else {1}
        return tuple(axis for axis in range(1, last + 1) if axis not in kept)

    @property
    def rows(self) -> tuple[int, int]:
        """How many rows there are along the first axis, and along that of the tokens."""
        others = {0, *self.other_axes}
        return self.leaf.shape[0], math.prod(size for axis, size in enumerate(self.leaf.shape) if axis not in others)


class AddedPositions(NamingConstants):
    """A `Propagation` in which position embeddings carry relevance where they are added."""

    # The names of constants that become operands with relevance, by the operation that joins them.
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
        self.join(Position(leaf, varying, operation), operand)
        alias = leaf.view_as(leaf)
        self.visible.add(alias.grad_fn)
        return alias

    def join(self, position: Position, operand: Tensor) -> None:
        """Note a position, and the operand that it is joined to. Subclasses record more here."""
        self.positions.append(position)

    def relevances(self, output: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The gradient at the inputs, shaped like them, and the relevance of each of `positions`, in float64."""
        leaves = [position.leaf for position in self.positions]
        point, *gradients = torch.autograd.grad(output.sum(), [self.point, *leaves], allow_unused=True)
        assert point is not None
        return point, [relevance(leaf, g).expand(leaf.shape) for leaf, g in zip(leaves, gradients, strict=True)]

    def relevance_of_examples(self, output: Tensor) -> Tensor:
        """The relevance of each example's positions, ``(batch,)``; refuses a model that adds none along the batch."""
        if not self.positions:
            raise Unsupported("the model adds no position embeddings")
        _, relevances = self.relevances(output)
        examples = len(self.point)
        if any(len(each) % examples for each in relevances):
            raise Unsupported("the model adds position embeddings to a tensor whose first axis is not the batch")
        return torch.stack([each.reshape(examples, -1).sum(1) for each in relevances]).sum(0)


class PositionPairs(AddedPositions):
    """`AddedPositions`, in which the cosines and sines of rotary positions carry relevance where they multiply.

    It also finds which token each position is of (`row_of_token`). The rows of a tensor are those of its first axis, by
    those of the axis along which positions vary: most often ``(batch, tokens)``, but a model may pad its inputs, put a
    class token before them, or run them one by one.
    """

    joining: ClassVar[Mapping[str, re.Pattern[str]]] = {
        **AddedPositions.joining,
        **dict.fromkeys(("mul", "mul_"), ROTARY),
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # For each of `positions`, the row of every token, ``(batch · tokens,)``; without one, the number of rows.
        self.rows: list[Tensor] = []
        self._found: dict[tuple[int, int], tuple[Tensor, Any]] = {}  # shape of rows → rows found last, and where

    def join(self, position: Position, operand: Tensor) -> None:
        """Also find the rows of the tokens; refuse positions of no token, such as those of pairs of tokens."""
        super().join(position, operand)
        shape, in_order = position.rows, (*self.point.shape[:2],)
        known = self._found.get(shape)
        # A layer mixes tokens, but has the rows of the layer below: they are searched where none were found below.
        if known is None or not (shape == in_order or depends(operand.grad_fn, known[1])):
            rows = row_of_token(position, operand, self.point)
            if rows is None and shape == in_order and position.rotates:
                rows = torch.arange(math.prod(shape), device=operand.device)  # behind layers without positions
            if rows is None:
                raise Unsupported(
                    f"position embeddings in {shape[0]} × {shape[1]} rows of a tensor of shape {(*operand.shape,)}: "
                    f"each row should be of one of the {in_order[0]} × {in_order[1]} tokens; take attnlrp"
                )
            known = self._found[shape] = rows, operand.grad_fn
        self.rows.append(known[0])

    def of_tokens(self, relevances: Sequence[Tensor]) -> list[Tensor]:
        """The relevance of each position at its token, each ``(batch, tokens)``, from `relevances`."""
        shape, found = self.point.shape[:2], []
        for position, rows, of_leaf in zip(self.positions, self.rows, relevances, strict=True):
            of_rows = (of_leaf.sum(position.other_axes) if position.other_axes else of_leaf).flatten()
            found.append(torch.cat([of_rows, of_rows.new_zeros(1)])[rows].view(shape))
        return found


def depends(node: Any, on: Any) -> bool:
    """Whether an autograd node is another one, or depends on it."""
    pending, seen = [node], set[Any]()
    while pending:
        node = pending.pop()
        if node is on:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            pending += [below for below, _ in node.next_functions]
    return False


def row_of_token(position: Position, operand: Tensor, point: Tensor) -> Tensor | None:
    """The row of ``operand`` that depends on each token of ``point``, ``(batch · tokens,)``; None if it is not one.

    1. With a random cotangent at all rows, a token's gradient is the sum of those that reach it from each row.
    2. With the same cotangent, but at the rows alone whose number has a 1 as its binary digit k, it stays as it was if
       the token's row is one of these, and is 0 if it is not. Any other gradient is of several rows.
    3. So there is one backward pass for each digit, of the part of the model below the operand.

    A token with gradient 0 has no row: the number of rows. Two tokens in one row are refused, too.
    """
    if operand.shape != position.leaf.shape:
        return None  # the positions repeat it
    rows = position.rows[0] * position.rows[1]
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(operand.shape[-1], generator=generator, dtype=torch.float64).to(operand)
    numbers = torch.arange(rows, device=operand.device).view(
        [1 if axis in position.other_axes else size for axis, size in enumerate(operand.shape)]
    )

    def gradient(at: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(
            operand, point, (at * cotangent).expand_as(operand), True, materialize_grads=True
        )
        return found.reshape(point.shape[0] * point.shape[1], -1).double()

    whole = gradient(torch.ones_like(numbers))
    size = whole.norm(dim=1)
    result = torch.zeros(len(whole), dtype=torch.int64, device=operand.device)
    for digit in range((rows - 1).bit_length()):
        part = gradient(numbers >> digit & 1)
        one, zero = (part - whole).norm(dim=1) <= 0.1 * size, part.norm(dim=1) <= 0.1 * size
        if not (one | zero).all():
            return None
        result += one.to(result) << digit
    found = result[size > 0]
    if not len(found) or len(set(found.tolist())) < len(found):
        return None
    return torch.where(size > 0, result, rows)
