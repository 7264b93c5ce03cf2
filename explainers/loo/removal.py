"""The ways to remove features from an example, and the model's outputs without them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from faithcheck.explainers.loo.deferred import RowRunner
from faithcheck.explainers.loo.removal_names import REPLACEMENTS
from faithcheck.explainers.protocol import Unsupported, replacement_value
from faithcheck.models.case import Case, select_target
from faithcheck.models.targets import NO_ANSWER


class Removal(Protocol):
    """A way to remove features from a case."""

    @property
    def name(self) -> str:
        """The name in tables and on the command line."""
        ...

    @property
    def draws(self) -> int:
        """The number of random removals that a result is the mean of; 1 if the removal is not random."""
        ...

    @property
    def description(self) -> str:
        """The removal in words, for reports."""
        ...

    def remove(self, case: Case, removed: Tensor, draw: int = 0) -> Case:
        """The case without the features at which ``removed``, ``(batch, features)`` bool, is true.

        The result may have fewer features. The value that replaces a feature depends only on the example, the feature
        and ``draw``: not on the other removed features, the batch or padding.

        Raises:
            Unsupported: features of this case cannot be removed in this way.
        """
        ...


@dataclass(frozen=True)
class AttentionMask:
    """No token attends to a removed token: its attention_mask is 0; arXiv 2510.18810, §4.1.

    The removed token's position stays, and so does its own row of attention.
    """

    name: str = "attention_mask"
    draws: int = 1

    @property
    def description(self) -> str:
        """The removal in words, for reports."""
        return "attention mask 0, as in the paper"

    def remove(self, case: Case, removed: Tensor, draw: int = 0) -> Case:
        """See `Removal`; refuses a case without an attention_mask, and removing all features of a row."""
        if "attention_mask" not in case.forward_arguments:
            raise Unsupported(
                "removal by attention_mask: the case has no forward_arguments['attention_mask']; "
                "give it one, or remove by a replacement such as 'zero'"
            )
        require_some_left(self.name, case.unpadded & ~removed)
        mask = case.forward_arguments["attention_mask"].masked_fill(removed, 0)
        return replace(case, forward_arguments={**case.forward_arguments, "attention_mask": mask})


@dataclass(frozen=True)
class Replacement:
    """A removed feature takes a fixed value.

    Attributes:
        reference: the value: "baseline" for ``case.baseline``, "zero", or a name in ``case.replacements``, such as
            "mean", "mask" or "pad".
    """

    reference: str = "baseline"
    draws: int = 1

    @property
    def name(self) -> str:
        """The name of the value."""
        return self.reference

    @property
    def description(self) -> str:
        """The removal in words, for reports."""
        return f"replaced by {self.name}"

    def remove(self, case: Case, removed: Tensor, draw: int = 0) -> Case:
        """See `Removal`; refuses a case without a replacement of that name."""
        return replace(case, inputs=torch.where(at_features(removed, case.inputs), self.value(case), case.inputs))

    def value(self, case: Case) -> Tensor:
        """The value that a removed feature takes; broadcasts against ``case.inputs``."""
        if self.reference == "baseline":
            return case.baseline
        if self.reference == "zero":
            return torch.zeros_like(case.inputs[0, 0])
        return replacement_value(case, self.reference)


@dataclass(frozen=True)
class Deletion:
    """The other features close up, as if the removed features had never been in the text.

    Positions are counted again, padding is on the right, and each forward argument with a column per feature, such as
    token types, loses the same columns. ``forward_arguments["last"]``, the index of the token that a decoder is read
    at, becomes the index of the last remaining token. A deleted token is no token of an ``answer`` any more.
    """

    name: str = "delete"
    draws: int = 1

    @property
    def description(self) -> str:
        """The removal in words, for reports."""
        return "deleted, the rest closing up"

    def remove(self, case: Case, removed: Tensor, draw: int = 0) -> Case:
        """See `Removal`; refuses removing all features of a row, and unequal lengths without attention_mask."""
        keep = case.unpadded & ~removed
        require_some_left(self.name, keep)
        counts = keep.sum(1)
        length = int(counts.max())
        mask = case.forward_arguments.get("attention_mask")
        if mask is None and not bool((counts == length).all()):
            raise Unsupported(
                "removal by deletion: rows of different lengths need padding, and this model takes no attention_mask: "
                "remove by a replacement such as 'zero'"
            )
        order = keep.byte().argsort(dim=1, descending=True, stable=True)[:, :length]  # the remaining features, in order
        row = torch.arange(len(order), device=order.device).unsqueeze(1)
        remaining = case.with_features(lambda value: value[row, order])
        arguments = dict(remaining.forward_arguments)
        if mask is not None:
            arguments["attention_mask"] = arguments["attention_mask"].masked_fill(~keep[row, order], 0)
        if "last" in arguments:
            arguments["last"] = counts - 1
        if "answer" in arguments:
            arguments["answer"] = arguments["answer"].masked_fill(~keep[row, order], NO_ANSWER)
        return replace(remaining, forward_arguments=arguments)


@dataclass(frozen=True, eq=False)
class Resampling:
    """A removed feature takes the value of a feature drawn from other examples.

    Attributes:
        pool: ``(m, …)``, the features to draw from.
        draws: how many draws a result is the mean of.
        seed: of the draws.
        owners: for each feature of the pool, the `content` of the example that it is from. An example draws none of its
            own features. By default no feature is from an example of the case.

    Raises:
        ValueError: an empty pool, not one owner per feature, or no draws.
    """

    pool: Tensor
    draws: int = 8
    seed: int = 0
    owners: tuple[str, ...] = ()
    name: str = "resample"

    @property
    def description(self) -> str:
        """The removal in words, for reports."""
        return f"replaced by a feature drawn from the data set, mean of {self.draws} draws, seed {self.seed}"

    def __post_init__(self) -> None:
        require_draws(self.draws)
        if not len(self.pool):
            raise ValueError("removal by resampling needs a pool of at least one feature")
        if self.owners and len(self.owners) != len(self.pool):
            raise ValueError(f"a pool of {len(self.pool)} features has {len(self.owners)} owners")

    def remove(self, case: Case, removed: Tensor, draw: int = 0) -> Case:
        """See `Removal`; refuses a pool of features of another shape, or with no other example's features."""
        if self.pool.shape[1:] != case.inputs.shape[2:]:
            raise Unsupported(
                f"removal by resampling: the pool's features are shaped {tuple(self.pool.shape[1:])}, "
                f"the case's {tuple(case.inputs.shape[2:])}"
            )
        drawn = torch.zeros(case.shape, dtype=torch.int64)
        for i, unpadded, random in generators(case, self.seed, draw):
            candidates = self._candidates(content(case.inputs[i, unpadded.to(case.inputs.device)]))
            drawn[i, unpadded] = torch.from_numpy(
                candidates[random.integers(len(candidates), size=int(unpadded.sum()))]
            )
        inputs = case.inputs.clone()
        inputs[removed] = self.pool.to(inputs)[drawn.to(inputs.device)[removed]]
        return replace(case, inputs=inputs)

    def _candidates(self, owner: str) -> np.ndarray:
        """The indices of the pool's features that are not the owner's."""
        candidates = np.flatnonzero(np.array(self.owners) != owner) if self.owners else np.arange(len(self.pool))
        if not len(candidates):
            raise Unsupported(
                "removal by resampling: no other example to draw from; give more examples, or take another removal"
            )
        return candidates


