"""``--expectations``: a TOML file of the user's own expectations, such as known failures, each with its reason.

A table for each expectation::

    [[expectation]]
    axiom = "invariance"
    explainer = "my_explainer"      # a name or a glob
    subject = "linear_attention.*"  # a pair, one of its models (ends in .f or .g), or a glob
    verdict = "VIOLATES"            # or HOLDS, or ERROR
    floor = 0.05                    # with VIOLATES: the least relative gap
    ceiling = 0.5                   # the largest relative gap: optional with VIOLATES, and with HOLDS
    reason = "the bilinear rule follows the order of computation"

With ``verdict = "ERROR"``, ``error`` is a part of the explainer's error message. ``cite`` is optional.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faithcheck.options import OptionError

if TYPE_CHECKING:
    from faithcheck.axioms.measure.expectations import SuppliedExpectation
    from faithcheck.explainers.protocol import Explainer
    from faithcheck.models.pair import Pair

VERDICTS = ("HOLDS", "VIOLATES", "ERROR")
_TEXTS = ("axiom", "explainer", "subject", "verdict", "reason")
_OPTIONAL: dict[str, Any] = {"floor": (int, float), "ceiling": (int, float), "error": str, "cite": str}


def choose_expectations(path: str | None) -> list[SuppliedExpectation]:
    """The expectations in the file; none without a file."""
    return [] if path is None else load(Path(path))


def refuse_stale(
    explainers: Sequence[Explainer], pairs: Sequence[Pair], supplied: Sequence[SuppliedExpectation] = ()
) -> None:
    """Refuse expectations that match no check."""
    from faithcheck.axioms.measure.expectations import refuse_stale_expectations

    try:
        refuse_stale_expectations(explainers, pairs, supplied)
    except ValueError as error:
        raise OptionError(str(error)) from error


def load(path: Path) -> list[SuppliedExpectation]:
    """Read a file of expectations."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"--expectations: {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise OptionError(f"--expectations: {path} is not TOML: {error}") from error
    entries = content.pop("expectation", None)
    if content or not isinstance(entries, list) or not entries:
        unexpected = f", not {', '.join(content)}" if content else ""
        raise OptionError(
            f"--expectations: {path}: expected tables [[expectation]]{unexpected}; see docs/how_to/known_failures.md"
        )
    return [_expectation(entry, f"{path}, expectation {number}") for number, entry in enumerate(entries, 1)]


def _expectation(entry: Any, where: str) -> SuppliedExpectation:
    if not isinstance(entry, dict):
        raise OptionError(f"--expectations: {where}: expected a table, got {entry!r}")
    if unknown := sorted(entry.keys() - {*_TEXTS, *_OPTIONAL}):
        raise OptionError(
            f"--expectations: {where}: unknown {', '.join(unknown)}; known: {', '.join((*_TEXTS, *_OPTIONAL))}"
        )
    if missing := [key for key in _TEXTS if not isinstance(entry.get(key), str) or not entry[key].strip()]:
        raise OptionError(f"--expectations: {where}: needs a text for {', '.join(missing)}")
    if entry["verdict"] not in VERDICTS:
        raise OptionError(f"--expectations: {where}: verdict is one of {', '.join(VERDICTS)}, got {entry['verdict']!r}")
    for key, kind in _OPTIONAL.items():
        if key in entry and (not isinstance(entry[key], kind) or isinstance(entry[key], bool)):
            raise OptionError(f"--expectations: {where}: {key} cannot be {entry[key]!r}")
    optional = {key: entry[key] for key in _OPTIONAL if key in entry}
    if entry["verdict"] == "VIOLATES" and "floor" not in optional:
        raise OptionError(
            f"--expectations: {where}: VIOLATES needs a floor, the least relative gap that counts as the violation"
        )
    # Not at the top: a file that cannot be read is refused before torch is imported, which takes seconds.
    from faithcheck.axioms.measure.expectations import SuppliedExpectation
    from faithcheck.models.expectation import Expectation

    try:
        expectation = Expectation(entry["verdict"], entry["reason"], **optional)
    except ValueError as error:
        raise OptionError(f"--expectations: {where}: {error}") from error
    return SuppliedExpectation(entry["axiom"], entry["explainer"], entry["subject"], expectation)
