"""Recorded values, and how they are computed: none twice, and none that nothing reads.

1. From a result back to the inputs, it is found which positions of each value are read. A classifier that reads the
   first token needs only this position of its last layer, except the keys and values.
2. From the inputs to the result, values are computed. A value that is the same in every row, such as the queries of
   the first layer if rows differ in their attention mask alone, is computed for one row. Where only some tokens of a
   row differ from a reference row's, such as with a causal mask those from the removed token on, only these are
   computed. The reference row is the pass's last one, or that of an earlier pass (`faithcheck.explainers.loo.passes`).

What belongs here: values and computing. Not here: what an operation does to axes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any, TypeAlias

import torch
from torch import Tensor

from faithcheck.explainers.loo.passes import Pass, bits, memory_of, version

Axes: TypeAlias = Callable[[int], "Sequence[int | None] | None"]
"""Where an axis of a result lies in each operand: the axis, or None if the operand is the same all along it; None for
all operands if positions along the axis are mixed."""

Compute: TypeAlias = Callable[[Sequence[Tensor], Sequence[int]], Tensor]
"""Computes a result from the values of the operands and from its own shape, which may be shorter along some axes."""

WORTHWHILE = 0.8
"""Distinct tokens are computed apart if they are at most this share of all: to take them apart costs time, too."""

_numbers = count()


def mixed(axis: int) -> None:
    """The axes of a value whose positions are not those of any operand, or that is computed."""


class MustRunPlainly(BaseException):
    """The model does what a recording cannot follow, such as writing to its tensors.

    No `Exception`, because a model that catches all of them must not go on.
    """


@dataclass(frozen=True)
class Positions:
    """Some positions along an axis of a tensor."""

    axis: int
    index: tuple[int, ...]

    def of(self, tensor: Tensor) -> Tensor:
        """The tensor at these positions."""
        first, length = self.index[0], len(self.index)
        if self.index == tuple(range(first, first + length)):
            return tensor.narrow(self.axis, first, length)
        return tensor.index_select(self.axis, torch.tensor(self.index, device=tensor.device))


@dataclass(frozen=True, eq=False)
class DistinctTokens:
    """The tokens that differ from the reference row's at the same position, and behind them those of that row.

    With a causal mask, a row has the tokens before its own removed one in common with every row in which a later one is
    removed. The reference row is one with the longest beginning of this kind.

    A tensor of them has one token a row: ``(tokens, …)`` with length 1 along the axis of the tokens. The tokens of the
    reference row are part of it if that is the last row of the pass, and not if an earlier pass computed them.

    Attributes:
        differs: ``(rows, positions)`` bool, whether the token differs; true for a reference row of this pass.
        row: ``(tokens,)`` int64, the row of each.
        position: ``(tokens,)`` int64, its position.
        index: ``(rows, positions)`` int64, which token stands at each position of each row.
        is_later: whether an earlier pass has the reference row.
    """

    differs: Tensor
    row: Tensor
    position: Tensor
    index: Tensor
    is_later: bool

    @staticmethod
    def where(differs: Tensor, is_later: bool) -> DistinctTokens | None:
        """The tokens that differ, ``(rows, positions)`` bool; None if they are so many that it does not pay."""
        if not is_later:
            differs = differs.clone()
            differs[-1] = True
        if float(differs.sum()) > WORTHWHILE * differs.numel():
            return None
        row, position = differs.nonzero(as_tuple=True)
        number = differs.flatten().cumsum(0).view(differs.shape) - 1
        positions = differs.shape[1]
        of_reference = torch.arange(positions, device=row.device) + len(row) - (0 if is_later else positions)
        return DistinctTokens(differs, row, position, torch.where(differs, number, of_reference), is_later)

    def of(self, tensor: Tensor, axis: int) -> Tensor:
        """These tokens of a tensor with rows along axis 0, or with one row for all, and tokens along another axis."""
        by_token = tensor.movedim(axis, 1)
        chosen = by_token[0, self.position] if len(tensor) == 1 else by_token[self.row, self.position]
        return chosen.unsqueeze(1).movedim(1, axis)

    def spread(self, tensor: Tensor, axis: int, needed: Positions | None) -> Tensor:
        """All rows at the positions that are needed, from a tensor of these tokens and those of the reference row."""
        is_part = needed is not None and needed.axis == axis
        index = Positions(1, needed.index).of(self.index) if needed is not None and is_part else self.index
        by_token = tensor.movedim(axis, 1).squeeze(1).index_select(0, index.flatten())
        rows = by_token.reshape(*index.shape, *by_token.shape[1:]).movedim(1, axis)
        return rows if needed is None or is_part else needed.of(rows)

    def union(self, other: DistinctTokens) -> DistinctTokens | None:
        """The tokens that differ in either."""
        if self is other or torch.equal(self.differs, other.differs):
            return self
        return DistinctTokens.where(self.differs | other.differs, self.is_later)

    def anywhere(self) -> Tensor:
        """The positions at which a row differs that is not the reference row, ``(positions,)`` bool."""
        return (self.differs if self.is_later else self.differs[:-1]).any(0)


@dataclass(eq=False)
class Value:
    """A tensor of a model's forward pass: computed, or recorded as the operation that computes it.

    Attributes:
        shape: its shape.
        dtype: its kind of floating-point number.
        device: where it is.
        name: the operation.
        operands: what it is computed from; empty if it is computed.
        compute: see `Compute`.
        axes: see `Axes`.
        reads: the positions of the only operand that this result is; or None.
        differing: for an operation that mixes tokens along axis 2: which tokens of the result differ from the
            reference row's, ``(rows, positions)`` bool; or None if that is not known.
        for_few: the operands, the computation and the axes by which some positions take less, if these do; or None.
        tensor: its value, of length 1 along axis 0 if it is shared, of distinct tokens alone if ``tokens`` is given.
        shared: whether it is the same in every row and the reference row.
        tokens: the tokens that differ between rows; or None if they are not distinguished.
        token_axis: the axis of the tokens.
        number_operand: the number that an operation on elements has besides its operands.
        order: of the axes of a transposed operand.
        options: what else tells the operation apart from others of this name.
        version: how often the tensor was written to when it became known.
        of_pass: the pass that it belongs to, if others have rows in common with it; else None.
        place: its place there.
        number: values are numbered in the order in which they are recorded.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    name: str = ""
    operands: Sequence[Value] = ()
    compute: Compute | None = None
    axes: Axes = mixed
    reads: Positions | None = None
    differing: Callable[[], Tensor | None] | None = None
    for_few: Callable[[Positions], tuple[Sequence[Value], Compute, Axes] | None] | None = None
    tensor: Tensor | None = None
    shared: bool = False
    tokens: DistinctTokens | None = None
    token_axis: int = 0
    number_operand: float | None = None
    order: tuple[int, ...] = ()
    options: Hashable = None
    version: int = 0
    of_pass: Pass | None = None
    place: int = -1
    number: int = field(default_factory=lambda: next(_numbers))

    def __post_init__(self) -> None:
        if self.compute is not None:
            rows = self.axes(0) if self.shape else None
            self.shared = rows is not None and all(
                axis is None or (axis == 0 and operand.shared)
                for axis, operand in zip(rows, self.operands, strict=True)
            )
            if self.of_pass is not None:
                what = self.name, self.shape[1:], self.number_operand, self.order, self.reads, self.options
                self.place = self.of_pass.next_place(*what, *(operand.identity for operand in self.operands))

    @property
    def identity(self) -> Hashable:
        """What tells it apart as an operand: its place in the pass, the name of a causal mask, a weight's memory."""
        if self.of_pass is not None:
            return self.place
        return self.name or (None if self.tensor is None else memory_of(self.tensor))

    @property
    def is_later(self) -> bool:
        """Whether an earlier pass has the reference row."""
        return self.of_pass is not None and self.of_pass.first is not None

    @cached_property
    def is_finite(self) -> bool:
        """Whether a computed value holds finite numbers alone."""
        return self.tensor is not None and bool(self.tensor.isfinite().all())

    def full(self) -> Tensor:
        """The whole tensor, computed now if it was not; rows that are the same share memory."""
        if self.tensor is None:
            compute_value(self)
        tensor = operand_at(self, None, {})
        return tensor.expand(self.shape) if self.shared else tensor


