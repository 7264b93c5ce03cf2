"""A mixture of two outputs gets the mixture of their attributions."""

import pytest


@pytest.mark.linearity
@pytest.mark.axiom("linearity")
def test_linearity(check, settings, report):
    report(check.run(settings))
