"""Pairs: two models that compute one function in different ways, their registry, and models with their copies."""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import nn

from faithcheck.models.case import Case
from faithcheck.models.expectation import Expectations, with_invariance

Build: TypeAlias = Callable[[int, torch.dtype, torch.device], tuple[nn.Module, nn.Module]]
BuildModel: TypeAlias = Callable[[int, torch.dtype, torch.device], nn.Module]
MakeCase: TypeAlias = Callable[[int, torch.dtype, torch.device], Case]


class MissingLibrary(ImportError):
    """A pair needs a library that is not installed: names it, and how to install it. The pair's checks are skipped."""


class NotAPair(ValueError):
    """Two models that cannot be a pair. The message says which model, why, and what a pair requires."""


@dataclass(frozen=True)
class BuildFromBase:
    """A pair's ``build`` where f is the model of several pairs, so that it can be built once for all of them."""

    base: BuildModel
    rewrite: Callable[[nn.Module, int], nn.Module]  # (f, seed) -> g; leaves f as it is

    def __call__(self, seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
        """Both models."""
        f = self.base(seed, dtype, device)
        return f, self.rewrite(f, seed)


@dataclass(frozen=True)
class Pair:
    """Two models of one function.

    Attributes:
        name: ``family.member``, unique in the registry.
        build: ``build(seed, dtype, device) -> (f, g)``, both in eval mode, ``(batch, features, …)`` to
            ``(batch, outputs)``.
        case: ``case(seed, dtype, device) -> Case``, the examples to explain.
        why: why the two functions are equal.
        cite: paper and equation.
        expected: ``{(axiom, explainer): Expectation}``; for every other combination the explainer's claims decide.
        axioms: the axioms measured on this pair or on its two models.
        control: whether g is a deep copy of f; axioms of single models are then measured on f alone.
    """

    name: str
    build: Build
    case: MakeCase
    why: str
    cite: str = ""
    expected: Expectations = field(default_factory=dict)
    axioms: frozenset[str] = frozenset({"invariance", "completeness", "loo"})
    control: bool = False

    @property
    def module(self) -> str:
        """The module whose function builds the pair, or whose transform does."""
        build: object = self.build.rewrite if isinstance(self.build, BuildFromBase) else self.build
        return str((build.func if isinstance(build, partial) else build).__module__)


def random_points(rows: int, *features: int, classes: int = 1) -> MakeCase:
    """A pair's ``case``: standard normal inputs ``(rows, *features)``, baseline 0, targets 0 … classes − 1 in turn."""

    def case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(rows, *features, dtype=torch.float64, generator=generator).to(device, dtype)
        return Case(inputs, torch.arange(rows, device=device) % classes, torch.zeros_like(inputs))

    return case


Model = TypeVar("Model", bound=nn.Module)
WHY = "a deep copy is the same model"

_registry: dict[str, Pair] = {}
_registered_by: dict[str, str] = {}
PACKAGE = "faithcheck.models.pairs"
"""The package whose modules register the pairs of faithcheck itself."""


def register(pair: Pair) -> Pair:
    """Add a pair to the registry. Raises `ValueError` if the name is taken."""
    if pair.name in _registry:
        raise ValueError(f"a pair named {pair.name!r} is already registered: choose another name")
    _registry[pair.name] = pair
    _registered_by[pair.name] = _module_being_imported()
    return pair


def _module_being_imported() -> str:
    """The name of the module whose own code, not that of a function in it, led to this call."""
    frame = sys._getframe()
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def is_builtin(pair: Pair) -> bool:
    """Whether the pair is one of faithcheck's own, which its tests prove to be pairs; False for every other."""
    return _registry.get(pair.name) is pair and _registered_by[pair.name].startswith(f"{PACKAGE}.")


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
    """Register a pair whose ``build`` is the decorated function; the arguments are the attributes of `Pair`."""

    def decorate(build: Build) -> Build:
        register(Pair(name, build, case, why, cite, expected or {}, frozenset(axioms), control))
        return build

    return decorate


def invariance_pair(name: str, build: Build, case: MakeCase, *expected: Expectations, why: str, cite: str = "") -> None:
    """Register a pair on which invariance alone is measured, as `INVARIANT_BY_DEFINITION` and ``expected`` say."""
    register(Pair(name, build, case, why, cite, with_invariance(*expected), frozenset({"invariance"})))


def control(name: str, build: Build, case: MakeCase, axioms: str, *expected: Expectations, cite: str = "") -> None:
    """Register a model and its deep copy, on which these axioms are measured, whose names are separated by spaces."""
    expectations = {key: value for part in expected for key, value in part.items()}
    register(Pair(name, build, case, WHY, cite, expectations, frozenset(axioms.split()), control=True))


def registered_pairs() -> dict[str, Pair]:
    """All pairs by name; imports every module of `faithcheck.models.pairs` first."""
    package = importlib.import_module(PACKAGE)
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
    return dict(sorted(_registry.items()))


def seed_torch(seed: int) -> None:
    """Seed torch's generators; without a GPU, `torch.manual_seed` spends its time on writing down the call stack."""
    if torch.cuda.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within this block torch draws from the seed; the random numbers outside of it stay as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def model_and_copy(
    make: Callable[[], Model], seed: int, dtype: torch.dtype, device: torch.device
) -> tuple[Model, Model]:
    """A model with the random weights of this seed, and its deep copy, in eval mode."""
    with seeded(seed):
        model = make().to(device, dtype).eval()
    return model, deepcopy(model)


def copies(make: Callable[[], nn.Module], change: Callable[[Any], object] | None = None, **changed: object) -> Build:
    """A pair's ``build``: f with the random weights of the seed, and g, its changed deep copy, both in eval mode.

    ``change`` changes the copy in place, without gradients, or returns g; it draws from the seed. ``changed`` are
    attributes that the copy has.
    """

    def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
        with seeded(seed):
            f = make().to(device, dtype).eval()
            g = deepcopy(f)
            for name, value in changed.items():
                setattr(g, name, value)
            if change is not None:
                with torch.no_grad():
                    new = change(g)
                g = new.eval() if isinstance(new, nn.Module) else g
        return f, g

    return build
