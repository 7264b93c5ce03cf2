"""On scalar products and linear attention the running explainer is its SymPy derivation; the gap is printed."""

import pytest


@pytest.mark.symbolic
@pytest.mark.axiom("symbolic")
def test_symbolic_derivation(check, settings, report):
    report(check.run(settings))
