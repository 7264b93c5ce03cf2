"""Transforms: changes to a model that leave its function alone, each a short function, applied to every base model that fits.

A transform on a base model makes a pair: f is the base model's model, g a changed deep copy. Such pairs should hold for every explainer
that claims implementation invariance, and show a stabiliser or a rule that depends on more than the function.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from faithcheck.models.architectures.base_models import ARCHITECTURES, BASE_MODELS, BaseModel, trained
from faithcheck.models.pair import INVARIANT_BY_DEFINITION, Expectations, Pair, expect_lrp, register, registered_pairs
from faithcheck.models.pretrained.errors import ModelError

Change: TypeAlias = Callable[[Any], nn.Module]


@dataclass(frozen=True)
class Transform:
    """A change to a model that leaves its function alone.

    Attributes:
        name: ``family.member``; on a base model the pair is ``family.member_host``.
        change: ``change(embedding_model) -> module``: the base model's model in eval mode, a copy of its own to be changed in place
            and returned, or wrapped; called without gradients, random numbers seeded.
        why: why the function is left alone.
        expected: of the explainers, on every base model.
        base_models: names in `BASE_MODELS` that it applies to.
        where: for a checkpoint whose architecture is that of one of these base models: whether it applies to this model,
            ``where(embedding_model)``.
        cite: paper and equation.
    """

    name: str
    change: Change
    why: str
    expected: Expectations
    base_models: tuple[str, ...]
    where: Callable[[Any], bool]
    cite: str = ""

    def on(self, base_model: BaseModel) -> Pair:
        """The pair that it makes of a base model."""

        def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
            f = base_model.model(seed, dtype, device)
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(seed)
                return f, self.change(deepcopy(f)).eval()

        axioms = frozenset({"invariance"})
        return Pair(
            f"{self.name}_{base_model.name}", build, base_model.case, self.why, self.cite, self.expected, axioms
        )


_transforms: list[Transform] = []


def function_preserving_transform(
    name: str,
    *,
    why: str,
    lrp: str,
    base_models: Collection[str] = ARCHITECTURES,
    where: Callable[[Any], bool] = lambda embedding_model: True,
    expected: Expectations | None = None,
    cite: str = "",
) -> Callable[[Change], Change]:
    """Register a transform on its base models; the decorated function is its `Transform.change`.

    Args:
        name: ``family.member``.
        why: why the function is left alone.
        lrp: why AttnLRP's and CP-LRP's relevance is left alone too.
        base_models: names in `BASE_MODELS`, by default `ARCHITECTURES`.
        where: which checkpoints of these base models' architectures it applies to, see `Transform.where`; all by default.
        expected: what else is expected, or something other than that everything holds.
        cite: paper and equation.

    Raises:
        KeyError: no such base model.
        ValueError: a name that is taken.
    """

    def decorate(change: Change) -> Change:
        everything = {**INVARIANT_BY_DEFINITION, **expect_lrp(lrp), **(expected or {})}
        made = Transform(name, change, why, everything, tuple(base_models), where, cite)
        for pair in [made.on(BASE_MODELS[base_model]) for base_model in base_models]:
            register(pair)
        _transforms.append(made)
        return change

    return decorate


def registered_transforms() -> dict[str, Transform]:
    """All transforms by name; imports every module of `faithcheck.models.pairs` first."""
    registered_pairs()
    return {transform.name: transform for transform in sorted(_transforms, key=lambda transform: transform.name)}


def architecture(base_model: str) -> str:
    """The ``model_type`` of a base model in `BASE_MODELS`: what its name begins with."""
    return base_model.partition("_")[0]


def register_checkpoint(path: str) -> list[Pair]:
    """Register every transform that applies on a trained model, as pairs named ``family.member_checkpoint``.

    Args:
        path: a folder or hub name, as `faithcheck.models.pretrained.loading.load` takes it.

    Raises:
        ModelError: it cannot be loaded, no transform is known for its architecture, or it cannot be run in float64.
    """
    base_model = trained("checkpoint", path)
    embedding_model: Any = base_model.model(0, torch.float64, torch.device("cpu"))
    kind = embedding_model.model.config.model_type
    fits = [
        g
        for g in registered_transforms().values()
        if kind in map(architecture, g.base_models) and g.where(embedding_model)
    ]
    if not fits:
        known = ", ".join(sorted({architecture(base_model) for base_model in BASE_MODELS}))
        raise ModelError(f"{path}: no transform is known for the architecture {kind!r}; they are known for: {known}")
    try:
        with torch.no_grad():
            base_model.case(0, torch.float64, torch.device("cpu")).run(embedding_model)
    except RuntimeError as error:
        raise ModelError(f"{path}: cannot be run in float64, which pairs are proved in: {error}") from error
    return [register(transform.on(base_model)) for transform in fits]
