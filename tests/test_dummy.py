"""A feature on which the function does not depend gets zero."""

import pytest


@pytest.mark.dummy
@pytest.mark.axiom("dummy")
def test_dummy(check, settings, report):
    report(check.run(settings))
