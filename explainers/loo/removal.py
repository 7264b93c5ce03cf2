"""What "removed" means: the ways to take features from an example, and the outputs that are left."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from faithcheck.explainers.protocol import Unsupported, replacement_value
from faithcheck.models.case import Case, select_target


class Removal(Protocol):
    """A way to take features from a case."""

    @property
    def name(self) -> str:
        """The name in tables and on the command line."""
        ...

    @property
    def draws(self) -> int:
        """How many random removals a result is the mean of; 1 where a removal is not random."""
        ...

    def remove(self, case: Case, removed: Tensor, draw: int = 0) -> Case:
        """The case without the features at which ``removed``, ``(batch, features)`` bool, is true.

        The result may have fewer features. What replaces a feature depends on the example as a whole, the feature and
        ``draw`` alone: not on what else is removed, on the batch or on padding.

        Raises:
            Unsupported: features of this case cannot be removed so.
        """
        ...


@dataclass(frozen=True)
class AttentionMask:
    """No token attends to a removed one: its attention_mask is 0; arXiv 2510.18810, §4.1.

    The removed token's position stays, and so does its own row of attention.
    """

    name: str = "attention_mask"
    draws: int = 1

    def remove(self, case: Case, removed: Tensor, draw: int = 0) -> Case:
        """See `Removal`; refuses a case without an attention_mask, and to remove a row's every feature."""
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
        reference: "baseline" for ``case.baseline``, "zero", or a name in ``case.replacements``, such as "mean", "mask"
            or "pad".
    """

    reference: str = "baseline"
    draws: int = 1

    @property
    def name(self) -> str:
        """The reference's."""
        return self.reference

    def remove(self, case: Case, removed: Tensor, draw: int = 0) -> Case:
        """See `Removal`; refuses a case without such a reference."""
        return replace(case, inputs=torch.where(at_features(removed, case.inputs), self.value(case), case.inputs))

    def value(self, case: Case) -> Tensor:
        """What a removed feature becomes; broadcasts against ``case.inputs``."""
        if self.reference == "baseline":
            return case.baseline
        if self.reference == "zero":
            return torch.zeros_like(case.inputs[0, 0])
        return replacement_value(case, self.reference)


@dataclass(frozen=True)
class Deletion:
    """The features that are left close up, as if the removed had never been written.

    Positions are counted anew, on the right there is padding, and whatever in the context has a column per feature
    (token types, say) loses the same columns. ``forward_arguments["last"]``, the index of the token that a decoder is read at,
    becomes that of the last token left.
    """

    name: str = "delete"
    draws: int = 1

    def remove(self, case: Case, removed: Tensor, draw: int = 0) -> Case:
        """See `Removal`; refuses to remove a row's every feature, and rows of unlike length without attention_mask."""
        keep = case.unpadded & ~removed
        require_some_left(self.name, keep)
        counts = keep.sum(1)
        length = int(counts.max())
        mask = case.forward_arguments.get("attention_mask")
        if mask is None and not bool((counts == length).all()):
            raise Unsupported(
                "removal by deletion: rows of unlike length need padding, and this model takes no attention_mask: "
                "remove by a replacement such as 'zero'"
            )
        order = keep.byte().argsort(dim=1, descending=True, stable=True)[:, :length]  # what is left, in its order
        row = torch.arange(len(order), device=order.device).unsqueeze(1)
        context = {
            name: value[row, order] if value.shape[:2] == case.shape else value
            for name, value in case.forward_arguments.items()
        }
        if mask is not None:
            context["attention_mask"] = context["attention_mask"].masked_fill(~keep[row, order], 0)
        if "last" in context:
            context["last"] = counts - 1
        return replace(
            case,
            inputs=case.inputs[row, order],
            baseline=case.baseline[row, order],
            special_tokens_mask=None if case.special_tokens_mask is None else case.special_tokens_mask[row, order],
            forward_arguments=context,
        )


@dataclass(frozen=True, eq=False)
class Resampling:
    """A removed feature takes the value of one drawn from other examples.

    Attributes:
        pool: ``(m, …)``, features of examples.
        draws: how many draws a result is the mean of.
        seed: of the draws.
        owners: the `content` of the example that each of the pool's features is from, none of which that example draws;
            by default none is from an example of the case.

    Raises:
        ValueError: an empty pool, owners that are not one a feature, or no draws.
    """

    pool: Tensor
    draws: int = 8
    seed: int = 0
    owners: tuple[str, ...] = ()
    name: str = "resample"

    def __post_init__(self) -> None:
        require_draws(self.draws)
        if not len(self.pool):
            raise ValueError("removal by resampling needs a pool of at least one feature")
        if self.owners and len(self.owners) != len(self.pool):
            raise ValueError(f"a pool of {len(self.pool)} features has {len(self.owners)} owners")

    def remove(self, case: Case, removed: Tensor, draw: int = 0) -> Case:
        """See `Removal`; refuses a pool whose features are shaped otherwise than the case's, or all of one example."""
        if self.pool.shape[1:] != case.inputs.shape[2:]:
            raise Unsupported(
                f"removal by resampling: the pool's features are shaped {tuple(self.pool.shape[1:])}, "
                f"the case's {tuple(case.inputs.shape[2:])}"
            )
        drawn = torch.zeros(case.shape, dtype=torch.int64)
        for i, there, random in generators(case, self.seed, draw):
            others = self._others(content(case.inputs[i, there.to(case.inputs.device)]))
            drawn[i, there] = torch.from_numpy(others[random.integers(len(others), size=int(there.sum()))])
        inputs = case.inputs.clone()
        inputs[removed] = self.pool.to(inputs)[drawn.to(inputs.device)[removed]]
        return replace(case, inputs=inputs)

    def _others(self, own: str) -> np.ndarray:
        """Where in the pool the features of other examples are."""
        others = np.flatnonzero(np.array(self.owners) != own) if self.owners else np.arange(len(self.pool))
        if not len(others):
            raise Unsupported("removal by resampling: no other example to draw from; give more, or another removal")
        return others


