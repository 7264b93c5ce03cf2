"""A model of random weights gets another attribution."""

import pytest


@pytest.mark.randomisation
@pytest.mark.axiom("randomisation")
def test_parameter_randomisation(check, settings, report):
    report(check.run(settings))
