"""The names of explainers that are not built in: an entry point of an installed package, or ``module:Object``.

Nothing here imports torch or an explainer, which takes seconds: a wrong name is refused at once.
"""

from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points

from faithcheck.models.unknown_name import unknown_name

GROUP = "faithcheck.explainers"
"""The group of entry points under which a package offers explainers: ``their_name = "their.module:Object"``."""
PEERS = "faithcheck.explainers.peers"
"""Explainers of other libraries are not built in: entry points offer them."""


def installed(group: str) -> dict[str, EntryPoint]:
    """A group's entry points by name, none imported; ValueError if packages offer different objects under a name."""
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


def location_of(spec: str, builtin_names: Collection[str]) -> tuple[str, str]:
    """The module of an explainer that is not built in, which is not imported, and the object's path in it.

    ``spec`` is the name of an entry point, or ``module:Object``. Raises ValueError if the name is unknown (the message
    has the nearest names, those of built-in explainers included), or if its entry point names no object.
    """
    offered = installed(GROUP)
    if spec in offered and not offered[spec].attr:
        raise ValueError(f"the entry point {spec} of {provider(offered[spec])} names no object: {offered[spec].value}")
    module_name, _, path = (f"{offered[spec].module}:{offered[spec].attr}" if spec in offered else spec).partition(":")
    if not module_name or not path:
        raise ValueError(
            unknown_name("explainer", spec, {*builtin_names, *offered}, builtin_names)
            + " (your own is written as pkg.module:Object; faithcheck explainers lists all)"
        )
    return module_name, path
