"""What the passes over an example have in common: the beginning of a reference row, which only the first one computes.

The last row of the first pass is the reference row. Its tokens are kept where that pass reads them along with those of
other rows: for each layer the keys, the values and the queries, in all three widths of the model a token. A later pass
compares its rows with the reference row, and computes the tokens that differ.

Both must do the same: what is kept is found by its place among the recorded operations. A later pass that records
another operation, or one on other operands, reads another constant, or needs what was not kept, raises
`OtherOperations`. So does a pass in which an operation is computed at once: what the model does next may then depend on
numbers of its rows.

What belongs here: what is kept of a pass, and when it counts for another. Not here: which tokens differ
(`faithcheck.explainers.loo.deferred_values`), which passes have rows in common (`faithcheck.explainers.loo.removal`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class OtherOperations(BaseException):
    """A pass cannot use what an earlier one kept.

    No `Exception`, because a model that catches all of them must not go on.
    """


@dataclass(eq=False)
class Pass:
    """A pass over rows of an example: the first one, whose last row is the reference row, or a later one.

    Attributes:
        rows: how many it has.
        first: the first pass; None if this is it.
        recorded: constants and operations in their order.
        kept: of the reference row ``(1, …)``, by their places; constants without rows as they are.
        versions: how often a constant without rows had been written to, by its place.
        is_closed: whether no operation was computed at once.
    """

    rows: int
    first: Pass | None = None
    recorded: list[tuple[Hashable, ...]] = field(default_factory=list)
    kept: dict[int, Tensor] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    is_closed: bool = True

    def next_place(self, *operation: Hashable) -> int:
        """The place of what is recorded next.

        Raises:
            OtherOperations: the first pass recorded something else in this place.
        """
        place = len(self.recorded)
        if self.first is not None and self.first.recorded[place : place + 1] != [operation]:
            raise OtherOperations
        self.recorded.append(operation)
        return place

    def constant(self, tensor: Tensor) -> tuple[int, Tensor | None]:
        """The place of an ordinary tensor, and in a later pass the reference row ``(1, …)``; None if it has no rows.

        Raises:
            OtherOperations: the first pass has another constant in this place.
        """
        place = self.next_place("constant", tensor.dtype, tensor.dim())
        if self.first is None:
            has_rows = tensor.dim() > 1 and len(tensor) == self.rows
            self.kept[place] = tensor[-1:].clone() if has_rows else tensor
            if not has_rows:
                self.versions[place] = version(tensor)
            return place, None
        known = self.first.kept[place]
        if place in self.first.versions:
            is_unwritten = version(known) == self.first.versions[place]
            if not is_unwritten or not (known is tensor or torch.equal(bits(known), bits(tensor))):
                raise OtherOperations
            return place, None
        if tensor.shape != (self.rows, *known.shape[1:]):
            raise OtherOperations
        return place, known

    def reference_row(self, place: int, own: Callable[[], Tensor]) -> Tensor:
        """The reference row of a value ``(1, …)``: ``own`` in the first pass, which keeps it; else the kept one.

        Raises:
            OtherOperations: the first pass did not keep it.
        """
        if self.first is None:
            if place not in self.kept:
                self.kept[place] = own().clone()
            return self.kept[place]
        if place not in self.first.kept:
            raise OtherOperations
        return self.first.kept[place]

    def open(self) -> None:
        """An operation is computed at once.

        Raises:
            OtherOperations: this is a later pass.
        """
        self.is_closed = False
        if self.first is not None:
            raise OtherOperations


def bits(tensor: Tensor) -> Tensor:
    """Floating-point numbers as integers: −0 is not +0, and a NaN equals itself."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(integers[tensor.element_size()]) if tensor.is_floating_point() else tensor


def memory_of(tensor: Tensor) -> Hashable:
    """What tells a tensor apart from all others, of freed ones too: its numbers' memory, and how they lie there."""
    memory = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]  # an address could be that of a freed tensor, too
    return memory, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, version(tensor)


def version(tensor: Tensor) -> int:
    """How often a tensor was written to; tensors made in inference mode do not count it."""
    return 0 if tensor.is_inference() else tensor._version
