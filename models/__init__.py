"""What is explained: pairs of equivalent models, their cases, and the data and training of small models.

What belongs here: pairs, base models, data sets, and the loading of trained models.
What does not: explainers (`faithcheck.explainers`) and axioms (`faithcheck.axioms`), which this package never imports.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from faithcheck.models.case import Case, select_target
    from faithcheck.models.expectation import (
        ALL_LRP,
        INVARIANT_BY_DEFINITION,
        Expectation,
        Expectations,
        Verdict,
        expect,
        expect_lrp,
    )
    from faithcheck.models.pair import Pair, equivalent_pair, register, registered_pairs

__all__ = [
    "ALL_LRP",
    "INVARIANT_BY_DEFINITION",
    "Case",
    "Expectation",
    "Expectations",
    "Pair",
    "Verdict",
    "equivalent_pair",
    "expect",
    "expect_lrp",
    "register",
    "registered_pairs",
    "select_target",
]

_HOMES = {
    "ALL_LRP": "expectation",
    "Case": "case",
    "Expectation": "expectation",
    "Expectations": "expectation",
    "INVARIANT_BY_DEFINITION": "expectation",
    "Pair": "pair",
    "Verdict": "expectation",
    "equivalent_pair": "pair",
    "expect": "expectation",
    "expect_lrp": "expectation",
    "register": "pair",
    "registered_pairs": "pair",
    "select_target": "case",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: errors and texts must be importable without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """What is defined here and imported so far, with the public names."""
    return sorted({*globals(), *__all__})
