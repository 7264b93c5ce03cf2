"""What is explained: pairs of equivalent models, the cases explained on them, data and training of the small ones."""

from faithcheck.models.case import Case, explained
from faithcheck.models.pair import (
    FUNCTION,
    Expectation,
    Pair,
    cells,
    equivalent_pair,
    register,
    registered_pairs,
    relevance,
)

__all__ = [
    "FUNCTION",
    "Case",
    "Expectation",
    "Pair",
    "cells",
    "equivalent_pair",
    "explained",
    "register",
    "registered_pairs",
    "relevance",
]
