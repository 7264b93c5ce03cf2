"""What is explained: pairs of equivalent models, the cases explained on them, data and training of the small ones."""

from faithcheck.models.case import Case, select_target
from faithcheck.models.pair import (
    INVARIANT_BY_DEFINITION,
    Expectation,
    Pair,
    equivalent_pair,
    expect,
    expect_lrp,
    register,
    registered_pairs,
)

__all__ = [
    "INVARIANT_BY_DEFINITION",
    "Case",
    "Expectation",
    "Pair",
    "equivalent_pair",
    "expect",
    "expect_lrp",
    "register",
    "registered_pairs",
    "select_target",
]
