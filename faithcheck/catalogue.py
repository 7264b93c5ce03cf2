"""The catalogue: axioms, pairs, expectations and tolerances that verdicts follow from, under a version.

Results documents name it, so that results can be compared. Claims of explainers and pairs of users are no part of it.
``catalogue.json`` also has the names of explainers and removals, so that a wrong name is refused without torch.
``python -m faithcheck.catalogue [VERSION]`` writes it from the registries (`make catalogue`); a test compares both.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from faithcheck.models.files import write_atomically
from faithcheck.reports.common_catalogue import PARTS, changes
from faithcheck.reports.documents.results import DIGITS, Catalogue

if TYPE_CHECKING:
    from faithcheck.axioms.measure.axiom import Axiom
    from faithcheck.models.expectation import Expectation
    from faithcheck.models.pair import Pair

Json: TypeAlias = dict[str, Any]
FILE = Path(__file__).resolve().parent / "catalogue.json"
CHANGED = "+changed"
"""What follows the version where the registries are not what the file holds."""


def saved() -> Json:
    """The file: ``version``, ``hash``, ``removals``, ``explainers`` by kind, and `PARTS` in full."""
    catalogue: Json = json.loads(FILE.read_text(encoding="utf-8"))
    return catalogue


def registered() -> Json:
    """`PARTS` as the registries have them: the built-in axioms and pairs, by name."""
    from faithcheck.axioms.measure.registry import AXIOMS  # not at the top: to read the file takes no torch
    from faithcheck.axioms.measure.roundoff import TOLERANCES
    from faithcheck.models.pair import registered_pairs

    return {
        "tolerances": {str(dtype).removeprefix("torch."): size for dtype, size in TOLERANCES.items()},
        "axioms": {name: _of_axiom(axiom) for name, axiom in AXIOMS.items() if _is_built_in(axiom.measure.__module__)},
        "pairs": {
            name: _of_pair(pair)
            for name, pair in registered_pairs().items()
            if _is_built_in(pair.module) and not name.endswith("_checkpoint")  # of --checkpoint: a user's model
        },
    }


def explainers() -> dict[str, list[str]]:
    """The names of the built-in explainers of each kind, as they are registered."""
    from faithcheck.explainers.builtin import kinds  # not at the top: see `registered`

    return kinds()


def removals() -> list[str]:
    """The names of the ways to remove features, as their classes state them."""
    from faithcheck.explainers.loo.removal import REMOVALS  # not at the top: see `registered`

    return sorted(REMOVALS)


def of_run() -> Catalogue:
    """The catalogue as a results document names it: version, hash, tolerances, and a digest of each entry."""
    catalogue, content = saved(), summary(registered())
    found = digest(content, 64)
    version = catalogue["version"] + ("" if found == catalogue["hash"] else CHANGED)
    return Catalogue(version=version, hash=found, **content)


def summary(content: Json) -> Json:
    """`PARTS` with a digest in place of each axiom and pair."""
    digests = {part: {name: digest(entry) for name, entry in content[part].items()} for part in ("axioms", "pairs")}
    return {"tolerances": content["tolerances"], **digests}


def digest(content: object, digits: int = DIGITS) -> str:
    """The first hexadecimal digits of the SHA-256 of a value of JSON's types."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def changed_names(before: Mapping[str, list[str]], now: Mapping[str, list[str]]) -> list[str]:
    """How the names of the built-in explainers differ."""
    old, new = ({name for names in kinds.values() for name in names} for kinds in (before, now))
    lists = {
        "added": new - old,
        "removed": old - new,
        "of other kinds": {"all"} if old == new and before != now else (),
    }
    return [f"explainers {how}: {', '.join(sorted(names))}" for how, names in lists.items() if names]


def in_words(entry: Json) -> str:
    """An axiom or a pair in a line: ``axioms completeness invariance; invariance HOLDS: loo, …``."""
    values = {key: value for key, value in entry.items() if key != "expected"}
    parts = [f"{key.replace('_', ' ')} {_listed(value)}".removesuffix(" True") for key, value in values.items()]
    for first, groups in entry.get("expected", {}).items():
        parts += [f"{first} {verdict}: {', '.join(names)}" for verdict, names in groups.items()]
    return "; ".join(parts)


