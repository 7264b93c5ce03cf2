"""A pair first proves that it is one: forward and gradient, on its case and on inputs that Hypothesis draws."""

import pytest


@pytest.mark.equivalence
@pytest.mark.invariance
@pytest.mark.axiom("equivalence")
def test_pair_is_equivalent(check, settings, report):
    report(check.run(settings))
