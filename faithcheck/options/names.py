"""Wrong names are refused before torch, which takes seconds, is imported.

A name that the catalogue file lacks may be new in a clone, or a pair of a user's module: then the registry decides.
"""

import fnmatch
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import faithcheck.axioms
import faithcheck.explainers
import faithcheck.models
from faithcheck import catalogue
from faithcheck.explainers import map_files
from faithcheck.explainers.names import GROUP, PEERS, installed, location_of
from faithcheck.models.unknown_name import families, unknown_name
from faithcheck.options import OptionError, user_modules

PAIRS = "faithcheck.pairs"
"""The group of entry points under which a package offers pairs: ``their_name = "their.module"``."""


def builtin_explainers() -> set[str]:
    """The names of the built-in explainers."""
    return {name for names in catalogue.saved()["explainers"].values() for name in names}


def meaning_of_claim() -> str:
    """The help of ``--claim``."""
    kinds = ", ".join(catalogue.saved()["explainers"])
    return (
        "the explainer is to satisfy this axiom too, besides those that it claims itself; or all that explainers of "
        f"this kind satisfy: {kinds}"
    )


def refuse_unknown_explainers(specs: Iterable[str]) -> None:
    """Refuse a name that no explainer has, an object that its module does not define, and a damaged file of maps."""
    known, offered = builtin_explainers(), installed(GROUP)
    for spec in specs:
        if spec in offered or not (spec in known or _is_spelled(spec, faithcheck.explainers)):
            _refuse_wrong_explainer(f"--explainer={spec}", spec, known)


def _refuse_wrong_explainer(option: str, spec: str, known: Collection[str]) -> None:
    module = spec.partition(":")[0]
    if module.endswith(".py"):
        raise OptionError(f"{option}: {_object_of(Path(module), user_modules.module_of_file(Path(module)))}")
    if map_files.is_named(spec):
        try:
            map_files.read(Path(spec))
        except ValueError as error:
            raise OptionError(f"{option}: {error}") from error
        return
    if Path(spec).is_file():
        raise OptionError(f"{option}: a file of maps ends in {', '.join(map_files.SUFFIXES)}: write it by save_maps")
    try:
        module, path = location_of(spec, sorted(known))
    except ValueError as error:
        found = user_modules.find_module(module)
        if found is not None and found.origin is not None:
            raise OptionError(f"{option}: {_object_of(Path(found.origin), module)}") from None
        raise OptionError(f"{option}: {error}") from error
    _refuse_missing_peer(option, module)
    user_modules.refuse_wrong_object(option, module, path)


def _object_of(file: Path, module: str) -> str:
    """What to give in place of the name of a file or of its module."""
    if not file.is_file():
        return f"there is no file {file}, and an explainer is given as module:Object, such as my_explainers:Mine"
    names = user_modules.objects_in(file)
    return f"give an object in the file, {module}:Name" + (f"; it has {names}" if names else "")


def _refuse_missing_peer(option: str, module: str) -> None:
    """Refuse the explainer of another library, whose adapter has the library's name, if that is not installed."""
    package, _, library = module.rpartition(".")
    if package == PEERS and library != "own_environment" and user_modules.find_module(library) is None:
        raise OptionError(f"{option} needs {library}, which is not installed: {user_modules.install(library)}")


def refuse_unknown_axioms(names: Iterable[str]) -> None:
    """Refuse a name that no axiom has."""
    known = catalogue.saved()["axioms"]
    for name in names:
        if name not in known and not _is_spelled(name, faithcheck.axioms):
            raise OptionError(f"--axiom={name}: {unknown_name('axiom', name, known)}")


def refuse_unknown_claims(names: Iterable[str]) -> None:
    """Refuse a claim that names no axiom of explainers and no kind of them."""
    saved = catalogue.saved()
    axioms = saved["axioms"]
    known = {*saved["explainers"], *(name for name, axiom in axioms.items() if not axiom.get("without_explainer"))}
    for name in names:
        may_be_new = name not in axioms and _is_spelled(name, faithcheck.axioms)
        if name not in known and not may_be_new:
            raise OptionError(f"--claim={name}: {unknown_name('axiom or kind of explainers', name, known)}")