@dataclass(frozen=True)
class GaussianNoise:
    """A removed feature x_i becomes x_i + N(0, σ²), σ = scale × the root mean square of x_i; a feature of zeros stays.

    Attributes:
        scale: σ in units of the feature's own root mean square.
        draws: how many draws a result is the mean of.
        seed: of the draws.

    Raises:
        ValueError: no draws.
    """

    scale: float = 1.0
    draws: int = 8
    seed: int = 0
    name: str = "noise"

    @property
    def description(self) -> str:
        """The removal in words, for reports."""
        noise = f"Gaussian noise of {self.scale:g} × its root mean square added"
        return f"{noise}, mean of {self.draws} draws, seed {self.seed}"

    def __post_init__(self) -> None:
        require_draws(self.draws)

    def remove(self, case: Case, removed: Tensor, draw: int = 0) -> Case:
        """See `Removal`."""
        normal = torch.zeros(case.inputs.shape, dtype=torch.float64)
        for i, unpadded, random in generators(case, self.seed, draw):
            shape = (int(unpadded.sum()), *case.inputs.shape[2:])
            normal[i, unpadded] = torch.from_numpy(random.standard_normal(shape))
        features = case.inputs[removed]  # (removed, …)
        is_scalar = features.dim() == 1
        size = features.abs() if is_scalar else features.flatten(1).square().mean(1).sqrt()
        inputs = case.inputs.clone()
        inputs[removed] = features + at_features(self.scale * size, features) * normal.to(inputs)[removed]
        return replace(case, inputs=inputs)


REMOVALS: dict[str, Callable[..., Removal]] = {
    "attention_mask": AttentionMask,
    "delete": Deletion,
    **{name: partial(Replacement, name) for name in REPLACEMENTS},
    "resample": Resampling,
    "noise": GaussianNoise,
}
"""Removals by name, all of `removal_names.NAMES`. Resampling needs a pool; it and noise take draws and a seed."""


MOST_PADDING = 2**16
"""The most numbers of padding in the inputs of a pass over texts of several lengths: for more, a further pass takes
less. Measured on two cores, see docs/results/cost.md."""


