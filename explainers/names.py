"""The names of explainers: built in, offered by installed packages (entry points), or the user's own ``module:Object``.

Nothing here imports torch or an explainer, which takes seconds: a wrong name is refused at once.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from itertools import groupby
from pathlib import Path

from faithcheck.models.unknown_name import unknown_name

GROUP = "faithcheck.explainers"
"""The group of entry points under which a package offers explainers: ``their_name = "their.module:Object"``."""
PEERS = "faithcheck.explainers.peers"
"""Explainers of other libraries are not built in: entry points offer them."""


@cache
def builtin_names() -> tuple[str, ...]:
    """The names of the built-in explainers, in alphabetical order, as their source states them."""
    return tuple(sorted(name for names in kinds().values() for name in names))


@cache
def kinds() -> dict[str, tuple[str, ...]]:
    """The built-in explainers of each kind, by name, both in alphabetical order, as their source states them."""
    folder = Path(__file__).parent
    files = [file for file in folder.rglob("*.py") if folder / "peers" not in file.parents]
    sources = [source for source in (file.read_text(encoding="utf-8") for file in files) if "\n@builtin(" in source]
    registered = sorted(one for source in sources for one in _registered_in(source))
    return {kind: tuple(name for _, name in of) for kind, of in groupby(registered, key=lambda one: one[0])}


def _registered_in(source: str) -> list[tuple[str, str]]:
    """The explainers that a module registers: the kind, and the ``name`` of a class or of what a function returns."""
    found = []
    for node in ast.parse(source).body:
        for decorator in getattr(node, "decorator_list", []):
            match decorator:
                case ast.Call(func=ast.Name(id="builtin"), args=[ast.Constant(value=str(kind))]):
                    texts = [_text(part) for part in ast.walk(node)]
                    found.append((kind, next(text for text in texts if text is not None)))
    return found


def _text(node: ast.AST) -> str | None:
    """The name that a statement gives: ``name = "loo"``, ``name: str = "loo"`` or ``return LRP("attnlrp", …)``."""
    value: ast.AST | None = None
    match node:
        case (
            ast.Assign(targets=[ast.Name(id="name")], value=value)
            | ast.AnnAssign(target=ast.Name(id="name"), value=value)
        ):
            pass
        case ast.Return(value=ast.Call(args=[value, *_])):
            pass
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


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


def location_of(spec: str) -> tuple[str, str]:
    """The module of an explainer that is not built in, which is not imported, and the object's path in it.

    Raises:
        ValueError: the name is unknown (the message has the nearest names), or its entry point names no object.
    """
    offered = installed(GROUP)
    if spec in offered and not offered[spec].attr:
        raise ValueError(f"the entry point {spec} of {provider(offered[spec])} names no object: {offered[spec].value}")
    module_name, _, path = (f"{offered[spec].module}:{offered[spec].attr}" if spec in offered else spec).partition(":")
    if not module_name or not path:
        raise ValueError(
            unknown_name("explainer", spec, {*builtin_names(), *offered}, builtin_names())
            + " (your own is written as pkg.module:Object; faithcheck explainers lists all)"
        )
    return module_name, path
