"""An attribution sums to what the features add to the output over the baseline."""

import pytest


@pytest.mark.completeness
@pytest.mark.axiom("completeness")
def test_completeness(check, settings, report):
    report(check.run(settings))
