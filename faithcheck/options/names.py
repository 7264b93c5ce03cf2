"""The names of a run are checked before torch is imported, which takes seconds.

The catalogue has the names of axioms and pairs. A name that it does not have may be new in a clone: where a module of
the registry spells it, or a module of the user may register it, the registry decides later.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from types import ModuleType

import faithcheck.axioms
import faithcheck.models
from faithcheck import catalogue
from faithcheck.explainers import map_files
from faithcheck.explainers.names import GROUP, PEERS, builtin_names, installed, kinds, location_of
from faithcheck.models.unknown_name import families, unknown_name
from faithcheck.options import OptionError, source

PAIRS = "faithcheck.pairs"
"""The group of entry points under which a package offers pairs: ``their_name = "their.module"``."""
DEVICES = ("cpu", "cuda", "mps", "xpu")
"""The kinds of devices that have torch's arithmetic and memory."""


def refuse_unknown_explainers(specs: Iterable[str]) -> None:
    """Refuse a name that no explainer has, and an object that its module has not, as far as the source says so.

    A file of maps is read: a damaged one is refused.

    Raises:
        OptionError: names the nearest names, the objects of the module, the library that is missing, or the file.
    """
    for spec in specs:
        option, module = f"--explainer={spec}", spec.partition(":")[0]
        if module.endswith(".py"):
            raise OptionError(f"{option}: {_object_of(Path(module), source.module_of_file(Path(module)))}")
        if spec in builtin_names():
            continue
        if map_files.is_named(spec):
            _refuse_wrong_maps(option, Path(spec))
            continue
        if Path(spec).is_file():
            raise OptionError(
                f"{option}: a file of maps ends in {', '.join(map_files.SUFFIXES)}: write it by save_maps"
            )
        try:
            location = location_of(spec)
        except ValueError as error:
            found = source.find(module)
            if found is not None and found.origin is not None:
                raise OptionError(f"{option}: {_object_of(Path(found.origin), module)}") from None
            raise OptionError(f"{option}: {error}") from error
        _refuse_missing_peer(option, location[0])
        source.refuse_wrong_object(option, *location)


def _object_of(file: Path, module: str) -> str:
    """What to give in place of the name of a file or of its module."""
    if not file.is_file():
        return f"there is no file {file}, and an explainer is given as module:Object, such as my_explainers:Mine"
    names = source.objects_in(file)
    return f"give an object in the file, {module}:Name" + (f"; it has {names}" if names else "")


def _refuse_wrong_maps(option: str, file: Path) -> None:
    try:
        map_files.read(file)
    except ValueError as error:
        raise OptionError(f"{option}: {error}") from error


def _refuse_missing_peer(option: str, module: str) -> None:
    """Refuse the explainer of another library, whose adapter has the library's name, if that is not installed."""
    package, _, library = module.rpartition(".")
    if package == PEERS and library != "own_environment" and source.find(library) is None:
        raise OptionError(f"{option} needs {library}, which is not installed: {source.install(library)}")


def refuse_unknown_axioms(names: Iterable[str]) -> None:
    """Refuse a name that no axiom has.

    Raises:
        OptionError: names the nearest.
    """
    known = known_axioms()
    for name in names:
        if name not in known and not _is_spelled(name, faithcheck.axioms):
            raise OptionError(f"--axiom={name}: {unknown_name('axiom', name, known)}")


def refuse_unknown_claims(names: Iterable[str]) -> None:
    """Refuse a claim that names no axiom of explainers and no kind of them.

    Raises:
        OptionError: names the nearest.
    """
    axioms = catalogue.saved()["axioms"]
    known = {*kinds(), *(name for name, axiom in axioms.items() if not axiom.get("without_explainer"))}
    for name in names:
        may_be_new = name not in axioms and _is_spelled(name, faithcheck.axioms)
        if name not in known and not may_be_new:
            raise OptionError(f"--claim={name}: {unknown_name('axiom or kind of explainers', name, known)}")