def value_like(
    x: Value, shape: Sequence[int], name: str, operands: Sequence[Value], compute: Compute, axes: Axes, **more: Any
) -> Value:
    """A value of the same kind of number in the same place, recorded as an operation; see `Value`."""
    return Value(tuple(shape), x.dtype, x.device, name, operands, compute, axes, of_pass=x.of_pass, **more)


def of_one_kind(values: Sequence[Value]) -> bool:
    """Whether all values are the same kind of floating-point number, on the same device."""
    first = values[0]
    return first.dtype.is_floating_point and all(
        value.dtype == first.dtype and value.device == first.device for value in values
    )


def computed(tensor: Tensor, of_pass: Pass | None = None) -> Value:
    """An ordinary tensor as a value; it is shared if its rows are equal, and in a later pass to the reference row."""
    place, row = (-1, None) if of_pass is None else of_pass.constant(tensor)
    has_rows = tensor.dim() > 1 and len(tensor) > 0
    if row is None and has_rows and (len(tensor) == 1 or tensor.stride(0) == 0):
        shared = True
    else:
        shared = has_rows and are_rows_equal(tensor, tensor[:1] if row is None else row)
    return Value(
        tuple(tensor.shape),
        tensor.dtype,
        tensor.device,
        tensor=tensor[:1] if shared else tensor,
        shared=shared,
        version=version(tensor),
        of_pass=of_pass,
        place=place,
    )


