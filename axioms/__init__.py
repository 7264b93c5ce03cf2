"""The axioms that attributions should satisfy: each module is one axiom, a plain function that returns a measurement.

What belongs here: axioms alone. Each registers itself with the decorator `faithcheck.axioms.engine.axiom.axiom`, so a
new axiom is one new file. Not here: how checks are planned, run and settled (`engine`), the search for counterexamples
(`counterexamples`), and agreement with Leave-One-Out over a data set (`alignment`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from faithcheck.axioms.engine.check import Check, Settings
    from faithcheck.axioms.engine.check_explainer import check_explainer
    from faithcheck.axioms.engine.plan import plan
    from faithcheck.axioms.engine.record import Record
    from faithcheck.axioms.engine.registry import AXIOMS, SUMMARIES
    from faithcheck.axioms.engine.verdicts import Measurement, settle

__all__ = ["AXIOMS", "SUMMARIES", "Check", "Measurement", "Record", "Settings", "check_explainer", "plan", "settle"]

_HOMES = {
    "AXIOMS": "registry",
    "Check": "check",
    "Measurement": "verdicts",
    "Record": "record",
    "SUMMARIES": "registry",
    "Settings": "check",
    "check_explainer": "check_explainer",
    "plan": "plan",
    "settle": "verdicts",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `engine.statuses` must be importable without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"faithcheck.axioms.engine.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """What is defined here and imported so far, with the public names."""
    return sorted({*globals(), *__all__})
