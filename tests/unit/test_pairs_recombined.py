"""Recurrences, log-sum-exp, attention in other orders and rollout: closed forms hold for other seeds and types."""

from dataclasses import replace

import pytest

from faithcheck.explainers import builtin_explainers
from faithcheck.models import registered_pairs
from faithcheck.plan import plan
from faithcheck.request import Settings

ALL = {"attnlrp", "cplrp", "blockwise_lrp"}
VIOLATING = {
    "recurrence.gated_update": ALL,
    "recurrence.selective_scan": ALL,
    "log_sum_exp.stable": {*ALL, "epsilon_lrp"},
    "log_sum_exp.stable_attached": {*ALL, "epsilon_lrp"},
    "log_sum_exp.shifted_by_first": {*ALL, "epsilon_lrp"},
    "log_probability.common_term": {"cplrp"},
    "log_probability.log_of_softmax": {"attnlrp", "blockwise_lrp"},
    "degree.product_plus_one": ALL,
    "degree.one_minus_product": ALL,
    "degree.silu_of_product": {"attnlrp", "cplrp"},
    "degree.silu_of_three": {"attnlrp", "cplrp"},
    "online_softmax.two_chunks": ALL,
    "kernel_attention.normalised": ALL,
    "rollout.dead_head": {"attention_rollout"},
    "rollout.reversed_tokens": {"attention_rollout"},
}


@pytest.mark.parametrize("name", VIOLATING)
def test_the_closed_forms_hold_for_another_seed(name):
    pair = registered_pairs()[name]
    explainers = [builtin_explainers()[explainer] for explainer in VIOLATING[name]]
    for check in plan("invariance", explainers, [pair]):
        record = check.run(Settings(seed=1))
        assert record.status == "predicted violation", record
        assert record.gap > 0.01, "far from round-off"


@pytest.mark.parametrize("name", VIOLATING)
def test_a_closed_form_of_the_other_sign_is_refuted(name):
    pair = registered_pairs()[name]
    for explainer in VIOLATING[name]:
        expected = pair.expected["invariance", explainer]
        wrong = replace(expected, predict=lambda f, g, case, right=expected.predict: -right(f, g, case))
        wrong_pair = replace(pair, expected={("invariance", explainer): wrong})
        (check,) = plan("invariance", [builtin_explainers()[explainer]], [wrong_pair])
        assert check.run(Settings()).status == "inconclusive"