def refuse_unknown_pairs(specs: Sequence[str], explainers: Sequence[str] = ()) -> None:
    """Refuse a name or a glob of no pair; not where a module of the user is imported, which may register it.

    Args:
        specs: those of ``--pairs``.
        explainers: those of ``--explainer``; the module of one may register pairs, too.

    Raises:
        OptionError: names the nearest pairs, or the families.
    """
    known, offered = known_pairs(), installed(PAIRS)
    places = {spec: spec.partition(":")[0] for spec in specs}
    for spec, place in places.items():
        if place.endswith(".py"):
            raise OptionError(f"--pairs={spec}: give the module, {source.module_of_file(Path(place))}")
    unknown = [spec for spec in specs if not (fnmatch.filter(known, spec) or _is_spelled(spec, faithcheck.models))]
    modules = {spec: places[spec] for spec in unknown if source.find(places[spec]) is not None}
    for spec, module in modules.items():
        source.checked_source(f"--pairs={spec}", module)
    registering = modules or {*places.values()} & {*offered} or [e for e in explainers if ":" in e]
    if unknown and not registering:
        raise OptionError(unknown_pair(unknown[0], known))


def known_pairs() -> set[str]:
    """The names of the built-in pairs, and of the entry points that offer pairs."""
    return {*catalogue.saved()["pairs"], *installed(PAIRS)}


def known_explainers() -> set[str]:
    """The names of the built-in explainers, and of the entry points that offer explainers."""
    return {*builtin_names(), *installed(GROUP)}


def known_axioms() -> set[str]:
    """The names of the axioms."""
    return {*catalogue.saved()["axioms"]}


KNOWN = {"pairs": known_pairs, "explainers": known_explainers, "axioms": known_axioms}
"""The names that can be listed without importing torch, by the command that lists them."""


def refuse_unmatched(command: str, glob: str) -> None:
    """Refuse a glob that matches no name.

    Raises:
        OptionError: names what there is.
        ValueError: two packages offer entry points of one name.
    """
    known = KNOWN[command]()
    if not fnmatch.filter(known, glob) and not _is_spelled(glob, faithcheck.models, faithcheck.axioms):
        raise OptionError(unmatched(command, glob, known))


def unmatched(command: str, glob: str, known: Collection[str]) -> str:
    """The message for a glob that matches none of the names that a command lists."""
    return f"{glob!r} matches none of the {len(known)} names of faithcheck {command}: {', '.join(families(known))}"


def unknown_pair(spec: str, known: Iterable[str]) -> str:
    """The message for a name or a glob of no pair: the nearest names, or the families."""
    if re.search(r"[*?\[]", spec):
        return f"--pairs={spec} matches no pair; the families are {', '.join(families(known))}"
    return (
        f"--pairs={spec}: {unknown_name('pair', spec, known, families(known))} (there is no module of that name either)"
    )


def refuse_unknown_likes(likes: Iterable[str]) -> None:
    """Refuse a value of ``--like`` that names no built-in explainer.

    Raises:
        OptionError: names the nearest.
    """
    for like in likes:
        name = like.rpartition("=")[2]
        if name not in builtin_names():
            raise OptionError(f"--like={like}: {unknown_name('built-in explainer', name, builtin_names())}")


def refuse_unknown_device(name: str) -> None:
    """Refuse a name of no kind of device. Whether this machine has one, only torch can say.

    Raises:
        OptionError: names the nearest.
    """
    kind, colon, number = name.partition(":")
    if kind == "gpu":
        raise OptionError(f"--device={name}: torch names a GPU by its maker: did you mean cuda{colon}{number}?")
    if kind not in DEVICES:
        raise OptionError(f"--device={name}: {unknown_name('device', kind, DEVICES)}")
    if colon and not number.isdecimal():
        raise OptionError(f"--device={name}: the number of a device is a whole number from 0: {kind}:0")


def _is_spelled(glob: str, *packages: ModuleType) -> bool:
    """Whether a module of the registries spells a text that a name or a glob matches."""
    folders = [Path(folder) for package in packages for folder in package.__path__]
    files = [file for folder in folders for file in (*folder.glob("*.py"), *folder.glob("pairs/*.py"))]
    return any(fnmatch.filter(re.findall(r'"([\w.]+)"', file.read_text(encoding="utf-8")), glob) for file in files)