def computed_by_token(tensor: Tensor, of_pass: Pass | None = None) -> Value:
    """A model's inputs ``(rows, tokens, …)`` as a value; tokens of the reference row are kept apart from the others.

    The value's memory is its own, or nothing writes to it: a model may write to its inputs, and is then run again.
    """
    value = computed(tensor, of_pass)
    if value.shared:
        return value
    differs = bits(tensor) != bits(reference_row(value, tensor))
    tokens = DistinctTokens.where(differs.flatten(2).any(2) if tensor.dim() > 2 else differs, value.is_later)
    own = tensor.clone() if tokens is None else tokens.of(tensor, 1)
    return replace(value, tensor=own, tokens=tokens, token_axis=1, version=version(own))


def constant(tensor: Tensor) -> Value:
    """A weight as a value: its axis 0 does not count rows."""
    return Value(tuple(tensor.shape), tensor.dtype, tensor.device, tensor=tensor, version=version(tensor))


def are_rows_equal(tensor: Tensor, row: Tensor) -> bool:
    """Whether all rows have the bits of this one ``(1, …)``; the last of most tensors differs, which is soon seen."""
    return torch.equal(bits(tensor[-1:]), bits(row)) and bool((bits(tensor) == bits(row)).all())


def reference_row(value: Value, tensor: Tensor) -> Tensor:
    """The row ``(1, …)`` that the rows of a value are compared with, of which this is the whole tensor."""
    return tensor[-1:] if value.of_pass is None else value.of_pass.reference_row(value.place, lambda: tensor[-1:])


# --- what is read ----------------------------------------------------------------------------------------------------


def positions_read(result: Value) -> dict[int, tuple[Value, Positions | None]]:
    """The values that a result needs and the positions read of each, None for all; by their numbers.

    A value of which few positions are read is computed from other operands from now on, if that takes less.
    """
    read: dict[int, tuple[Value, Positions | None]] = {result.number: (result, None)}
    for value in reversed(recorded_before(result)):
        if value.number not in read:  # it was an operand before
            continue
        positions = read[value.number][1]
        lies = lies_in_operands(value, positions)
        for_few = None if lies is None or positions is None or value.for_few is None else value.for_few(positions)
        if for_few is not None:
            value.operands, value.compute, value.axes = for_few
            lies = lies_in_operands(value, positions)
        if lies is None:
            read[value.number] = (value, None)
        for i, operand in enumerate(value.operands):
            if operand.tensor is not None:
                continue
            needed = value.reads
            if lies is not None and lies[i] is not None:
                needed = lies[i]
            known = read.get(operand.number)
            read[operand.number] = (operand, needed if known is None or known[1] == needed else None)
    return read


