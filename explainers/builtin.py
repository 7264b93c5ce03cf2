"""The built-in explainers. Each registers itself where it is defined, so that a new explainer is one new file."""

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import TypeVar

from faithcheck.explainers.protocol import Explainer

Make = TypeVar("Make", bound=Callable[[], Explainer])

_factories: list[tuple[str, Callable[[], Explainer]]] = []
"""The kind of each built-in explainer, and what makes it."""


def builtin(kind: str) -> Callable[[Make], Make]:
    """Register a built-in explainer: a decorator of a class, or of a function, that can be called without arguments.

    The axioms that all explainers of a ``kind``, one word, claim can be claimed together by it: ``--claim gradient``.
    """

    def register(make: Make) -> Make:
        if (kind, make) not in _factories:
            _factories.append((kind, make))
        return make

    return register


def builtin_explainers() -> dict[str, Explainer]:
    """The built-in explainers by name, in alphabetical order; imports every module of `faithcheck.explainers` first.

    Raises:
        ValueError: two explainers have the same name.
    """
    return {explainer.name: explainer for _, explainer in _made()}


def kinds() -> dict[str, list[str]]:
    """The names of the built-in explainers of each kind, both in alphabetical order."""
    made = _made()
    return {kind: [one.name for other, one in made if other == kind] for kind in sorted({kind for kind, _ in made})}


def claims_of_kind(kind: str) -> frozenset[str]:
    """The axioms that every built-in explainer of the kind claims."""
    return frozenset.intersection(*(frozenset(getattr(one, "claims", ())) for other, one in _made() if other == kind))


def _made() -> list[tuple[str, Explainer]]:
    """The kind and the explainer of each, by name."""
    _import_every_module()
    made = sorted(((kind, make()) for kind, make in _factories), key=lambda one: one[1].name)
    twice = [name for name, count in Counter(explainer.name for _, explainer in made).items() if count > 1]
    if twice:
        raise ValueError(f"two built-in explainers are named {twice[0]!r}: rename one of them")
    return made


@cache
def _import_every_module() -> None:
    """Import the modules below `faithcheck.explainers`, whose decorators register the explainers, but not the peers."""
    package = importlib.import_module("faithcheck.explainers")
    peers = f"{package.__name__}.peers"  # explainers of other libraries: entry points offer them
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not f"{module.name}.".startswith(f"{peers}."):
            importlib.import_module(module.name)
