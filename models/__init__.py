"""What is explained: pairs of equivalent models, their cases, and the data and training of small models.

What belongs here: pairs, base models, data sets, and the loading of trained models.
What does not: explainers (`faithcheck.explainers`) and axioms (`faithcheck.axioms`), which this package never imports.
"""

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
