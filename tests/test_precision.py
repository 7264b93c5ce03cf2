"""float32 gives the attribution of float64, to round-off."""

import pytest


@pytest.mark.precision
@pytest.mark.axiom("precision")
def test_dtype_consistency(check, settings, report):
    report(check.run(settings))
