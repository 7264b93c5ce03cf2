"""The built-in explainers. Each registers itself where it is defined, so that a new explainer is one new file."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from faithcheck.explainers.names import PEERS, kinds
from faithcheck.explainers.protocol import Explainer

Make = TypeVar("Make", bound=Callable[[], Explainer])

_factories: list[Callable[[], Explainer]] = []


def builtin(kind: str) -> Callable[[Make], Make]:
    """Register a built-in explainer: a decorator of a class, or of a function, that can be called without arguments.

    Args:
        kind: of explainers, one word. What all built-in ones of a kind claim can be claimed by its name:
            ``--claim gradient``.
    """

    def register(make: Make) -> Make:
        if make not in _factories:
            _factories.append(make)
        return make

    return register


def builtin_explainers() -> dict[str, Explainer]:
    """The built-in explainers by name, in alphabetical order; imports every module of `faithcheck.explainers` first.

    Raises:
        ValueError: two explainers have the same name.
    """
    _import_every_module()
    explainers = sorted((make() for make in _factories), key=lambda explainer: explainer.name)
    twice = [name for name, count in Counter(explainer.name for explainer in explainers).items() if count > 1]
    if twice:
        raise ValueError(f"two built-in explainers are named {twice[0]!r}: rename one of them")
    return {explainer.name: explainer for explainer in explainers}


def claims_of_kind(kind: str) -> frozenset[str]:
    """The axioms that every built-in explainer of the kind claims."""
    explainers = builtin_explainers()
    return frozenset.intersection(*(frozenset(getattr(explainers[name], "claims", ())) for name in kinds()[kind]))


@cache
def _import_every_module() -> None:
    """Import the modules below `faithcheck.explainers`, whose decorators register the explainers, but not the peers."""
    package = importlib.import_module("faithcheck.explainers")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not f"{module.name}.".startswith(f"{PEERS}."):
            importlib.import_module(module.name)
