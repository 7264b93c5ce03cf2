"""Another unit of the inputs changes nothing, another of the outputs is that of the attribution."""

import pytest


@pytest.mark.scale
@pytest.mark.axiom("scale")
def test_scale_covariance(check, settings, report):
    report(check.run(settings))
