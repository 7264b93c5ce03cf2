"""Explainers by name: built in, offered by installed packages (entry points), or the user's own ``module:Object``."""

import importlib
from importlib.metadata import version
from typing import Any

from faithcheck.explainers import map_files
from faithcheck.explainers.adapters import NotAnExplainer, as_explainer
from faithcheck.explainers.builtin import builtin_explainers as builtin_explainers
from faithcheck.explainers.names import GROUP, installed, location_of, provider
from faithcheck.explainers.protocol import Explainer
from faithcheck.explainers.stored_maps import load_maps
from faithcheck.models.unknown_name import unknown_name


def load_explainer(spec: str) -> Explainer:
    """An explainer by its built-in name, by the name of an entry point, by ``pkg.module:Object``, or by a file of maps.

    A class is called without arguments. `as_explainer` says which objects are explainers.

    Raises:
        ValueError: the name is unknown (the message has the nearest names), the module has no such object, the object
            is not an explainer, it has the name of a built-in explainer, or the file of maps cannot be read.
        ImportError: the module does not import; the traceback is the module's own.
    """
    builtin = builtin_explainers()
    if spec in builtin:
        return builtin[spec]
    if map_files.is_named(spec):
        return load_maps(spec)
    try:
        explainer = as_explainer(
            _object(*location_of(spec, builtin.keys())), spec if spec in installed(GROUP) else None
        )
    except NotAnExplainer as error:
        raise ValueError(f"{spec} is no explainer: {error}") from error
    if explainer.name in builtin:
        raise ValueError(
            f"{spec} is named {explainer.name!r}, which is a built-in explainer's name: choose another "
            f"name; --like={explainer.name} holds it to that one's claims and expectations"
        )
    return explainer


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
    cast = "its attributions are cast to the dtype of the inputs" if getattr(explainer, "cast", False) else ""
    return "; ".join(filter(None, [f"{library}, by {loaded}" if library else loaded, guessed, cast, held]))
