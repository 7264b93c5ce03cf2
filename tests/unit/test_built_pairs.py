"""The models of a pair are built once for its checks, and again once a check left something behind or failed."""

import copy
from dataclasses import replace

import pytest
import torch
from msgspec import structs
from torch import nn

from faithcheck import Settings, check_explainer
from faithcheck.explainers import GradientTimesInput, Unsupported
from faithcheck.models import Case, registered_pairs

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
    """A pair, and the seeds with which it was built and its case was made."""
    seeds = []

    def build(seed, dtype, device):
        seeds.append(seed)
        return PAIR.build(seed, dtype, device)

    def case(seed, dtype, device):
        assert seed == seeds[-1]
        seeds[-1] = (seed, "case")
        return PAIR.case(seed, dtype, device)

    return replace(PAIR, build=build, case=case), seeds


class Writes:
    """Changes the replacements of its case, which `attribution_of` does not compare."""

    name = "writes"

    def attribute(self, model, case):
        for tensor in (*case.replacements.values(), case.special_tokens_mask):
            tensor.fill_(1)
        return GradientTimesInput().attribute(model, case)


def test_no_explainer_changes_the_case_of_later_checks():
    inputs = torch.ones(1, 2, dtype=torch.float64)
    case = Case(
        inputs,
        torch.zeros(1, dtype=torch.int64),
        torch.zeros_like(inputs),
        special_tokens_mask=torch.zeros(1, 2, dtype=torch.bool),
        replacements={"zero": torch.tensor(0.0, dtype=torch.float64)},
    )
    seen = []

    class Sees(Writes):
        def attribute(self, model, case):
            seen.append((case.replacements["zero"].item(), case.special_tokens_mask.any().item()))
            return super().attribute(model, case)

    model = nn.Linear(2, 1, dtype=torch.float64).eval()
    pair = replace(PAIR, case=lambda *how: case, build=lambda *how: (model, copy.deepcopy(model)))
    for _ in range(2):
        check_explainer(Sees(), ["completeness"], [pair])
    assert set(seen) == {(0.0, False)}


def test_a_check_says_how_long_it_took():
    (first,), (second,) = (check_explainer(GradientTimesInput(), ["invariance"], [PAIR]) for _ in range(2))
    assert first.seconds > 0
    assert first == structs.replace(second, seconds=None)


def test_checks_of_one_pair_share_its_models_and_its_case(counted):
    pair, seeds = counted
    for explainer in (GradientTimesInput(), Fails(Unsupported("no rule")), GradientTimesInput()):
        check_explainer(explainer, ["invariance", "completeness"], [pair])
    assert seeds == [(0, "case")]
    check_explainer(GradientTimesInput(), ["invariance"], [pair], Settings(seed=1))
    assert seeds == [(0, "case"), (1, "case")]


@pytest.mark.parametrize("explainer", [Leaves(), Fails(ValueError("wrong"))], ids=lambda explainer: explainer.name)
def test_models_on_which_something_was_left_or_failed_are_built_again(counted, explainer):
    pair, seeds = counted
    check_explainer(explainer, ["invariance"], [pair])
    *_, record = check_explainer(GradientTimesInput(), ["invariance"], [pair])
    assert (record.axiom, record.status) == ("invariance", "holds")
    assert seeds == [(0, "case")] * 2
