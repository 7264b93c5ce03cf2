"""The layout of a tensor whose values belong to tokens: which axes count tokens, and which count columns.

Between its inputs and its output a Transformer's layer moves the values of a token, ``(batch, tokens, width)``, to
other shapes, ``(batch, heads, tokens, width of a head)`` say. Such a tensor is a matrix all the same: it has a row for
each token and a column for each of the token's values. What belongs here: the matrix of a tensor, and what an operation
that moves values does to its columns. It is found by running the operation on the numbers of the values, so that no
operation has to be known by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

NUMBERS = torch.int32
"""The type of rows' and columns' numbers."""


@dataclass(frozen=True)
class RowLayout:
    """Where the rows and columns of a tensor stand.

    Attributes:
        shape: the tensor's shape.
        row_axes: the axes that count examples and tokens, in this order: two axes, or one for both. An axis of size 1
            counts columns.
        rows: how many examples, and how many tokens in each.
    """

    shape: tuple[int, ...]
    row_axes: tuple[int, ...]
    rows: tuple[int, int]

    @property
    def column_axes(self) -> tuple[int, ...]:
        """The other axes, which count columns."""
        return tuple(axis for axis in range(len(self.shape)) if axis not in self.row_axes)

    @property
    def columns(self) -> int:
        """How many columns there are."""
        return prod(self.shape[axis] for axis in self.column_axes)

    @property
    def ends_with_columns(self) -> bool:
        """Whether the last axis counts all columns."""
        last = len(self.shape) - 1
        return last in self.column_axes and self.shape[last] == self.columns

    def matrix(self, x: Tensor) -> Tensor:
        """The matrix of a tensor of this layout: ``(batch, tokens, columns)``."""
        return x.permute(*self.row_axes, *self.column_axes).reshape(*self.rows, self.columns)

    def tensor(self, matrix: Tensor) -> Tensor:
        """The tensor of this layout with this matrix."""
        order = (*self.row_axes, *self.column_axes)
        moved = matrix.reshape([self.shape[axis] for axis in order])
        return moved.permute([order.index(axis) for axis in range(len(order))])

    def with_columns(self, columns: int) -> RowLayout:
        """The layout with another number of columns in the last axis."""
        return RowLayout((*self.shape[:-1], columns), self.row_axes, self.rows)


def moved_columns(
    operation: Callable[[list[Tensor]], Any], operands: Sequence[Tensor], layouts: Sequence[RowLayout]
) -> tuple[RowLayout, Tensor] | None:
    """What an operation that moves values does to columns.

    Args:
        operation: computes it on tensors of other values.
        operands: its operands.
        layouts: their layouts.

    Returns:
        The layout of its result, and for each of the result's columns the number of the column that it shows, where
        the operands' columns are counted one operand after the other. None if not every row shows the same columns of
        the same row of its operands.
    """
    rows, widths, device = layouts[0].rows, [layout.columns for layout in layouts], operands[0].device
    row = 1 + torch.arange(prod(rows), dtype=NUMBERS, device=device).view(*rows, 1)  # 0 is what an operation fills in
    column = torch.arange(sum(widths), dtype=NUMBERS, device=device)
    row_of_value, column_of_value = (
        operation(
            [
                _in_memory_of(operand, layout.tensor(part))
                for operand, layout, part in zip(operands, layouts, of.split_with_sizes(widths, -1), strict=True)
            ]
        )
        for of in (row.expand(*rows, len(column)), column.expand(*rows, -1))
    )
    if not isinstance(row_of_value, Tensor) or row_of_value.dtype != row.dtype:
        return None
    layout = _layout_of(row_of_value, rows)
    if layout is None:
        return None
    columns = layout.matrix(column_of_value).flatten(0, 1)
    return (layout, columns[0].long()) if (columns == columns[0]).all() else None


def _in_memory_of(x: Tensor, numbers: Tensor) -> Tensor:
    """Numbers with the strides of a tensor, which decide whether `Tensor.view` is possible."""
    return torch.empty_like(x, dtype=numbers.dtype, requires_grad=False).copy_(numbers)


def _layout_of(row_of_value: Tensor, rows: tuple[int, int]) -> RowLayout | None:
    """The layout of a tensor from the number of each value's row, from 1; None if they are not all in order."""
    axes = tuple(
        axis
        for axis, size in enumerate(row_of_value.shape)
        if size > 1 and not row_of_value.select(axis, 0).equal(row_of_value.select(axis, 1))
    )
    layout = RowLayout((*row_of_value.shape,), axes, rows)
    if prod(row_of_value.shape[axis] for axis in axes) != prod(rows) or not row_of_value.numel():
        return None
    expected = 1 + torch.arange(prod(rows), dtype=NUMBERS, device=row_of_value.device).view(*rows, 1)
    return layout if (layout.matrix(row_of_value) == expected).all() else None
