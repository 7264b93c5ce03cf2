"""The models of a pair are built once for its checks, and again once a check left something behind or failed."""

from dataclasses import replace

import pytest

from faithcheck.axioms import Settings, check_explainer
from faithcheck.explainers import GradientTimesInput, Unsupported
from faithcheck.models import registered_pairs

PAIR = registered_pairs()["control.mlp"]


class Leaves:
    name = "leaves"

    def attribute(self, model, case):
        model.train()
        return GradientTimesInput().attribute(model, case)


class Fails:
    name = "fails"

    def __init__(self, error):
        self.error = error

    def attribute(self, model, case):
        raise self.error


@pytest.fixture
def counted():
    """A pair, and the seeds with which it was built."""
    seeds = []

    def build(seed, dtype, device):
        seeds.append(seed)
        return PAIR.build(seed, dtype, device)

    return replace(PAIR, build=build), seeds


def test_checks_of_one_pair_share_its_models(counted):
    pair, seeds = counted
    for explainer in (GradientTimesInput(), Fails(Unsupported("no rule")), GradientTimesInput()):
        check_explainer(explainer, ["invariance", "completeness"], [pair])
    assert seeds == [0]
    check_explainer(GradientTimesInput(), ["invariance"], [pair], Settings(seed=1))
    assert seeds == [0, 1]


@pytest.mark.parametrize("explainer", [Leaves(), Fails(ValueError("wrong"))], ids=lambda explainer: explainer.name)
def test_models_on_which_something_was_left_or_failed_are_built_again(counted, explainer):
    pair, seeds = counted
    check_explainer(explainer, ["invariance"], [pair])
    (record,) = check_explainer(GradientTimesInput(), ["invariance"], [pair])
    assert record.status == "holds"
    assert seeds == [0, 0]