def _listed(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def write(version: str | None = None) -> list[str]:
    """Write the file and return what changed; `ValueError` for a version unlike ``2026.12`` or ``2026.12.1``."""
    if version is not None and not re.fullmatch(r"\d{4}\.\d{2}(\.\d+)?", version):
        raise ValueError(f"a version is a year and a month, such as 2026.12, got {version!r}")
    before = saved() if FILE.exists() else {"version": version, **{part: {} for part in PARTS}}
    content, names = registered(), explainers()
    head = {"version": version or before["version"], "hash": digest(summary(content), 64)}
    write_atomically(FILE, _as_text({**head, "removals": removals(), "explainers": names, **content}))
    renamed = [f"version: {before['version']} → {head['version']}"] if head["version"] != before["version"] else []
    return [*renamed, *changes(before, content), *changed_names(before.get("explainers", {}), names)]


def _as_text(catalogue: Json) -> str:
    """JSON with a line for each entry, so that a diff shows what changed."""

    def entry(name: str, value: object) -> str:
        return f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"

    parts = [entry(key, catalogue[key]) for key in ("version", "hash", "removals")]
    for part in ("explainers", *PARTS):
        rows = ",\n  ".join(entry(name, value) for name, value in catalogue[part].items())
        parts.append(f'"{part}": {{\n  {rows}\n }}')
    return "{\n " + ",\n ".join(parts) + "\n}\n"


# --- entries ---------------------------------------------------------------------------------------------------------


def _is_built_in(module: str) -> bool:
    return module.startswith("faithcheck.")


def _of_axiom(axiom: Axiom) -> Json:
    """What an axiom is measured on; values that are an axiom's default are left out."""
    applies_not = axiom.not_applicable.__name__
    content = {
        "measured_on": axiom.measured_on,
        "without_explainer": not axiom.needs_explainer,
        "part_of": axiom.part_of,
        "mandatory": axiom.mandatory,
        "not_applicable": "" if applies_not == "applicable_to_all" else applies_not,
        "subjects": sorted(axiom.subjects),
        "excluded": sorted(axiom.excluded),
    }
    tolerance = {} if axiom.tolerance is None else {"tolerance": axiom.tolerance}
    return {key: value for key, value in content.items() if value} | tolerance


def _of_pair(pair: Pair) -> Json:
    """The axioms that a pair asks for, whether it is a control, and what it expects."""
    content = {"axioms": sorted(pair.axioms), "control": pair.control, "expected": _expected(pair.expected)}
    return {key: value for key, value in content.items() if value}


def _expected(expectations: Mapping[tuple[str, str], Expectation]) -> dict[str, dict[str, list[str]]]:
    """Expectations by the first part of their key, and then in words: ``{axiom: {"HOLDS": [explainer, …]}}``."""
    grouped: dict[str, dict[str, list[str]]] = {}
    for (first, second), expectation in sorted(expectations.items()):
        grouped.setdefault(first, {}).setdefault(_in_words(expectation), []).append(second)
    return grouped


def _in_words(expectation: Expectation) -> str:
    """The verdict with its size: ``VIOLATES by reassociation_gap``, ``VIOLATES, gap ≥ 0.01``, ``HOLDS``."""
    parts: list[str] = [expectation.verdict]
    parts += [f"by {_formula(expectation.predict)}"] if expectation.predict is not None else []
    parts += [f"gap ≥ {expectation.floor:g}"] if expectation.floor is not None else []
    parts += [f"gap ≤ {expectation.ceiling:g}"] if expectation.ceiling is not None else []
    parts += [f"with {expectation.error!r}"] if expectation.error else []
    return " ".join(parts[:2]) + "".join(f", {part}" for part in parts[2:])


def _formula(function: Any) -> str:
    """The name of a closed form, with what its function was made with: ``completeness_error(gradient_times_input)``."""
    function = inspect.unwrap(function)
    if isinstance(function, partial):
        return f"{_formula(function.func)}({', '.join(map(_argument, function.args))})"
    maker, _, inner = function.__qualname__.partition(".<locals>.")
    closure = inspect.getclosurevars(function).nonlocals if inner else {}
    given = ", ".join(_argument(value) for _, value in sorted(closure.items()))
    return f"{maker}({given})" if inner else str(maker)


def _argument(value: object) -> str:
    """A value that a closed form was made with, in words that no run changes."""
    if isinstance(value, partial) or (callable(value) and hasattr(inspect.unwrap(value), "__qualname__")):
        return _formula(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_argument(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_argument, value))})"
    plain = value is None or isinstance(value, int | float | str) or dataclasses.is_dataclass(value)
    return repr(value) if plain else type(value).__name__


if __name__ == "__main__":
    try:
        written = write(*sys.argv[1:2])
    except ValueError as error:
        sys.exit(f"catalogue: {error}")
    print("\n".join(written) or "the catalogue is what it was")
