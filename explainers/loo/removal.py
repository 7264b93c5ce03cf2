"""The ways to remove features from an example. Each is a class that describes itself."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from faithcheck.explainers.protocol import Unsupported, replacement_value
from faithcheck.models.case import NO_ANSWER, Case

Gate = Literal["attention", "inputs"]
"""What a gate scales to estimate the effect of a removal: attention to a feature, or the feature."""


class Removal(Protocol):
    """A way to remove features from a case.

    Attributes:
        names: the names that removals of this class have in tables and on the command line.
        needs: what a case must have, in words.
        is_random: whether it takes ``draws`` and a ``seed``.
        draws_from_pool: whether it takes a ``pool`` of features and their ``owners``.
        closes_up: whether the result has fewer features.
        gate: the gate that estimates its effect; None if there is none.
    """

    names: ClassVar[tuple[str, ...]]
    needs: ClassVar[str]
    is_random: ClassVar[bool]
    draws_from_pool: ClassVar[bool] = False
    closes_up: ClassVar[bool] = False
    gate: ClassVar[Gate | None]

    @property
    def name(self) -> str:
        """One of ``names``."""
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

        The value that replaces a feature depends only on the example, the feature
        and ``draw``: not on the other removed features, the batch or padding.

        Raises:
            Unsupported: features of this case cannot be removed in this way.
        """
        ...


Kind = TypeVar("Kind", bound=type[Removal])

REMOVALS: dict[str, type[Removal]] = {}
"""The class of the removal with each name."""


def registered(kind: Kind) -> Kind:
    """Register a class of removals under its names: a decorator."""
    REMOVALS.update(dict.fromkeys(kind.names, kind))
    return kind


def make_removal(name: str, **options: Any) -> Removal:
    """The removal of this name, one of `REMOVALS`.

    ``options`` are ``draws`` and ``seed`` if it is random, ``pool`` and ``owners`` if it draws from a pool.
    """
    kind: Callable[..., Removal] = REMOVALS[name]
    return kind(name=name, **options)


@registered
@dataclass(frozen=True)
class AttentionMask(Removal):
    """No token attends to a removed token: its attention_mask is 0; arXiv 2510.18810, §4.1.

    The removed token's position stays, unless the model counts positions by the mask, as OPT and BLOOM do. So does its
    own row of attention.
    """

    names = ("attention_mask",)
    needs = "forward_arguments['attention_mask']"
    is_random = False
    gate = "attention"

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
                f"removal by {self.name}: the case has no {self.needs}; "
                "give it one, or remove by a replacement such as 'zero'"
            )
        require_some_left(self.name, case.unpadded & ~removed)
        mask = case.forward_arguments["attention_mask"].masked_fill(removed, 0)
        return replace(case, forward_arguments={**case.forward_arguments, "attention_mask": mask})


@registered
@dataclass(frozen=True)
class Replacement(Removal):
    """A removed feature takes a fixed value.

    Attributes:
        name: the value: "baseline" for ``case.baseline``, "zero", or a name in ``case.replacements``, such as "mean",
            "mask" or "pad". A case may have others than those of ``names``.
    """

    names = ("baseline", "black", "mask", "mean", "pad", "zero")
    needs = "a replacement of this name, unless it is the baseline or zero"
    is_random = False
    gate = "inputs"

    name: str = "baseline"
    draws: int = 1

    @property
    def description(self) -> str:
        """The removal in words, for reports."""
        return f"replaced by {self.name}"

    def remove(self, case: Case, removed: Tensor, draw: int = 0) -> Case:
        """See `Removal`; refuses a case without a replacement of that name."""
        return replace(case, inputs=torch.where(at_features(removed, case.inputs), self.value(case), case.inputs))

    def value(self, case: Case) -> Tensor:
        """The value that a removed feature takes; broadcasts against ``case.inputs``."""
        if self.name == "baseline":
            return case.baseline
        if self.name == "zero":
            return torch.zeros_like(case.inputs[0, 0])
        return replacement_value(case, self.name)