@torch.no_grad()
def outputs_without(
    model: nn.Module, case: Case, example: Tensor, removed: Tensor, removal: Removal, max_tokens: int
) -> Tensor:
    """The explained output of examples without some of their features, ``(rows,)``, the mean over the removal's draws.

    Padding at the end of an example is left out as far as the other examples of its pass allow: an output should not
    depend on it. Of a model whose output does, the outputs here are those without the padding that is left out.

    Args:
        model: maps a case to ``(batch, outputs)``.
        case: the examples.
        example: ``(rows,)`` int64, the example of each row.
        removed: ``(rows, features)`` bool, the features removed from each row.
        removal: how they are removed.
        max_tokens: the most features in one forward pass, padding included, but at least one row; bounds memory.

    Raises:
        Unsupported: from the removal.
        ValueError: ``max_tokens`` below 1.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    runner, lengths = RowRunner(model), features_before_padding(case)
    # A GPU takes about as long for a small pass as for a large one.
    most_padding = MOST_PADDING // prod(case.inputs.shape[2:]) if case.inputs.device.type == "cpu" else max_tokens
    outputs, order = [], []
    for rows, in_common in passes_over(lengths, example, removed, max_tokens, most_padding):
        length = int(lengths[example[rows]].max())
        part = case.select(example[rows]) if len(case.inputs) > 1 else case.repeat(len(rows))
        part, without = part.first_features(length), removed[rows, :length]
        draws = [runner.outputs(removal.remove(part, without, draw), in_common) for draw in range(removal.draws)]
        outputs.append(torch.stack([select_target(output, part.target) for output in draws]).mean(0))
        order.append(rows)
    return torch.cat(outputs)[torch.cat(order).argsort()]


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
) -> Iterator[tuple[Tensor, int | None]]:
    """The rows of each forward pass, of which all rows are a permutation.

    An example of more rows than fit in a pass has passes of its own. Those rows whose first removed feature comes last
    make the first one: on a causal model, the last of them begins as all others do, see
    `faithcheck.explainers.loo.passes`. Then comes the pass that computes most, so that later ones find the memory that
    it freed. Then examples of similar length share passes, the longest first.

    Args:
        lengths: ``(batch,)`` int64, the features of each example before its padding.
        example: ``(rows,)`` int64, the example of each row.
        removed: ``(rows, features)`` bool, the features removed from each row.
        max_tokens: the most features in a pass, padding included, but at least one row.
        most_padding: how many of them may be padding.

    Yields:
        The rows, and their example if it has passes of its own.
    """
    features = removed.shape[1]
    first_removed = torch.where(removed.any(1), removed.byte().argmax(1), features)
    by_length = lengths[example] * len(lengths) + example
    order = (by_length * (features + 1) + first_removed).argsort(descending=True, stable=True)
    is_too_large = example.bincount(minlength=len(lengths)) * lengths > max_tokens
    has_own_passes = is_too_large[example[order]]
    for number in is_too_large.nonzero().flatten().tolist():
        first, *others = torch.split(order[example[order] == number], max(1, max_tokens // int(lengths[number])))
        for rows in (first, *reversed(others)):
            yield rows.flip(0), number
    rest = order[~has_own_passes]
    yield from ((rows.flip(0), None) for rows in split_rows(rest, lengths[example[rest]], max_tokens, most_padding))


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


def generators(case: Case, seed: int, draw: int) -> Iterator[tuple[int, Tensor, np.random.Generator]]:
    """For each example its index, its features without padding ``(features,)`` bool, and its own random numbers.

    They depend on the example's features without padding, on the seed and on the draw: not on the batch or on earlier
    draws. NumPy's generators run on the CPU, so that every device draws the same numbers.
    """
    inputs, mask = case.inputs.detach().cpu(), case.unpadded.cpu()
    for i, unpadded in enumerate(mask):
        digest = hashlib.sha256(f"{seed} {draw} {content(inputs[i, unpadded])}".encode()).digest()
        yield i, unpadded, np.random.default_rng(int.from_bytes(digest))


def content(features: Tensor) -> str:
    """SHA-256 of an example's features ``(n, …)`` without padding, the same in float32 and float64."""
    return hashlib.sha256(features.detach().cpu().float().numpy().tobytes()).hexdigest()


def at_features(values: Tensor, inputs: Tensor) -> Tensor:
    """One value per feature, with trailing axes of length 1, to broadcast over the coordinates of ``inputs``."""
    return values.reshape(values.shape + (1,) * (inputs.dim() - values.dim()))


def default_removal(case: Case) -> Removal:
    """The removal unless the user says otherwise: by the attention mask if the case has one, else by the baseline."""
    return AttentionMask() if "attention_mask" in case.forward_arguments else Replacement()


def require_some_left(name: str, remaining: Tensor) -> None:
    """Refuse to remove all features of a row.

    Raises:
        Unsupported: a row has none left; a model's output without features is not defined.
    """
    empty = int((~remaining.any(1)).sum())
    if empty:
        raise Unsupported(
            f"removal by {name}: {empty} of {len(remaining)} rows would have no feature left, and without features no "
            "output is defined; leave a feature in (special features stay along a perturbation curve), or remove by a "
            "replacement"
        )


def require_draws(draws: int) -> None:
    """Refuse a mean over no draws.

    Raises:
        ValueError: fewer than one draw.
    """
    if draws < 1:
        raise ValueError(f"a random removal needs at least one draw, got {draws}")
