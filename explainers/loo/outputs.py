"""A model's outputs without some features: how rows are distributed over passes, and the plain way to run them."""

from collections.abc import Callable, Iterator
from math import prod

import torch
from torch import Tensor, nn

from faithcheck.explainers.fast.switch import is_fast
from faithcheck.explainers.loo.removal import Removal
from faithcheck.models.case import Case, select_target

MOST_PADDING = 2**16
"""The most numbers of padding in the inputs of a pass over texts of several lengths: for more, a further pass takes
less. Measured on two cores, see docs/results/cost.md."""


@torch.no_grad()
def outputs_without(
    model: nn.Module, case: Case, example: Tensor, removed: Tensor, removal: Removal, max_tokens: int
) -> Tensor:
    """The explained output of examples without some of their features, ``(rows,)``, the mean over the removal's draws.

    Each row is of the example ``example``, ``(rows,)`` int64, without the features in ``removed``, ``(rows, features)``
    bool. Padding at the end of an example is left out as far as the other examples of its pass allow: an output should
    not depend on it. Of a model whose output does, the outputs here are those without the padding that is left out.

    Raises Unsupported from the removal, and ValueError for ``max_tokens`` below 1.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    run, lengths = way_to_run(model), features_before_padding(case)
    # A GPU takes about as long for a small pass as for a large one.
    most_padding = MOST_PADDING // prod(case.inputs.shape[2:]) if case.inputs.device.type == "cpu" else max_tokens
    outputs, order = [], []
    row_lengths = lengths[example]
    if getattr(removal, "closes_up", False) and "attention_mask" in case.forward_arguments:
        # Rows of equal length share passes: a model that reads its last column, whatever the mask, meets no padding.
        row_lengths, most_padding = (case.unpadded[example] & ~removed).sum(1), 0
    for rows in passes_over(row_lengths, example, removed, max_tokens, most_padding):
        length = int(lengths[example[rows]].max())
        part, without = case.select(example[rows]).first_features(length), removed[rows, :length]
        draws = [run(removal.remove(part, without, draw)) for draw in range(removal.draws)]
        outputs.append(torch.stack([select_target(output, part.target) for output in draws]).mean(0))
        order.append(rows)
    return torch.cat(outputs)[torch.cat(order).argsort()]


def way_to_run(model: nn.Module) -> Callable[[Case], Tensor]:
    """A function from rows to the outputs of the model on them, ``(rows, outputs)``."""
    if not is_fast():
        return lambda case: case.run(model)
    from faithcheck.explainers.fast.removal_rows import runner  # the plain way does not need what is behind the wall

    return runner(model)


def features_before_padding(case: Case) -> Tensor:
    """How many features each example has before the padding at its end, ``(batch,)`` int64, at least 1.

    All of them if a forward argument has neither one number per example nor a column per feature, such as a mask
    ``(batch, 1, features, features)``: how to cut it is not known.
    """
    batch, features = case.shape
    everything = torch.full((batch,), features, device=case.inputs.device)
    for value in case.forward_arguments.values():
        if value.dim() > 1 and (value.shape[:2] != case.shape or features in value.shape[2:]):
            return everything
    return everything - case.unpadded.flip(1).byte().argmax(1)  # 0 if all is padding


def passes_over(
    lengths: Tensor, example: Tensor, removed: Tensor, max_tokens: int, most_padding: int
) -> Iterator[Tensor]:
    """The rows of each forward pass, of which all rows are a permutation.

    Examples of similar length share passes, the longest first, so that later passes find the memory that the largest
    one freed. The rows of an example come in the order of their first removed feature, so that neighbours begin alike
    (`faithcheck.explainers.fast.shared_prefix`).

    A pass has one row, or at most ``max_tokens`` features, of which at most ``most_padding`` are padding. ``lengths``,
    ``(rows,)``, is how many features each row is to be run with.
    """
    features = removed.shape[1]
    first_removed = torch.where(removed.any(1), removed.byte().argmax(1), features)
    by_length = lengths * (int(example.max()) + 1) + example
    order = (by_length * (features + 1) + first_removed).argsort(descending=True, stable=True)
    for rows in split_rows(order, lengths[order], max_tokens, most_padding):
        yield rows.flip(0)


def split_rows(rows: Tensor, lengths: Tensor, max_tokens: int, most_padding: int) -> Iterator[Tensor]:
    """Rows whose lengths descend, in parts of at most so many features and so much padding; see `passes_over`."""
    start = padding = 0
    known = lengths.tolist()
    for stop, length in enumerate(known):
        padding += known[start] - length
        if stop > start and ((stop + 1 - start) * known[start] > max_tokens or padding > most_padding):
            yield rows[start:stop]
            start, padding = stop, 0
    if known:
        yield rows[start:]
