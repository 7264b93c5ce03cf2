"""An attribution leaves nothing behind, on the model or in the process."""

import pytest


@pytest.mark.trace
@pytest.mark.axiom("trace")
def test_trace(check, settings, report):
    report(check.run(settings))
