"""Every axiom on every explainer and pair: one test a check."""

from collections.abc import Callable

import pytest

from faithcheck.axioms import AXIOMS, Check, Record, Settings


@pytest.mark.axiom(*AXIOMS)
def test_axiom(check: Check, settings: Settings, report: Callable[[Record], None]) -> None:
    """Run one check, keep its record for the report, and fail if it is red."""
    report(check.run(settings))
