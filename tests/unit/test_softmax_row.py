"""The softmax row: explainers and Leave-One-Out against their closed forms, in float64."""

from dataclasses import replace

import pytest
import torch
from scipy import integrate
from torch import nn

from faithcheck.explainers import CPLRP, LRP, AttnLRP, GradientTimesInput, IntegratedGradients, Unsupported
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.rules.linear_maps import epsilon_rule
from faithcheck.models import Case, select_target
from faithcheck.tests.helpers.softmax_row import (
    SoftmaxRow,
    contrast,
    exact_loo,
    exact_through_softmax,
    exact_through_values,
    row_case,
)

EXAMPLES, KEYS = 8, 16
ROW = SoftmaxRow()
# Sums of at most 16 keys and 8 heads of size 1, in float64; logits shifted by c have c times the round-off.
CLOSE = 1e-12


def draw(heads, scale=1.0, shift=0.0):
    generator = torch.Generator().manual_seed(0)
    logits, values = torch.randn(2, EXAMPLES, KEYS, heads, generator=generator, dtype=torch.float64)
    return scale * logits + shift, values


def loo_by_mask(case):
    """Leave-One-Out, one key's attention mask at a time, without the closed form: ``(batch, keys)``."""
    mask = case.forward_arguments["attention_mask"]

    def without(key):
        reduced = mask.clone()
        reduced[:, key] = 0
        return select_target(
            replace(case, forward_arguments={**case.forward_arguments, "attention_mask": reduced}).run(ROW), case.target
        )

    whole = select_target(case.run(ROW), case.target)
    return torch.stack([whole - without(key) for key in range(mask.shape[1])], 1)


def expected(name, logits, values, explain_values):
    softmax, through_values = exact_through_softmax(logits, values), exact_through_values(logits, values)
    by_logits = {"attnlrp": softmax, "gradient_x_input": softmax}
    by_logits_and_values = {"attnlrp": (softmax + through_values) / 2, "gradient_x_input": softmax + through_values}
    return {**by_logits_and_values, "cplrp": through_values}[name] if explain_values else by_logits[name]


def error(computed, wanted):
    """The largest difference, relative to the largest value if that is above 1."""
    return ((computed - wanted).abs().max() / wanted.abs().max().clamp_min(1)).item()


POINTS = [(0.0, 0.0), (1e-3, 0.0), (1.0, 0.0), (10.0, 0.0), (100.0, 0.0), (0.1, 1e3), (0.1, -1e3)]


@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize(("scale", "shift"), POINTS)
def test_explainers_and_loo_equal_their_closed_forms(heads, scale, shift):
    logits, values = draw(heads, scale, shift)
    for explain_values in (False, True):
        case = row_case(logits, values, explain_values=explain_values)
        assert error(loo_by_mask(case), exact_loo(logits, values)) < CLOSE
        methods = [AttnLRP(0), GradientTimesInput(), *([CPLRP(0)] if explain_values else [])]
        for method in methods:
            wanted = expected(method.name, logits, values, explain_values)
            assert error(method.attribute(ROW, case), wanted) < CLOSE, (method.name, explain_values)


def no_competition(call):
    """A broken softmax rule: R_Z = Z ⊙ R_A, without A Σ R_A."""
    weights = call.value().detach()
    straight = call.args[0] * weights
    return weights + straight - straight.detach()


@pytest.mark.parametrize("broken", [{"softmax": no_competition}, {"einsum": epsilon_rule}])
def test_a_broken_rule_differs_from_the_closed_form(broken):
    logits, values = draw(1)
    case = row_case(logits, values, explain_values=True)
    relevance = LRP("broken", {**ATTNLRP, **broken}, 0).attribute(ROW, case)
    assert error(relevance, expected("attnlrp", logits, values, True)) > 0.1


