"""Explainers by name: built in, offered by installed packages (entry points), or the user's own ``module:Object``."""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points, version
from typing import Any

from faithcheck.explainers.adapters import NotAnExplainer, as_explainer
from faithcheck.explainers.builtin import builtin_explainers as builtin_explainers
from faithcheck.explainers.protocol import Explainer
from faithcheck.models.unknown_name import unknown_name as unknown_name

GROUP = "faithcheck.explainers"
"""The group of entry points under which a package offers explainers: ``their_name = "their.module:Object"``."""


def installed(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group that installed packages offer, by name; none of them is imported.

    Raises:
        ValueError: two packages offer different objects under the same name.
    """
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        first = points.setdefault(point.name, point)
        if first.value != point.value:
            raise ValueError(
                f"{provider(first)} and {provider(point)} both offer a {point.name!r} in {group}: uninstall one, or "
                "name the object itself, as module:Object"
            )
    return points


def provider(point: EntryPoint) -> str:
    """The package that offers an entry point, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def load_explainer(spec: str) -> Explainer:
    """An explainer by its built-in name, by the name of an entry point, or by ``pkg.module:Object``.

    A class is called without arguments. `as_explainer` says which objects are explainers.

    Raises:
        ValueError: the name is unknown (the message has the nearest names), the module has no such object, the object
            is not an explainer, or it has the name of a built-in explainer.
        ImportError: the module does not import; the traceback is the module's own.
    """
    builtin, location = builtin_explainers(), location_of(spec)
    if location is None:
        return builtin[spec]
    try:
        explainer = as_explainer(_object(*location), spec if spec in installed(GROUP) else None)
    except NotAnExplainer as error:
        raise ValueError(f"{spec} is no explainer: {error}") from error
    if explainer.name in builtin:
        raise ValueError(
            f"{spec} is named {explainer.name!r}, which is a built-in explainer's name: choose another "
            f"name; --like={explainer.name} holds it to that one's claims and expectations"
        )
    return explainer


def location_of(spec: str) -> tuple[str, str] | None:
    """The module of an explainer, which is not imported, and the object's path in it; None for a built-in explainer.

    Raises:
        ValueError: the name is unknown (the message has the nearest names), or its entry point names no object.
    """
    builtin, offered = builtin_explainers(), installed(GROUP)
    if spec in builtin:
        return None
    if spec in offered and not offered[spec].attr:
        raise ValueError(f"the entry point {spec} of {provider(offered[spec])} names no object: {offered[spec].value}")
    module_name, _, path = (f"{offered[spec].module}:{offered[spec].attr}" if spec in offered else spec).partition(":")
    if not module_name or not path:
        raise ValueError(
            unknown_name("explainer", spec, {*builtin, *offered}) + "; your own is written as pkg.module:Object"
        )
    return module_name, path


def _object(module_name: str, path: str) -> Any:
    """The object at a dotted path in a module."""
    value: Any = importlib.import_module(module_name)
    for part in path.split("."):
        if not hasattr(value, part):
            names = vars(value) if hasattr(value, "__dict__") else ()
            raise ValueError(unknown_name(f"object in {module_name}", part, names))
        value = getattr(value, part)
    return value


def origin(spec: str, explainer: Explainer) -> str:
    """Where the explainer that was loaded by this name comes from, for the report.

    For an explainer that calls another library: that library too. For an object whose call was guessed: the guess. For
    an explainer that is held to a built-in one's claims and expectations: which one.
    """
    if spec in builtin_explainers():
        return f"built in, faithcheck {version('faithcheck')}"
    offered = installed(GROUP)
    loaded = f"entry point {spec} of {provider(offered[spec])}" if spec in offered else spec
    library, guessed, like = (getattr(explainer, key, "") for key in ("origin", "guessed", "like"))
    held = f"held to the claims and expectations of {like}" if like else ""
    return "; ".join(filter(None, [f"{library}, by {loaded}" if library else loaded, guessed, held]))
