"""A feature that changes the output alone is not given zero."""

import pytest


@pytest.mark.sensitivity
@pytest.mark.axiom("sensitivity")
def test_sensitivity_a(check, settings, report):
    report(check.run(settings))
