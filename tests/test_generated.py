"""No drawn pair of equal expressions gets two attributions; what is found is shrunk, saved and replayed."""

import pytest


@pytest.mark.generated
@pytest.mark.invariance
@pytest.mark.axiom("generated")
def test_generated_pairs(check, settings, report):
    report(check.run(settings))