@dataclass(frozen=True)
class GaussianNoise:
    """A removed feature x_i becomes x_i + N(0, σ²), σ = scale × the root mean square of x_i: one of zeros stays.

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

    def __post_init__(self) -> None:
        require_draws(self.draws)

    def remove(self, case: Case, removed: Tensor, draw: int = 0) -> Case:
        """See `Removal`."""
        normal = torch.zeros(case.inputs.shape, dtype=torch.float64)
        for i, there, random in generators(case, self.seed, draw):
            normal[i, there] = torch.from_numpy(random.standard_normal((int(there.sum()), *case.inputs.shape[2:])))
        chosen = case.inputs[removed]  # (removed, …)
        sigma = (
            self.scale * chosen.flatten(1).square().mean(1).sqrt() if chosen.dim() > 1 else self.scale * chosen.abs()
        )
        inputs = case.inputs.clone()
        inputs[removed] = chosen + at_features(sigma, chosen) * normal.to(inputs)[removed]
        return replace(case, inputs=inputs)


# How a removal is asked for by name. Resampling wants a pool as well; the two random ones take draws and a seed.
REMOVALS: dict[str, Callable[..., Removal]] = {
    "attention_mask": AttentionMask,
    "mask": partial(Replacement, "mask"),
    "pad": partial(Replacement, "pad"),
    "delete": Deletion,
    "zero": partial(Replacement, "zero"),
    "mean": partial(Replacement, "mean"),
    "black": partial(Replacement, "black"),
    "baseline": Replacement,
    "resample": Resampling,
    "noise": GaussianNoise,
}


@torch.no_grad()
def outputs_without(
    model: nn.Module, case: Case, example: Tensor, removed: Tensor, removal: Removal, max_tokens: int
) -> Tensor:
    """The explained output of examples without some of their features, ``(rows,)``, the mean over the removal's draws.

    Args:
        model: maps a case to ``(batch, outputs)``.
        case: the examples.
        example: ``(rows,)`` int64, which example each row is.
        removed: ``(rows, features)`` bool, what it is without.
        removal: how.
        max_tokens: the most features in one forward pass, padding included, at least one row; bounds memory.

    Raises:
        Unsupported: from the removal.
        ValueError: ``max_tokens`` below 1.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    rows = max(1, max_tokens // case.shape[1])
    outputs = []
    for these, gone in zip(torch.split(example, rows), torch.split(removed, rows), strict=True):
        part = case.select(these) if len(case.inputs) > 1 else case.repeat(len(these))
        drawn = [removal.remove(part, gone, draw).run(model) for draw in range(removal.draws)]
        outputs.append(torch.stack([select_target(output, part.target) for output in drawn]).mean(0))
    return torch.cat(outputs)


def generators(case: Case, seed: int, draw: int) -> Iterator[tuple[int, Tensor, np.random.Generator]]:
    """For each example its number, its present features ``(features,)`` bool, and random numbers of its own.

    They depend on what the example is, padding aside, and on seed and draw: not on the batch or on what ran before.
    NumPy's generators run on the processor, so that every device draws the same.
    """
    inputs, present = case.inputs.detach().cpu(), case.unpadded.cpu()
    for i, there in enumerate(present):
        digest = hashlib.sha256(f"{seed} {draw} {content(inputs[i, there])}".encode()).digest()
        yield i, there, np.random.default_rng(int.from_bytes(digest))


def content(features: Tensor) -> str:
    """SHA-256 of what an example is: its features ``(n, …)`` without padding, the same in float32 and float64."""
    return hashlib.sha256(features.detach().cpu().float().numpy().tobytes()).hexdigest()


def at_features(values: Tensor, inputs: Tensor) -> Tensor:
    """Values per feature as they broadcast over what a feature is made of: trailing axes of length 1."""
    return values.reshape(values.shape + (1,) * (inputs.dim() - values.dim()))


def require_some_left(name: str, left: Tensor) -> None:
    """Refuse to leave a row without features.

    Raises:
        Unsupported: one has none; the output of a model that sees nothing is not defined.
    """
    empty = int((~left.any(1)).sum())
    if empty:
        raise Unsupported(
            f"removal by {name}: {empty} of {len(left)} rows would have no feature left, on which no output is "
            "defined; leave one in (special features stay along a perturbation curve), or remove by a replacement"
        )


def require_draws(draws: int) -> None:
    """Refuse a mean over nothing.

    Raises:
        ValueError: no draws.
    """
    if draws < 1:
        raise ValueError(f"a random removal needs at least one draw, got {draws}")
