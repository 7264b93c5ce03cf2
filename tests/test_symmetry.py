"""Symmetric features of equal values get equal attributions."""

import pytest


@pytest.mark.symmetry
@pytest.mark.axiom("symmetry")
def test_symmetry(check, settings, report):
    report(check.run(settings))