def lies_in_operands(value: Value, positions: Positions | None) -> list[Positions | None] | None:
    """Where positions of a value lie in its operands, None for all of an operand; None if all operands are needed."""
    axes = None if positions is None or value.reads else value.axes(positions.axis)
    if axes is None or positions is None or 0 in axes:  # along axis 0, values may be shared
        return None
    return [None if axis is None else Positions(axis, positions.index) for axis in axes]


def recorded_before(result: Value) -> list[Value]:
    """The values that are not computed yet and that a result depends on, itself included, in their order."""
    found, waiting = {result.number: result}, [result]
    while waiting:
        for operand in waiting.pop().operands:
            if operand.tensor is None and operand.number not in found:
                found[operand.number] = operand
                waiting.append(operand)
    return [found[number] for number in sorted(found)]


# --- computing -------------------------------------------------------------------------------------------------------


def compute_value(result: Value) -> None:
    """Compute a value, and those that it needs, each as far as it is read."""
    read = positions_read(result)
    waiting = sorted(read.values(), key=lambda item: item[0].number, reverse=True)
    read_of = {number: positions for number, (_, positions) in read.items()}
    del read
    parts: dict[int, Tensor] = {}
    while waiting:
        value = waiting.pop()[0]
        positions = read_of[value.number]
        if positions is None:
            compute_all(value, parts)
        else:
            parts[value.number] = compute_rows(value, positions, parts)


def compute_all(value: Value, parts: Mapping[int, Tensor]) -> None:
    """Compute a value at all positions, and free what only this value needed."""
    assert value.compute is not None
    layout = None if value.shared or value.reads else tokens_of_operands(value)
    if layout is not None:
        value.tokens, value.token_axis, operands = layout
        shape = list(value.shape)
        shape[0], shape[value.token_axis] = len(value.tokens.row), 1
        value.tensor = value.compute(operands, shape)
    else:
        differs = value.differing() if value.differing is not None and not value.shared else None
        value.tokens = None if differs is None else DistinctTokens.where(differs, value.is_later)
        if value.tokens is None:
            value.tensor = compute_rows(value, None, parts)
        else:
            value.tensor, value.token_axis = compute_distinct(value, value.tokens, parts), 2
    value.version = version(value.tensor)
    value.operands, value.compute, value.axes, value.reads = (), None, mixed, None
    value.differing = value.for_few = None


def compute_rows(
    value: Value, positions: Positions | None, parts: Mapping[int, Tensor], only_last: bool = False
) -> Tensor:
    """The tensor of a value at the positions that are read of it; of one row if it is shared, or of the last one."""
    rows = value.axes(0) if value.shared or only_last else None
    lies = lies_in_operands(value, positions) or [value.reads] * len(value.operands)
    operands = []
    for i, operand in enumerate(value.operands):
        tensor = operand_at(operand, lies[i], parts)
        if operand.shared and not (rows is not None and rows[i] == 0):
            tensor = tensor.expand(operand.shape[0], *tensor.shape[1:])
        if only_last and rows is not None and rows[i] == 0:
            tensor = tensor[-1:]
        operands.append(tensor)
    shape = list(value.shape)
    if positions:
        shape[positions.axis] = len(positions.index)
    if value.shared or only_last:
        shape[0] = 1
    assert value.compute is not None
    return value.compute(operands, shape)


def compute_distinct(value: Value, tokens: DistinctTokens, parts: Mapping[int, Tensor]) -> Tensor:
    """The distinct tokens of a value that mixes tokens along its axis 2.

    Positions at which no row differs from the reference row, such as those before the first token that differs, are
    computed for that row alone, if it is in this pass.
    """
    differs = tokens.anywhere()
    if value.axes(2) is None or not 0 < int(differs.sum()) < len(differs):
        return tokens.of(compute_rows(value, None, parts), 2)
    whole = torch.empty(value.shape, dtype=value.dtype, device=value.device)  # what is not filled is not read
    whole[:, :, differs] = compute_rows(value, positions_along(2, differs), parts)
    if not tokens.is_later:
        whole[-1:, :, ~differs] = compute_rows(value, positions_along(2, ~differs), parts, only_last=True)
    return tokens.of(whole, 2)


def positions_along(axis: int, chosen: Tensor) -> Positions:
    """The positions along an axis at which ``chosen`` ``(n,)`` is true."""
    return Positions(axis, tuple(chosen.nonzero().flatten().tolist()))


