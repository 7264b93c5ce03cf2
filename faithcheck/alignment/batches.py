"""The batches of an alignment: which examples can be measured, and which of them run together."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from faithcheck.models.data.stored import stored_array
from faithcheck.models.pretrained.example import Examples


class AlignmentError(ValueError):
    """The data cannot be measured with these settings. The message says why and what to change."""


class Batches(Sequence[list[int]]):
    """The examples of each batch, in the order in which they run; in temporary files, so that memory holds no example.

    ``order`` has the examples of one batch after the other, ``starts`` the place in it at which each batch starts, and
    behind the last one where it ends, ``(batches + 1,)``.
    """

    def __init__(self, order: np.ndarray, starts: np.ndarray) -> None:
        self._order, self._starts = order, starts
        self._places = stored_array(1 + int(order.max(initial=-1)), np.int64)  # from 1; 0: of no batch
        self._places[order] = np.arange(1, 1 + len(order))

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, chosen: int) -> list[int]: ...

    @overload
    def __getitem__(self, chosen: slice) -> list[list[int]]: ...

    def __getitem__(self, chosen: int | slice) -> list[int] | list[list[int]]:
        if isinstance(chosen, slice):
            return [self[number] for number in range(*chosen.indices(len(self)))]
        number = range(len(self))[chosen]
        examples: list[int] = self._order[self._starts[number] : self._starts[number + 1]].tolist()
        return examples

    def number_of(self, example: int) -> int | None:
        """The number of the batch that has this example; None if none has."""
        place = int(self._places[example]) - 1 if 0 <= example < len(self._places) else -1
        return None if place < 0 else int(np.searchsorted(self._starts, place, side="right")) - 1


def measurable(examples: Examples) -> np.ndarray:
    """The examples with a feature that is not special, and another that remains; not those too long for the model."""
    return np.flatnonzero((examples.features > 1) & (examples.non_special > 0) & ~examples.too_long)


def longest(examples: Examples) -> tuple[int, int]:
    """The index and the number of features of the longest example that can be measured, the last if there are more."""
    chosen = measurable(examples)
    index = int(chosen[-1 - np.argmax(examples.features[chosen[::-1]])]) if len(chosen) else 0
    return index, int(examples.features[index])


def batches(examples: Examples, max_tokens: int) -> Batches:
    """Put examples of similar length together, as many as fit one forward pass of LOO, at least one.

    Only the lengths decide, so that a resumed run has the same batches. `AlignmentError`: no example can be measured,
    or one alone has more than ``max_tokens`` features.
    """
    chosen = measurable(examples)
    if not len(chosen):
        unanswered, too_long = int(examples.unanswered.sum()), int(examples.too_long.sum())
        hint = f"; the model's answer to {unanswered} of them is empty: give one by --target" if unanswered else ""
        hint += f"; {too_long} of them are longer than the model takes: cut them with --max-length" if too_long else ""
        raise AlignmentError(f"none of the {len(examples)} examples has a feature that is not special{hint}")
    order = stored_array(len(chosen), np.int64)
    order[:] = chosen[np.argsort(examples.features[chosen], kind="stable")]
    starts = stored_array(len(chosen) + 1, np.int64)
    number = 0
    for number, start in enumerate(_starts(examples, order, max_tokens)):
        starts[number] = start
    starts[number + 1] = len(order)
    return Batches(order, starts[: number + 2])


def _starts(examples: Examples, order: np.ndarray, max_tokens: int) -> Iterator[int]:
    start = 0
    for place, i in enumerate(order):
        n = int(examples.features[i])
        if n > max_tokens:
            raise AlignmentError(
                f"example {i} has {n} features, more than the {max_tokens} of one forward pass: raise --max-tokens, "
                "or cut the texts with --max-length"
            )
        # The last example is the longest: no row is padded to more. LOO has n + 1 rows per example.
        if place == 0 or (place - start + 1) * n * (n + 1) > max_tokens:
            start = place
            yield start