@registered
@dataclass(frozen=True)
class Deletion(Removal):
    """The other features close up, as if the removed features had never been in the text.

    Forward arguments with a column per feature, such as token types, lose the same columns, and:

    * positions ``(batch, features)``, by a name with "position" in it, are counted again from the first;
    * an index ``(batch,)`` of the feature that the output is read at, named "last" or with "index" or "position" in its
      name, follows that feature; if it was the last feature, it is the last remaining one;
    * a deleted token is no token of an ``answer`` any more.

    Padding stays on its side. What a model derives from the attention mask or from the length it derives again.
    """

    names = ("delete",)
    needs = "an attention mask, if its rows keep different numbers of features"
    is_random = False
    closes_up = True
    gate = "attention"

    name: str = "delete"
    draws: int = 1

    @property
    def description(self) -> str:
        """The removal in words, for reports."""
        return "deleted, the rest closing up"

    def remove(self, case: Case, removed: Tensor, draw: int = 0) -> Case:
        """See `Removal`.

        Raises:
            Unsupported: a row has no feature left; rows of different lengths without attention_mask; or a forward
                argument that cannot be counted again.
        """
        keep = case.unpadded & ~removed
        require_some_left(self.name, keep)
        counts = keep.sum(1)
        length = int(counts.max())
        if "attention_mask" not in case.forward_arguments and not bool((counts == length).all()):
            raise Unsupported(
                "removal by deletion: rows of different lengths need padding, and this model takes no attention_mask: "
                "remove by a replacement such as 'zero'"
            )
        pads_left = not bool(case.unpadded[:, 0].all())
        row = torch.arange(len(keep), device=keep.device).unsqueeze(1)

        def closed_up(chosen: Tensor) -> Tensor:
            """The columns of the chosen features, in order, beside columns of padding: ``(batch, length)``."""
            order = chosen.byte().argsort(dim=1, descending=not pads_left, stable=True)
            return order[:, -length:] if pads_left else order[:, :length]

        order = closed_up(keep)
        remaining = case.with_features(lambda value: value[row, order])
        arguments = dict(remaining.forward_arguments)
        for name, value in case.forward_arguments.items():
            if name == "attention_mask":
                arguments[name] = arguments[name].masked_fill(~keep[row, order], 0)
            elif name == "answer":
                arguments[name] = arguments[name].masked_fill(~keep[row, order], NO_ANSWER)
            elif is_index(name, value):
                at = index_of_last(value, case.unpadded, keep)
                arguments[name] = (order == at.unsqueeze(1)).byte().argmax(1).to(value.dtype)
            elif case.shape[1] in value.shape[2:] or (value.shape[:2] != case.shape and case.shape[1] in value.shape):
                raise Unsupported(
                    f"removal by deletion: forward_arguments[{name!r}] {tuple(value.shape)} has an axis of features "
                    "that cannot be counted again: let the model make it, or remove by a replacement such as 'zero'"
                )
            elif "position" in name.lower():
                require_equal_steps(name, value, case.unpadded)
                first = case.unpadded & (case.unpadded.cumsum(1) <= counts.unsqueeze(1))
                arguments[name] = value[row, closed_up(first)]
        return replace(remaining, forward_arguments=arguments)


def is_index(name: str, value: Tensor) -> bool:
    """Whether a forward argument is, by its name, the index ``(batch,)`` of the feature that the output is read at."""
    is_named_so = name == "last" or "index" in name.lower() or "position" in name.lower()
    return is_named_so and value.dim() == 1 and not value.is_floating_point()


def index_of_last(index: Tensor, unpadded: Tensor, keep: Tensor) -> Tensor:
    """The column ``(batch,)`` that an index points to, or the last that is kept where it was the last feature.

    Raises Unsupported if the feature is removed, and is not the last.
    """
    columns = torch.arange(keep.shape[1], device=keep.device)
    at, last, last_kept = index % keep.shape[1], *((columns * mask).amax(1) for mask in (unpadded, keep))
    at = torch.where(at == last, last_kept, at)
    if not bool(keep.gather(1, at.unsqueeze(1)).all()):
        raise Unsupported(
            "removal by deletion: the feature that the output is read at is removed: remove by the attention mask or "
            "by a replacement such as 'zero'"
        )
    return at


def require_equal_steps(name: str, positions: Tensor, unpadded: Tensor) -> None:
    """Raise Unsupported unless positions count by equal steps: those of a shorter text could not be told from them."""
    for of_example, mask in zip(positions, unpadded, strict=True):
        steps = of_example[mask].diff(dim=0)
        if bool((steps != steps[:1]).any()):
            raise Unsupported(
                f"removal by deletion: forward_arguments[{name!r}] does not count the features by equal steps, so the "
                "positions of a shorter text are unknown: remove by the attention mask or a replacement such as 'zero'"
            )


@registered
@dataclass(frozen=True, eq=False)
class Resampling(Removal):
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

    names = ("resample",)
    needs = "features shaped like those of the pool"
    is_random = True
    draws_from_pool = True
    gate = None

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


@registered
@dataclass(frozen=True)
class GaussianNoise(Removal):
    """A removed feature x_i becomes x_i + N(0, σ²), σ = scale × the root mean square of x_i; a feature of zeros stays.

    Attributes:
        scale: σ in units of the feature's own root mean square.
        draws: how many draws a result is the mean of.
        seed: of the draws.

    Raises:
        ValueError: no draws.
    """

    names = ("noise",)
    needs = "nothing"
    is_random = True
    gate = None

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
    """Raise Unsupported if a row has no features left: a model's output without features is not defined."""
    empty = int((~remaining.any(1)).sum())
    if empty:
        raise Unsupported(
            f"removal by {name}: {empty} of {len(remaining)} rows would have no feature left, and without features no "
            "output is defined; leave a feature in (special features stay along a perturbation curve), or remove by a "
            "replacement"
        )


def require_draws(draws: int) -> None:
    """Raise ValueError for a mean over no draws."""
    if draws < 1:
        raise ValueError(f"a random removal needs at least one draw, got {draws}")
