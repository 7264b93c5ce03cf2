"""Inputs and model shifted against each other get the same attribution."""

import pytest


@pytest.mark.shift
@pytest.mark.axiom("shift")
def test_input_shift_invariance(check, settings, report):
    report(check.run(settings))
