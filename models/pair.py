"""Pairs: two models that compute one function in different ways, and what theory expects of explainers on them."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case

Verdict: TypeAlias = Literal["HOLDS", "VIOLATES", "UNCLAIMED", "ERROR"]
Build: TypeAlias = Callable[[int, torch.dtype, torch.device], tuple[nn.Module, nn.Module]]
MakeCase: TypeAlias = Callable[[int, torch.dtype, torch.device], Case]
Predict: TypeAlias = Callable[..., Tensor]


@dataclass(frozen=True)
class Expectation:
    """What theory expects of one explainer under one axiom.

    Attributes:
        verdict: ``HOLDS``, ``VIOLATES``, ``UNCLAIMED`` or, where it cannot be measured, ``ERROR``.
        why: the derivation in a sentence; required.
        predict: for ``VIOLATES``: the closed form of what the axiom measures (its ``values``), called with the
            axiom's models and the case: ``predict(f, g, case)`` for a pair, ``predict(model, case)`` for one model.
        floor: for ``VIOLATES`` without a closed form: the least gap that theory allows, above 0.
        cite: paper and equation.
        error: for ``ERROR``: what the explainer's error says, in part.

    Raises:
        ValueError: no reason, a ``VIOLATES`` without exactly one of ``predict`` and ``floor``, an ``ERROR`` without
            ``error``, or a floor that no gap or every gap would reach.
    """

    verdict: Verdict
    why: str
    predict: Predict | None = None
    floor: float | None = None
    cite: str = ""
    error: str = ""

    def __post_init__(self) -> None:
        if not self.why:
            raise ValueError("an expectation needs a reason: why=…")
        if self.floor is not None and not 0 < self.floor < math.inf:
            raise ValueError(f"a floor is the least gap that theory allows, above 0 and finite, got {self.floor}")
        sizes = (self.predict is not None) + (self.floor is not None)
        if sizes != (1 if self.verdict == "VIOLATES" else 0):
            raise ValueError(
                f"VIOLATES takes one of predict=… and floor=…, other verdicts neither; {self.verdict} got {sizes}"
            )
        if bool(self.error) != (self.verdict == "ERROR"):
            raise ValueError(f"ERROR takes error=…, what the error says, other verdicts do not; got {self.error!r}")


@dataclass(frozen=True)
class Pair:
    """Two models of one function.

    Attributes:
        name: ``family.member``, unique in the registry.
        build: ``build(seed, dtype, device) -> (f, g)``, both in eval mode, ``(batch, features, …)`` to
            ``(batch, outputs)``.
        case: ``case(seed, dtype, device) -> Case``, the examples explained.
        why: why the two functions are equal.
        cite: paper and equation.
        expected: ``{(axiom, explainer): Expectation}``; where nothing is said, the explainer's own claims stand.
        axioms: the axioms measured on this pair or on its two models.
        control: whether g is a deep copy of f; axioms of single models are then measured on f alone.
    """

    name: str
    build: Build
    case: MakeCase
    why: str
    cite: str = ""
    expected: Mapping[tuple[str, str], Expectation] = field(default_factory=dict)
    axioms: frozenset[str] = frozenset({"invariance", "completeness", "loo"})
    control: bool = False


Expectations: TypeAlias = Mapping[tuple[str, str], Expectation]

INVARIANT_BY_DEFINITION: Expectations = {
    ("invariance", explainer): Expectation("HOLDS", f"computed from the function's {what} alone, which are equal")
    for explainer, what in {
        "loo": "values",
        "gradient_x_input": "gradients",
        "integrated_gradients": "gradients",
    }.items()
}
"""What every pair may expect of the explainers that see nothing of a model but its function."""


ALL_LRP = "epsilon_lrp attnlrp cplrp"
"""All of LRP: the same rules where there is no product of data, which ε-LRP refuses."""


def expect(
    axioms: str,
    explainers: str,
    why: str,
    *,
    predict: Predict | None = None,
    floor: float | None = None,
    cite: str = "",
) -> Expectations:
    """One expectation of these explainers under these axioms: to hold; with a prediction or a floor, to be violated.

    Args:
        axioms: their names, separated by spaces.
        explainers: their names, separated by spaces.
        why: the derivation in a sentence.
        predict: the closed form of what the axioms measure, see `Expectation`.
        floor: the least gap, where there is no closed form.
        cite: paper and equation.
    """
    verdict: Verdict = "HOLDS" if predict is None and floor is None else "VIOLATES"
    expectation = Expectation(verdict, why, predict, floor, cite)
    return {(axiom, explainer): expectation for axiom in axioms.split() for explainer in explainers.split()}


def expect_lrp(
    why: str, *, predict: Predict | None = None, floor: float | None = None, cite: str = "", of: str = "attnlrp cplrp"
) -> Expectations:
    """What a pair expects of LRP under invariance: the `expect` of these explainers; ``predict`` is of a_f − a_g."""
    return expect("invariance", of, why, predict=predict, floor=floor, cite=cite)


def random_points(rows: int, *features: int, classes: int = 1) -> MakeCase:
    """A pair's ``case``: standard normal inputs ``(rows, *features)``, baseline 0, targets 0 … classes − 1 in turn."""

    def case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(rows, *features, dtype=torch.float64, generator=generator).to(device, dtype)
        return Case(inputs, torch.arange(rows, device=device) % classes, torch.zeros_like(inputs))

    return case


_registry: dict[str, Pair] = {}


def register(pair: Pair) -> Pair:
    """Add a pair to the registry.

    Raises:
        ValueError: the name is taken.
    """
    if pair.name in _registry:
        raise ValueError(f"a pair named {pair.name!r} is already registered")
    _registry[pair.name] = pair
    return pair


def equivalent_pair(
    name: str,
    *,
    case: MakeCase,
    why: str,
    cite: str = "",
    expected: Expectations | None = None,
    axioms: Collection[str] = ("invariance", "completeness", "loo"),
    control: bool = False,
) -> Callable[[Build], Build]:
    """Decorator form of `register`: the decorated function is the pair's ``build``."""

    def decorate(build: Build) -> Build:
        register(Pair(name, build, case, why, cite, expected or {}, frozenset(axioms), control))
        return build

    return decorate


def registered_pairs() -> dict[str, Pair]:
    """All pairs by name; imports every module of `faithcheck.models.pairs` first."""
    package = importlib.import_module("faithcheck.models.pairs")
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
    return dict(sorted(_registry.items()))
