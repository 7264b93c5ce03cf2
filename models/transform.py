"""Function-preserving transforms: changes to a model that leave its function alone, each a short function.

Each base model that meets a transform's requirements makes a pair: f is its model, g a changed deep copy. Explainers
that claim implementation invariance should hold on it. A stabiliser, or a rule that depends on more than the function,
breaks.
"""

from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import nn

from faithcheck.models.architectures.architecture import Architecture, BaseModel, trained
from faithcheck.models.architectures.base_models import ARCHITECTURES, BASE_MODELS, architecture_of, layers
from faithcheck.models.architectures.transformer_layer import TransformerLayer
from faithcheck.models.expectation import INVARIANT_BY_DEFINITION, Expectations, expect_lrp
from faithcheck.models.pair import BuildFromBase, Pair, register, registered_pairs, seeded
from faithcheck.models.pretrained.folder import ModelError

Change: TypeAlias = Callable[[Any], nn.Module]


@dataclass(frozen=True)
class Requirement:
    """What a transform needs of a model: a noun phrase like "a bias in every key map", and whether a model has it."""

    description: str
    holds: Callable[[Any], bool]


def every_layer(description: str, test: Callable[[TransformerLayer], bool]) -> Requirement:
    """The requirement that ``test(layer)`` is true of every layer."""
    return Requirement(description, lambda embedding_model: all(map(test, layers(embedding_model))))


def is_architecture(description: str, test: Callable[[Architecture], bool]) -> Requirement:
    """The requirement that ``test(architecture)`` is true of the model's architecture."""
    return Requirement(description, lambda embedding_model: test(architecture_of(embedding_model)))


@dataclass(frozen=True)
class Transform:
    """A change to a model that leaves its function alone; its arguments are those of `function_preserving_transform`.

    ``change`` takes a deep copy of the base model's model in eval mode, and changes it in place and returns it, or
    wraps it. It is called without gradients, with a fixed seed.
    """

    name: str
    change: Change
    why: str
    expected: Expectations
    requires: tuple[Requirement, ...] = ()
    base_models: tuple[str, ...] = ()
    cite: str = ""

    def unmet(self, embedding_model: nn.Module) -> list[str]:
        """The descriptions of the requirements that a model does not meet: empty if the transform applies to it."""
        return [requirement.description for requirement in self.requires if not requirement.holds(embedding_model)]

    def on(self, base_model: BaseModel) -> Pair:
        """The pair that the transform makes of a base model."""

        def rewrite(f: nn.Module, seed: int) -> nn.Module:
            with seeded(seed), torch.no_grad():
                return self.change(deepcopy(f)).eval()

        rewrite.__module__ = self.change.__module__  # the pair is of the module that defines the transform
        build = BuildFromBase(base_model.model, rewrite)
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
    requires: Collection[Requirement] = (),
    variants: Collection[str] = (),
    too_slow_on: Collection[str] = (),
    expected: Expectations | None = None,
    cite: str = "",
) -> Callable[[Change], Change]:
    """Register a transform on every base model that meets its requirements; the decorated function is its ``change``.

    The pair on a base model is ``name_basemodel``. ``why`` says why the function stays the same, ``lrp`` why the
    relevance of AttnLRP and CP-LRP does. ``variants`` are names of base models that are variants and get it too,
    ``too_slow_on`` those whose pair takes too long for the suite. Where something does not hold, ``expected`` says so.
    Raises `ValueError` if the name is taken or no base model meets the requirements.
    """

    def decorate(change: Change) -> Change:
        expectations = {**INVARIANT_BY_DEFINITION, **expect_lrp(lrp), **(expected or {})}
        transform = Transform(name, change, why, expectations, tuple(requires), cite=cite)
        for supplied in (*variants, *too_slow_on):
            BASE_MODELS[supplied]
        candidates = [m for m in BASE_MODELS.values() if m.name in variants or not m.variant]
        matches = [m for m in candidates if m.name not in too_slow_on and not transform.unmet(blueprint(m))]
        if not matches:
            raise ValueError(f"{name}: no base model meets the requirements: add one, or change requires=…")
        for base_model in matches:
            register(transform.on(base_model))
        _transforms.append(replace(transform, base_models=tuple(m.name for m in matches)))
        return change

    return decorate


@cache
def blueprint(base_model: BaseModel) -> nn.Module:
    """A model with the structure of a base model, to test requirements on; not to be changed."""
    return (base_model.blueprint or base_model.model)(0, torch.float32, torch.device("cpu"))


def registered_transforms() -> dict[str, Transform]:
    """All transforms by name; imports every module of `faithcheck.models.pairs` first."""
    registered_pairs()
    return {transform.name: transform for transform in sorted(_transforms, key=lambda transform: transform.name)}


def register_checkpoint(path: str) -> list[Pair]:
    """Register every transform that applies to a trained model, as pairs named ``family.member_checkpoint``.

    ``path`` is a folder or hub name, as `faithcheck.models.pretrained.loading.load` takes it. `ModelError` if the model
    cannot be loaded or run in float64, or its architecture is unknown.
    """
    base_model = trained("checkpoint", path)
    embedding_model: Any = base_model.model(0, torch.float64, torch.device("cpu"))
    if (model_type := embedding_model.model.config.model_type) not in ARCHITECTURES:
        raise ModelError(
            f"{path}: no transform is known for the architecture {model_type!r}; they are known for: "
            f"{', '.join(sorted(ARCHITECTURES))}"
        )
    try:
        with torch.no_grad():
            base_model.case(0, torch.float64, torch.device("cpu")).run(embedding_model)
    except RuntimeError as error:
        raise ModelError(f"{path}: cannot be run in float64, which pairs are proved in: {error}") from error
    matches = [transform for transform in registered_transforms().values() if not transform.unmet(embedding_model)]
    return [register(transform.on(base_model)) for transform in matches]
