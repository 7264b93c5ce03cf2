"""The rules for sums by index, interpolation and `torch.nn.MultiheadAttention`."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from faithcheck.explainers import CPLRP, AttnLRP, Unsupported
from faithcheck.explainers.lrp.ledger import conservation_ledger
from faithcheck.models import Case
from faithcheck.tests.helpers.fixtures import double as double  # for every test here
from faithcheck.tests.helpers.relevance_of_operands import CLOSE, both_forms, relevance_of

INDEX = torch.tensor([0, 1, 0, 1, 1])
ONES = torch.nn.functional.one_hot(INDEX).double()


def reduced(reduction, include_self=False):
    return lambda x: torch.zeros(2).scatter_reduce(0, INDEX, x, reduction, include_self=include_self)


@both_forms
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_values_that_share_an_index_are_a_sum(reduction, epsilon):
    x, relevance = torch.randn(5), torch.randn(2)
    weights = ONES / ONES.sum(0) if reduction == "mean" else ONES
    actual, expected = (
        relevance_of(operation, x, relevance=relevance, epsilon=epsilon)[0]
        for operation in (reduced(reduction), lambda x: x @ weights)
    )
    torch.testing.assert_close(actual, expected, **CLOSE)


@both_forms
def test_the_largest_of_values_that_share_an_index_has_all_relevance(epsilon):
    x, relevance = torch.tensor([1.0, 2.0, 3.0, -4.0, 1.0]), torch.randn(2)
    (actual,) = relevance_of(reduced("amax"), x, relevance=relevance, epsilon=epsilon)
    torch.testing.assert_close(actual, torch.stack([*torch.zeros(1), relevance[1], relevance[0], *torch.zeros(2)]))


def test_a_product_of_values_that_share_an_index_is_refused():
    with pytest.raises(Unsupported, match="scatter_reduce in the model: no rule for a product"):
        relevance_of(reduced("prod"), torch.randn(5), relevance=torch.randn(2))


@both_forms
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic", "area"])
def test_interpolation_is_a_linear_map(mode, epsilon):
    x, relevance = torch.randn(1, 1, 3, 3), torch.randn(1, 1, 4, 4)

    def resized(x):
        return functional.interpolate(x, size=(4, 4), mode=mode)

    matrix = resized(torch.eye(9).view(9, 1, 3, 3)).flatten(1)
    actual, expected = (
        relevance_of(operation, x, relevance=relevance, epsilon=epsilon)[0]
        for operation in (resized, lambda x: (x.flatten(1) @ matrix).view(1, 1, 4, 4))
    )
    torch.testing.assert_close(actual, expected, **CLOSE)


# --- attention in one function ----------------------------------------------------------------------------------------

WIDTH, HEADS, TOKENS = 6, 2, 4


class Attending(nn.Module):
    """`nn.MultiheadAttention` of the inputs with themselves, the first token's output; or the same by SDPA."""

    def __init__(self, masks, by_sdpa=False):
        super().__init__()
        self.masks, self.by_sdpa = masks, by_sdpa
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x):
        if not self.by_sdpa:
            return self.attention(x, x, x, need_weights=False, **self.masks)[0][:, 0]
        a = self.attention
        q, k, v = (
            y.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for y in functional.linear(x, a.in_proj_weight, a.in_proj_bias).chunk(3, -1)
        )
        mask = torch.zeros(1, 1, TOKENS, TOKENS)
        for given in self.masks.values():
            hidden = torch.zeros(given.shape).masked_fill(given, -torch.inf) if given.dtype == torch.bool else given
            mask = mask + (hidden[:, None, None] if len(given) == len(x) else hidden)
        mixed = functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        return functional.linear(mixed, a.out_proj.weight, a.out_proj.bias)[:, 0]


MASKS = {
    "no mask": {},
    "added": {"attn_mask": torch.arange(16.0, dtype=torch.float64).view(4, 4) / 8},
    "causal": {"attn_mask": torch.ones(4, 4, dtype=torch.bool).triu(1)},
    "padding": {"key_padding_mask": torch.tensor([[False] * 3 + [True], [False] * 4])},
}


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("method", [AttnLRP, CPLRP])
def test_multi_head_attention_is_its_projections_and_sdpa(method, masks):
    model, same = (Attending(masks, by_sdpa).eval() for by_sdpa in (False, True))
    same.load_state_dict(model.state_dict())
    x = torch.randn(2, TOKENS, WIDTH)
    case = Case(x, torch.zeros(2, dtype=torch.int64), torch.zeros_like(x))
    expected = method().attribute(same, case)
    torch.testing.assert_close(method().attribute(model, case), expected, **CLOSE)
    ledger = conservation_ledger(method(), model, case)
    torch.testing.assert_close(ledger.start, model(x)[:, 0].detach(), **CLOSE)
    assert ledger.gap < 1e-12


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"add_bias_kv": True}, "bias_k, bias_v"),
        ({"add_zero_attn": True}, "add_zero_attn"),
        ({"kdim": 3, "vdim": 3}, "use_separate_proj_weight"),
        ({"dropout": 0.5}, "dropout in train mode"),
    ],
)
def test_what_multi_head_attention_has_no_rule_for_is_named(options, named):
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)
    key = torch.randn(2, TOKENS, options.get("kdim", WIDTH))
    model = nn.Sequential(nn.Identity())
    model.forward = lambda x: attention(x, key, key)[0][:, 0]
    x = torch.randn(2, TOKENS, WIDTH)
    with pytest.raises(Unsupported, match=f"multi_head_attention_forward in .*{named}"):
        AttnLRP().attribute(model, Case(x, torch.zeros(2, dtype=torch.int64), torch.zeros_like(x)))
