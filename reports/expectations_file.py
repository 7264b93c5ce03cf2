"""A file of expectations: what whoever runs the suite expects, a known failure above all, each with its reason.

TOML, a table for each expectation::

    [[expectation]]
    axiom = "invariance"
    explainer = "my_explainer"      # a name or a glob
    subject = "linear_attention.*"  # a pair, one of its models (ends in .f or .g), or a glob
    verdict = "VIOLATES"            # or HOLDS, or ERROR
    floor = 0.05                    # with VIOLATES: the least relative gap
    reason = "the bilinear rule follows the order of computation"

With ``verdict = "ERROR"``, ``error`` says what the explainer's error says, in part. ``cite`` is optional.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from faithcheck.axioms.engine.expectations import SuppliedExpectation
from faithcheck.models.pair import Expectation

VERDICTS = ("HOLDS", "VIOLATES", "ERROR")
_TEXTS = ("axiom", "explainer", "subject", "verdict", "reason")
_OPTIONAL: dict[str, Any] = {"floor": (int, float), "error": str, "cite": str}


class ExpectationsError(ValueError):
    """The file cannot be read as expectations. The message names the file, the entry and the reason."""


def load(path: Path) -> list[SuppliedExpectation]:
    """Read a file of expectations.

    Raises:
        ExpectationsError: no such file, no TOML, no entry, or an entry that is incomplete or contradicts itself.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExpectationsError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ExpectationsError(f"{path} is no TOML: {error}") from error
    entries = content.pop("expectation", None)
    if content or not isinstance(entries, list) or not entries:
        strange = f", not {', '.join(content)}" if content else ""
        raise ExpectationsError(f"{path}: expected tables [[expectation]]{strange}; see the docs, docs/verify.md")
    return [_stated(entry, f"{path}, expectation {number}") for number, entry in enumerate(entries, 1)]


def _stated(entry: Any, where: str) -> SuppliedExpectation:
    if not isinstance(entry, dict):
        raise ExpectationsError(f"{where}: expected a table, got {entry!r}")
    if unknown := sorted(entry.keys() - {*_TEXTS, *_OPTIONAL}):
        raise ExpectationsError(f"{where}: unknown {', '.join(unknown)}; known: {', '.join((*_TEXTS, *_OPTIONAL))}")
    if missing := [key for key in _TEXTS if not isinstance(entry.get(key), str) or not entry[key].strip()]:
        raise ExpectationsError(f"{where}: needs a text for {', '.join(missing)}")
    if entry["verdict"] not in VERDICTS:
        raise ExpectationsError(f"{where}: verdict is one of {', '.join(VERDICTS)}, got {entry['verdict']!r}")
    for key, kind in _OPTIONAL.items():
        if key in entry and (not isinstance(entry[key], kind) or isinstance(entry[key], bool)):
            raise ExpectationsError(f"{where}: {key} cannot be {entry[key]!r}")
    given = {key: entry[key] for key in _OPTIONAL if key in entry}
    if entry["verdict"] == "VIOLATES" and "floor" not in given:
        raise ExpectationsError(f"{where}: VIOLATES needs a floor, the least relative gap: a violation has a size")
    try:
        expectation = Expectation(entry["verdict"], entry["reason"], **given)
    except ValueError as error:
        raise ExpectationsError(f"{where}: {error}") from error
    return SuppliedExpectation(entry["axiom"], entry["explainer"], entry["subject"], expectation)
