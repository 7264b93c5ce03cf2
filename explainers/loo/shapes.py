"""Shapes that are broadcast to each other."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(shape: Sequence[int], result: Sequence[int], axis: int) -> int | None:
    """The axis of an operand that is broadcast to a result; None if the operand is the same along it."""
    own = axis - (len(result) - len(shape))
    return None if own < 0 or (shape[own] == 1 and result[axis] != 1) else own


def broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    """The shape that these shapes are broadcast to, None if they do not fit.

    `torch.broadcast_shapes` takes longer than a small operation.
    """
    longest = max(map(len, shapes))
    padded = [(*(1,) * (longest - len(shape)), *shape) for shape in shapes]
    shape = tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))
    fits = all(size in (1, wanted) for each in padded for size, wanted in zip(each, shape, strict=True))
    return shape if fits else None
