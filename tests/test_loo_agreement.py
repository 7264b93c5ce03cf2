"""How well an attribution correlates with Leave-One-Out."""

import pytest


@pytest.mark.loo
@pytest.mark.axiom("loo")
def test_loo_agreement(check, settings, report):
    report(check.run(settings))