def test_through_one_softmax_relevance_is_loo_times_logit_times_one_minus_weight():
    logits, values = draw(1, scale=2.0)
    relevance = AttnLRP(0).attribute(ROW, row_case(logits, values, explain_values=False))
    ratio = (logits * (1 - logits.softmax(1))).squeeze(2)
    assert error(relevance, exact_loo(logits, values) * ratio) < CLOSE


def test_at_uniform_zero_logits_attnlrp_is_zero_and_loo_is_the_distance_from_the_mean():
    logits, values = draw(1, scale=0.0)
    case = row_case(logits, values, explain_values=False)
    assert AttnLRP(0).attribute(ROW, case).abs().max() == 0
    away = (values - values.mean(1, keepdim=True)).squeeze(2)
    assert error(loo_by_mask(case), away / (KEYS - 1)) < CLOSE


def test_a_shift_of_the_logits_keeps_loo_and_changes_relevance_in_proportion():
    logits, values = draw(1, scale=0.1)
    original, shifted = (row_case(logits + shift, values, explain_values=False) for shift in (0.0, 1024.0))
    # The shifted logits are rounded at 1024, so to about 1e-13.
    assert (loo_by_mask(original) - loo_by_mask(shifted)).abs().max() < 1e-12
    change = AttnLRP(0).attribute(ROW, shifted) - AttnLRP(0).attribute(ROW, original)
    assert error(change, 1024 * contrast(logits, values).squeeze(2)) < CLOSE


def test_integrated_gradients_equal_an_adaptive_quadrature():
    logits, values = draw(1, scale=3.0, shift=2.0)
    attribution = IntegratedGradients(steps=64).attribute(ROW, row_case(logits, values, explain_values=False))
    z, v = logits[:1], values[:1]
    for key in range(KEYS):
        exact, _ = integrate.quad(lambda a, key=key: contrast(a * z, v)[0, key, 0].item(), 0, 1, epsabs=1e-13)
        assert attribution[0, key].item() == pytest.approx(z[0, key, 0].item() * exact, abs=1e-10)


class LogitsOfFeatures(nn.Module):
    """Features x_i of ``width`` numbers make the logits, Z_i = q·x_i + bias: ``(batch, keys, width)`` to (batch, 1)."""

    def __init__(self, query, bias):
        super().__init__()
        self.query, self.bias = query, bias

    def forward(self, features, attention_mask, values):
        return ROW((features @ self.query + self.bias).unsqueeze(-1), attention_mask, values)


@pytest.mark.parametrize("size", [1e-3, 1.0])
def test_features_below_the_logits_get_the_relevance_of_the_logits(size):
    generator = torch.Generator().manual_seed(1)
    features = size * torch.randn(EXAMPLES, KEYS, 4, generator=generator, dtype=torch.float64)
    query = torch.randn(4, generator=generator, dtype=torch.float64)
    values = draw(1)[1]
    at_logits = row_case((features @ query).unsqueeze(-1), values, explain_values=False)
    at_features = Case(
        features, at_logits.target, torch.zeros_like(features), forward_arguments=at_logits.forward_arguments
    )
    relevance = AttnLRP(0).attribute(LogitsOfFeatures(query, 0.0), at_features)
    assert error(relevance, AttnLRP(0).attribute(ROW, at_logits)) < CLOSE
    # The relevance of a shift by a bias stays with the bias; only a shift by the features reaches them.
    assert error(AttnLRP(0).attribute(LogitsOfFeatures(query, 1e3), at_features), relevance) < 1e-10


def test_cplrp_refuses_to_explain_logits_alone():
    with pytest.raises(Unsupported, match="no relevance reaches the inputs"):
        CPLRP(0).attribute(ROW, row_case(*draw(1), explain_values=False))


def test_a_row_without_keys_is_refused():
    case = row_case(*draw(1), explain_values=True)
    nothing = torch.zeros_like(case.forward_arguments["attention_mask"])
    with pytest.raises(ValueError, match="a softmax over no key is undefined"):
        replace(case, forward_arguments={"attention_mask": nothing}).run(ROW)
