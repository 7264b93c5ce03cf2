"""The same call gives the same bits."""

import pytest


@pytest.mark.determinism
@pytest.mark.axiom("determinism")
def test_determinism(check, settings, report):
    report(check.run(settings))