def operand_at(operand: Value, needed: Positions | None, parts: Mapping[int, Tensor]) -> Tensor:
    """The tensor of an operand at the positions that are needed; of one row if it is shared."""
    if operand.tensor is None:
        return parts[operand.number]
    if operand.tokens is not None:
        return spread(operand, operand.tokens, needed)
    tensor = written_once(operand)
    return tensor if needed is None else needed.of(tensor)


def spread(value: Value, tokens: DistinctTokens, needed: Positions | None = None) -> Tensor:
    """All rows of a value of distinct tokens, at the positions that are needed."""
    return tokens.spread(torch.cat(known_tokens(value)), value.token_axis, needed)


def known_tokens(value: Value) -> list[Tensor]:
    """The tensor of a computed value, and the tokens of its reference row if an earlier pass has them."""
    tensor, axis = written_once(value), value.token_axis
    if value.of_pass is None or value.tokens is None:
        return [tensor]
    row = value.of_pass.reference_row(value.place, lambda: tensor[-value.shape[axis] :].transpose(0, axis))
    return [tensor, row.transpose(0, axis)] if value.is_later else [tensor]


def written_once(value: Value) -> Tensor:
    """The tensor of a computed value.

    Raises:
        MustRunPlainly: the model wrote to it since.
    """
    assert value.tensor is not None
    if value.version != version(value.tensor):
        raise MustRunPlainly("writes to its own tensors")
    return value.tensor


# --- distinct tokens -------------------------------------------------------------------------------------------------


def tokens_of_operands(value: Value) -> tuple[DistinctTokens, int, list[Tensor]] | None:
    """The distinct tokens of a value that mixes neither rows nor tokens, their axis, and its operands at these tokens.

    None if its operands do not tell tokens apart, or the value mixes them.
    """
    told_apart = [operand.tokens for operand in value.operands if operand.tokens is not None]
    rows = value.axes(0) if told_apart and value.shape else None
    if rows is None or not all(map(has_rows_of_result, value.operands, rows)):
        return None
    axis, lies = token_axis_of(value, rows)
    tokens: DistinctTokens | None = told_apart[0]
    for others in told_apart[1:]:
        tokens = None if tokens is None else tokens.union(others)
    if lies is None or tokens is None:
        return None
    rank = len(value.shape)
    operands = [at_tokens(*each, axis, rank, tokens) for each in zip(value.operands, rows, lies, strict=True)]
    return tokens, axis, operands


def has_rows_of_result(operand: Value, row: int | None) -> bool:
    """Whether an operand tells tokens apart, or is the same in every row; ``row`` is the rows' axis in it."""
    if operand.tokens is not None:
        return row == 0
    return row is None or (row == 0 and operand.shared)


def token_axis_of(value: Value, rows: Sequence[int | None]) -> tuple[int, Sequence[int | None] | None]:
    """The axis of a value along which its operands' tokens lie, and where it lies in them; None if it mixes them."""
    for axis in range(1, len(value.shape)):
        lies = value.axes(axis)
        if lies is not None and all(
            own == operand.token_axis
            if operand.tokens is not None
            else own is None or row == 0 or own + len(value.shape) - len(operand.shape) == axis
            for operand, row, own in zip(value.operands, rows, lies, strict=True)
        ):
            return axis, lies
    return 0, None


def at_tokens(operand: Value, row: int | None, own: int | None, axis: int, rank: int, tokens: DistinctTokens) -> Tensor:
    """An operand at distinct tokens, which lie along ``axis`` of a result with ``rank`` axes.

    Rows and tokens lie along the axes ``row`` and ``own`` of the operand, None if it is the same for all of them.
    """
    tensor = written_once(operand)
    if operand.tokens is not None:
        if torch.equal(operand.tokens.differs, tokens.differs):
            return tensor
        return tokens.of(spread(operand, operand.tokens), operand.token_axis)
    if row is None:  # a constant, perhaps with fewer axes, such as the positions' embeddings (tokens, width)
        tensor = tensor.expand(operand.shape)
        if own is not None:
            tensor, own = tensor.reshape((1,) * (rank - tensor.dim()) + tensor.shape), axis
    return tensor if own is None else tokens.of(tensor, own)
