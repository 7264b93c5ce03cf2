"""``--pairs`` and ``--checkpoint``: the pairs that a run checks on, and where each comes from."""

import fnmatch
import importlib
import importlib.util
import re
from collections.abc import Iterable, Sequence

from faithcheck.explainers.names import installed, provider
from faithcheck.models.pair import Pair, registered_pairs
from faithcheck.models.unknown_name import unknown_name
from faithcheck.options import OptionError
from faithcheck.options.names import PAIRS, unknown_pair
from faithcheck.options.user_modules import loaded


def choose_pairs(specs: Sequence[str]) -> list[Pair]:
    """The pairs that the specs name, or all: a name, a glob, an entry point, or a module that registers pairs.

    Of the last two, ``their.module:name`` is one pair, and ``their.module:family.*`` some.
    """
    chosen = {name for spec in specs for name in _names(spec)}
    return [pair for name, pair in registered_pairs().items() if not specs or name in chosen]


def pair_origins(pairs: Iterable[Pair]) -> dict[str, str]:
    """The modules of the pairs that are not built in, with the package that offers them, by the pair's name."""
    offers = {point.module: f", entry point {name} of {provider(point)}" for name, point in installed(PAIRS).items()}
    modules = {pair.name: pair.module for pair in pairs}
    return {
        name: module + next((offer for package, offer in offers.items() if _is_within(module, package)), "")
        for name, module in modules.items()
        if not _is_within(module, "faithcheck")
    }


def _names(spec: str) -> list[str]:
    known = registered_pairs()
    matches = fnmatch.filter(known, spec)
    if matches:
        return matches
    if ":" not in spec and re.search(r"[*?\[]", spec):
        raise OptionError(unknown_pair(spec, known))
    offered = installed(PAIRS)
    place, _, wanted = spec.partition(":")
    module = offered[place].module if place in offered else place
    if not _is_module(module):
        raise OptionError(unknown_pair(spec, {*known, *offered}))
    loaded(f"--pairs={spec}", lambda: importlib.import_module(module))
    names = [name for name, pair in registered_pairs().items() if name not in known or _is_within(pair.module, module)]
    if not names:
        raise OptionError(f"--pairs={spec}: the module registers no pair: decorate a function with @equivalent_pair")
    if chosen := fnmatch.filter(names, wanted or "*"):
        return chosen
    raise OptionError(f"--pairs={spec}: {unknown_name(f'pair of {place}', wanted, names)}")


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def choose_checkpoint(paths: Sequence[str]) -> list[str]:
    """Register the pairs of a checkpoint, and return their names; none without a path."""
    if not paths:
        return []
    if len(paths) > 1 or not paths[0]:
        raise OptionError(
            f"--checkpoint takes one path, that of a folder, or one hub name; got {' and '.join(paths) or 'none'}"
        )
    from faithcheck.models import transform  # not at the top: transformers takes seconds to import
    from faithcheck.models.pretrained.folder import ModelError

    try:
        return [pair.name for pair in transform.register_checkpoint(paths[0])]
    except ModelError as error:
        raise OptionError(f"--checkpoint: {error}") from error


def describe_checkpoint(names: Sequence[str]) -> str:
    """The number of a checkpoint's pairs, and the transforms that do not apply to it, each with what it needs."""
    from faithcheck.models import transform

    transforms = [t for t in transform.registered_transforms().values() if f"{t.name}_checkpoint" not in names]
    needs = [f"\n  {t.name} needs {' and '.join(each.description for each in t.requires)}" for t in transforms]
    return f"checkpoint: {len(names)} pairs; {len(transforms)} transforms do not apply to it:{''.join(needs)}"
