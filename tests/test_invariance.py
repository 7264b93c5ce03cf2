"""Two implementations of one function get one attribution."""

import pytest


@pytest.mark.invariance
@pytest.mark.axiom("invariance")
def test_implementation_invariance(check, settings, report):
    report(check.run(settings))
