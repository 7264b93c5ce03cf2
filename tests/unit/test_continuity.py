"""The axiom ``continuity``: what passes a value of exactly 0 without ε, and at no ε > 0, is found."""

from dataclasses import replace

import pytest

from faithcheck.axioms.continuity import continuity, no_limit
from faithcheck.check import Check
from faithcheck.explainers import AttnLRP, GradientTimesInput
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule
from faithcheck.models.pair import registered_pairs
from faithcheck.request import Settings

PAIRS = registered_pairs()
SLOPE_AT_ZERO = LRP("slope_at_zero", {**ATTNLRP, "exp": gradient_rule})  # exp′(0) = 1, where exp(z)/z has a pole


@pytest.mark.parametrize("pair", ["softmax.stable", "log_sum_exp.stable", "online_softmax.two_chunks"])
def test_a_slope_where_the_rule_has_a_pole_is_found(pair):
    assert Check("continuity", SLOPE_AT_ZERO, PAIRS[pair]).run(Settings()).status == "broken claim"
    assert Check("continuity", AttnLRP(), PAIRS[pair]).run(Settings()).status == "holds"


def test_an_output_of_0_is_found():
    pair = PAIRS["known_answer.cancellation"]
    case = pair.case(0, Settings().dtype, Settings().device)
    f, g = pair.build(0, Settings().dtype, Settings().device)
    gaps = continuity(AttnLRP(), f, g, case).values.abs().amax(1)
    assert gaps.tolist() == [0, 2, 0]  # x₁ − x₂ + x₃ is 0 at (2, 2, 0) alone


def test_it_is_for_explainers_whose_epsilon_is_0():
    assert no_limit(AttnLRP()) is None
    assert "1e-06" in no_limit(replace(AttnLRP(), epsilon=1e-6))
    assert no_limit(GradientTimesInput()) == "it has no stabiliser ε"
