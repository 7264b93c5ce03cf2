"""Every axiom on every explainer and pair: one test a check."""

from collections.abc import Callable

import pytest

from faithcheck import Check
from faithcheck.axioms import AXIOMS


@pytest.mark.axiom(*AXIOMS)
def test_axiom(check: Check, report_check: Callable[[Check], None]) -> None:
    """Run one check, keep its record for the report, and fail if it is red."""
    report_check(check)
