"""The proof of the suite's power: every seeded fault turns a check red, and no correct explainer does."""

from pathlib import Path

import pytest

from faithcheck.tests.helpers import power
from faithcheck.tests.helpers.campaign_results import store, stored
from faithcheck.tests.helpers.faults.catalogue import FAULTS, UNCHANGED

RESULTS = Path("build/power/results.jsonl")


@pytest.fixture(scope="module")
def measured(settings):
    """A function that returns the red checks of a fault: stored ones, or measured and stored."""
    state, pairs = power.state(), power.subjects()
    done = {row["fault"]: row["red"] for row in stored(RESULTS, state)}

    def red(fault):
        if fault.id not in done:
            done[fault.id] = power.red_checks(fault, power.axioms_of_explainers(), pairs, settings)
            store(RESULTS, state, {"fault": fault.id, "red": done[fault.id]})
        return done[fault.id]

    return red


@pytest.mark.power
@pytest.mark.parametrize("explainer", UNCHANGED, ids=lambda fault: fault.id)
def test_a_correct_explainer_is_green(explainer, measured):
    assert measured(explainer) == {"name": {}, "claims": {}, "default": {}}


@pytest.mark.power
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_is_red_by_name(fault, measured):
    red = measured(fault)["name"]
    if fault.escapes:
        assert not red, f"it is caught, by {red}: the catalogue says that it escapes"
    else:
        assert red, f"no check is red: {fault.why}"
