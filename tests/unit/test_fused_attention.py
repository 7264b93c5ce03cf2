"""Attention in one operation: value, relevance and refusals are those of its steps, and no weights are kept."""

from itertools import combinations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from faithcheck.explainers import CPLRP, LRP, AttnLRP, Unsupported
from faithcheck.explainers.fast.propagation import FastPropagation
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.cplrp import CP_LRP
from faithcheck.explainers.lrp.propagation import Propagation
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule
from faithcheck.tests.helpers.fixtures import double as double  # for every test here
from faithcheck.tests.helpers.relevance_of_operands import CLOSE

TABLES = pytest.mark.parametrize("rules", [ATTNLRP, CP_LRP], ids=["attnlrp", "cplrp"])
SHAPES = {"query": (2, 4, 5, 3), "key": (2, 4, 5, 3), "value": (2, 4, 5, 6)}
OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.3},
    "causal": {"is_causal": True},
    "hidden keys": {"attn_mask": torch.tensor([[True, True, False, True, True]]).expand(5, 5)},
    "bias": {"attn_mask": torch.linspace(-1, 1, 25, dtype=torch.float64).view(5, 5)},
    "grouped": {"enable_gqa": True},
}
CARRYING = [names for count in (1, 2, 3) for names in combinations(SHAPES, count)]


def attention(mode, rules, carrying, options, by_name=False, epsilon=0.0):
    """The value of the attention, the gradients at the operands that carry relevance, and the operations it took."""
    generator = torch.Generator().manual_seed(0)
    values = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    if options.get("enable_gqa"):
        values = {name: value if name == "query" else value[:, :2] for name, value in values.items()}
    point = torch.cat([values[name].flatten() for name in carrying]).requires_grad_()
    propagation = mode(rules, epsilon, point)
    with propagation:
        parts = point.split([values[name].numel() for name in carrying])
        values |= {name: part.view(values[name].shape) for name, part in zip(carrying, parts, strict=True)}
        result = scaled_dot_product_attention(
            *([] if by_name else values.values()), **(values if by_name else {}), **options
        )
    if not result.requires_grad:
        return result, None, propagation.calls
    weights = torch.randn(result.shape, generator=generator)
    (gradient,) = torch.autograd.grad((result * weights).sum(), point)
    return result.detach(), gradient, propagation.calls


@TABLES
@pytest.mark.parametrize("carrying", CARRYING, ids="+".join)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_is_its_steps(rules, carrying, options):
    value, gradient, calls = attention(FastPropagation, rules, carrying, options, by_name=len(carrying) == 2)
    by_steps, expected, steps = attention(Propagation, rules, carrying, options)
    torch.testing.assert_close(value, by_steps, **CLOSE)
    assert (gradient is None) == (expected is None) == (rules is CP_LRP and "value" not in carrying)
    if gradient is not None:
        torch.testing.assert_close(gradient, expected, **CLOSE)
    assert not calls["softmax"]
    assert steps["softmax"] == ("query" in carrying or "key" in carrying)


@pytest.mark.parametrize(
    ("rules", "epsilon"),
    [
        ({**ATTNLRP, "softmax": lambda call: call.value()}, 0.0),
        ({**ATTNLRP, "matmul": gradient_rule}, 0.0),
        (ATTNLRP, 1e-6),
    ],
    ids=["another softmax rule", "another product rule", "a stabiliser"],
)
def test_other_rules_are_applied_step_by_step(rules, epsilon):
    _, gradient, calls = attention(FastPropagation, rules, tuple(SHAPES), {}, epsilon=epsilon)
    _, expected, _ = attention(Propagation, rules, tuple(SHAPES), {}, epsilon=epsilon)
    assert calls["softmax"]
    assert torch.equal(gradient, expected)


@TABLES
def test_it_keeps_no_attention_weights(rules):
    sizes = []
    torch.manual_seed(0)
    point = torch.randn(1, 1, 64, 4, dtype=torch.float32).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        for mode in (FastPropagation, Propagation):
            with mode(rules, 0.0, point):
                x = point * 1.0
                scaled_dot_product_attention(x, x, x)
            kept, sizes[:] = max(sizes), []
            assert (kept >= 64 * 64) == (mode is Propagation)


@pytest.mark.parametrize("method", [AttnLRP(), CPLRP(), LRP("steps", {**ATTNLRP, "softmax": gradient_rule})])
def test_dropout_is_refused(method):
    x = torch.randn(1, 1, 5, 5).requires_grad_()
    message = "no rule for dropout in train mode: call model.eval()"
    with (
        FastPropagation(method.rules, 0.0, x),
        pytest.raises(Unsupported, match=f"scaled_dot_product_attention in .*{message}"),
    ):
        scaled_dot_product_attention(x, x, x, dropout_p=0.5)


@TABLES
@pytest.mark.parametrize("mode", [FastPropagation, Propagation])
def test_a_mask_that_carries_relevance_is_a_summand_of_the_logits(rules, mode):
    """Doge computes its mask from the values."""
    gradients = []
    for fused in (True, False):
        x = torch.randn(1, 1, 5, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
        with mode(rules, 0.0, x):
            mask = torch.tanh(x)
            if fused:
                result = scaled_dot_product_attention(x, x, x, attn_mask=mask)
            else:
                result = torch.softmax(x @ x.mT * 5**-0.5 + mask, -1) @ x
        gradients += torch.autograd.grad(result.square().sum(), x)
    torch.testing.assert_close(*gradients, **CLOSE)
