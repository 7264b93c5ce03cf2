"""The softmax row: engines and Leave-One-Out against the closed forms, in float64."""

from dataclasses import replace

import pytest
import torch
from scipy import integrate
from torch import nn

from faithcheck.explainers import CPLRP, LRP, AttnLRP, GradientTimesInput, IntegratedGradients, Unsupported
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.rules.linear_maps import epsilon_rule
from faithcheck.models import Case, select_target
from faithcheck.models.networks.softmax_row import (
    SoftmaxRow,
    contrast,
    exact_loo,
    exact_through_softmax,
    exact_through_values,
    row_case,
)

EXAMPLES, KEYS = 8, 16
ROW = SoftmaxRow()
# Sums of at most 16 keys and 8 heads of size 1, in float64; logits that are shifted by c carry c times the round-off.
CLOSE = 1e-12


def draw(heads, scale=1.0, shift=0.0):
    generator = torch.Generator().manual_seed(0)
    logits, values = torch.randn(2, EXAMPLES, KEYS, heads, generator=generator, dtype=torch.float64)
    return scale * logits + shift, values


def loo_by_mask(case):
    """Leave-One-Out, one key's attention mask at a time, without the closed form: ``(batch, keys)``."""
    mask = case.forward_arguments["attention_mask"]

    def without(key):
        kept = mask.clone()
        kept[:, key] = 0
        return select_target(
            replace(case, forward_arguments={**case.forward_arguments, "attention_mask": kept}).run(ROW), case.target
        )

    whole = select_target(case.run(ROW), case.target)
    return torch.stack([whole - without(key) for key in range(mask.shape[1])], 1)


def expected(name, logits, values, explain_values):
    softmax, through_values = exact_through_softmax(logits, values), exact_through_values(logits, values)
    alone = {"attnlrp": softmax, "gradient_x_input": softmax}
    whole = {"attnlrp": (softmax + through_values) / 2, "gradient_x_input": softmax + through_values}
    return {**whole, "cplrp": through_values}[name] if explain_values else alone[name]


def error(found, wanted):
    """The largest difference, relative to the largest value if that is above 1."""
    return ((found - wanted).abs().max() / wanted.abs().max().clamp_min(1)).item()


POINTS = [(0.0, 0.0), (1e-3, 0.0), (1.0, 0.0), (10.0, 0.0), (100.0, 0.0), (0.1, 1e3), (0.1, -1e3)]


@pytest.mark.parametrize("heads", [1, 8])
@pytest.mark.parametrize(("scale", "shift"), POINTS)
def test_engines_and_loo_equal_their_closed_forms(heads, scale, shift):
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
def test_a_broken_rule_is_seen(broken):
    logits, values = draw(1)
    case = row_case(logits, values, explain_values=True)
    found = LRP("broken", {**ATTNLRP, **broken}, 0).attribute(ROW, case)
    assert error(found, expected("attnlrp", logits, values, True)) > 0.1


def test_through_one_softmax_relevance_is_loo_times_logit_times_one_minus_weight():
    logits, values = draw(1, scale=2.0)
    relevance = AttnLRP(0).attribute(ROW, row_case(logits, values, explain_values=False))
    ratio = (logits * (1 - logits.softmax(1))).squeeze(2)
    assert error(relevance, exact_loo(logits, values) * ratio) < CLOSE


def test_uniform_logits_at_zero_get_nothing_while_loo_is_the_distance_from_the_mean():
    logits, values = draw(1, scale=0.0)
    case = row_case(logits, values, explain_values=False)
    assert AttnLRP(0).attribute(ROW, case).abs().max() == 0
    away = (values - values.mean(1, keepdim=True)).squeeze(2)
    assert error(loo_by_mask(case), away / (KEYS - 1)) < CLOSE


def test_a_shift_leaves_loo_and_moves_relevance_in_proportion():
    logits, values = draw(1, scale=0.1)
    here, there = (row_case(logits + shift, values, explain_values=False) for shift in (0.0, 1024.0))
    # The shifted logits are rounded at 1024, so to about 1e-13.
    assert (loo_by_mask(here) - loo_by_mask(there)).abs().max() < 1e-12
    moved = AttnLRP(0).attribute(ROW, there) - AttnLRP(0).attribute(ROW, here)
    assert error(moved, 1024 * contrast(logits, values).squeeze(2)) < CLOSE


def test_integrated_gradients_equal_an_adaptive_quadrature():
    logits, values = draw(1, scale=3.0, shift=2.0)
    found = IntegratedGradients(steps=64).attribute(ROW, row_case(logits, values, explain_values=False))
    z, v = logits[:1], values[:1]
    for key in range(KEYS):
        exact, _ = integrate.quad(lambda a, key=key: contrast(a * z, v)[0, key, 0].item(), 0, 1, epsabs=1e-13)
        assert found[0, key].item() == pytest.approx(z[0, key, 0].item() * exact, abs=1e-10)


class Keys(nn.Module):
    """Features x_i of ``width`` numbers make the logits, Z_i = q·x_i + bias: ``(batch, keys, width)`` to (batch, 1)."""

    def __init__(self, query, bias):
        super().__init__()
        self.query, self.bias = query, bias

    def forward(self, features, attention_mask, values):
        return ROW((features @ self.query + self.bias).unsqueeze(-1), attention_mask, values)


@pytest.mark.parametrize("size", [1e-3, 1.0])
def test_features_that_make_the_logits_get_what_the_logits_get(size):
    generator = torch.Generator().manual_seed(1)
    features = size * torch.randn(EXAMPLES, KEYS, 4, generator=generator, dtype=torch.float64)
    query = torch.randn(4, generator=generator, dtype=torch.float64)
    values = draw(1)[1]
    at_logits = row_case((features @ query).unsqueeze(-1), values, explain_values=False)
    at_features = Case(
        features, at_logits.target, torch.zeros_like(features), forward_arguments=at_logits.forward_arguments
    )
    relevance = AttnLRP(0).attribute(Keys(query, 0.0), at_features)
    assert error(relevance, AttnLRP(0).attribute(ROW, at_logits)) < CLOSE
    # A shift that comes from a bias stays with the bias; only one that comes from the features is handed to them.
    assert error(AttnLRP(0).attribute(Keys(query, 1e3), at_features), relevance) < 1e-10


def test_cplrp_gives_the_logits_nothing():
    with pytest.raises(Unsupported, match="no relevance reaches the inputs"):
        CPLRP(0).attribute(ROW, row_case(*draw(1), explain_values=False))


def test_a_row_needs_a_key():
    case = row_case(*draw(1), explain_values=True)
    nothing = torch.zeros_like(case.forward_arguments["attention_mask"])
    with pytest.raises(ValueError, match="a softmax over no key at all"):
        replace(case, forward_arguments={"attention_mask": nothing}).run(ROW)