def refuse_unknown_pairs(specs: Sequence[str], explainers: Sequence[str] = ()) -> None:
    """Refuse a name or a glob of no pair; not where a module of the user, or of an explainer, may register it."""
    known, offered = KNOWN["pairs"](), installed(PAIRS)
    places = {spec: spec.partition(":")[0] for spec in specs}
    for spec, place in places.items():
        if place.endswith(".py"):
            raise OptionError(f"--pairs={spec}: give the module, {user_modules.module_of_file(Path(place))}")
    unknown = [spec for spec in specs if not (fnmatch.filter(known, spec) or _is_spelled(spec, faithcheck.models))]
    modules = {spec: places[spec] for spec in unknown if user_modules.find_module(places[spec]) is not None}
    for spec, module in modules.items():
        user_modules.checked_source(f"--pairs={spec}", module)
    registering = modules or {*places.values()} & {*offered} or [e for e in explainers if ":" in e]
    if unknown and not registering:
        raise OptionError(unknown_pair(unknown[0], known))


KNOWN: dict[str, Callable[[], Collection[str]]] = {
    "pairs": lambda: {*catalogue.saved()["pairs"], *installed(PAIRS)},
    "explainers": lambda: {*builtin_explainers(), *installed(GROUP)},
    "axioms": lambda: {*catalogue.saved()["axioms"]},
}
"""The names that can be listed without importing torch, by the command that lists them."""


def as_glob(command: str, text: str | None) -> str | None:
    """A name that the command lists or a glob as it is; a part of names as the glob that matches them."""
    if text is None or re.search(r"[*?\[]", text) or text in KNOWN.get(command, tuple)():
        return text
    return f"*{text}*"


def refuse_unmatched(command: str, glob: str) -> None:
    """Refuse a glob that matches no name."""
    known = KNOWN[command]()
    if not fnmatch.filter(known, glob) and not _is_spelled(glob, faithcheck.models, faithcheck.axioms):
        raise OptionError(unmatched(command, glob, known))


def unmatched(command: str, glob: str, known: Collection[str]) -> str:
    """The message for a glob that matches none of the names that a command lists."""
    text = re.sub(r"^\*(.+)\*$", r"\1", glob)  # a part of a name, as it was given
    return f"{text!r} matches none of the {len(known)} names of faithcheck {command}: {', '.join(families(known))}"


def unknown_pair(spec: str, known: Iterable[str]) -> str:
    """The message for a name or a glob of no pair: the nearest names, or the families."""
    if re.search(r"[*?\[]", spec):
        return f"--pairs={spec} matches no pair; the families are {', '.join(families(known))}"
    return (
        f"--pairs={spec}: {unknown_name('pair', spec, known, families(known))} (there is no module of that name either)"
    )


def refuse_unknown_likes(likes: Iterable[str]) -> None:
    """Refuse a value of ``--like`` that names no built-in explainer."""
    for like in likes:
        name = like.rpartition("=")[2]
        if name not in builtin_explainers():
            raise OptionError(f"--like={like}: {unknown_name('built-in explainer', name, builtin_explainers())}")


def refuse_unknown_outputs(model: str | Path, given: Mapping[str, str | None]) -> None:
    """Refuse outputs, by their options, that the configuration of a classifier in a folder does not have."""
    try:
        config = json.loads((Path(model).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # of a model on the hub or in a GGUF file, `target_choice` says it later
        return
    classes = [*map(str, (config.get("id2label") or {}).values())]
    known = {*classes, *(config.get("label2id") or {})}
    if not classes or not all("Classification" in kind for kind in config.get("architectures") or [""]):
        return
    for option, output in given.items():
        name = (output or "").removeprefix("name=").removeprefix("number=")
        if output is None or name.lower() in {one.lower() for one in known}:
            continue
        if not name.isdecimal():
            raise OptionError(f"{option}={output}: {unknown_name('output', name, known)}; or give its number")
        if int(name) >= len(classes):
            raise OptionError(f"{option}={output}: the model has {len(classes)} outputs, 0 to {len(classes) - 1}")


def _is_spelled(glob: str, *packages: ModuleType) -> bool:
    """Whether a module of the registries spells a text that a name or a glob matches, or the transform of a pair."""
    files = (file for package in packages for folder in package.__path__ for file in Path(folder).rglob("*.py"))
    words = (word for file in files for word in re.findall(r'"([\w.]+)"', file.read_text(encoding="utf-8")))
    # The pairs of a transform are named after it and a base model: rescaling.logits_bert.
    return any(fnmatch.fnmatchcase(word, glob) or ("." in word and glob.startswith(f"{word}_")) for word in words)
