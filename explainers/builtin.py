"""The built-in explainers: each registers itself where it is defined, so that a new one is one new file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import TypeVar

from faithcheck.explainers.protocol import Explainer

Make = TypeVar("Make", bound=Callable[[], Explainer])

_factories: list[Callable[[], Explainer]] = []
PEERS = "faithcheck.explainers.peers"
"""Other libraries' explainers are no built-in ones: entry points offer them, see `faithcheck.explainers.registry`."""


def builtin(make: Make) -> Make:
    """Register a built-in explainer: a decorator of a class, or of a function, that can be called without arguments."""
    _factories.append(make)
    return make


def builtin_explainers() -> dict[str, Explainer]:
    """The built-in explainers by name, in alphabetical order; imports every module of `faithcheck.explainers` first.

    Raises:
        ValueError: two explainers have one name.
    """
    package = importlib.import_module("faithcheck.explainers")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not f"{module.name}.".startswith(f"{PEERS}."):
            importlib.import_module(module.name)
    explainers = sorted((make() for make in _factories), key=lambda explainer: explainer.name)
    by_name = {explainer.name: explainer for explainer in explainers}
    if len(by_name) < len(explainers):
        raise ValueError(f"two built-in explainers have one name: {', '.join(e.name for e in explainers)}")
    return by_name
