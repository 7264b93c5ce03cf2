"""Norms and attention, against the same values by another norm or by single products.

With its σ held constant (Ali et al. 2022, arXiv 2202.07304) a norm is a linear map, which another norm can compute:

1. LayerNorm is RMSNorm of x − mean x, because the variance is the mean square of that.
2. RMSNorm is the first half of LayerNorm of (x, −x): the mean of the 2n values is 0, and their variance is the mean
   square of x. What LayerNorm subtracts from x it adds to −x, so that the map is x/rms ⊙ w again.
3. The modules are `functional.rms_norm`.
4. Scaled dot-product attention is two products and a softmax, each with its own rule (Eqs. 3–5 of arXiv 2510.18810).

The norm of a vector stands against the root of a sum of squares: both have the shares x_i²/y² of Eq. 1 of that paper.
x/‖x‖ in one operation is RMSNorm of the n values over √n: both hold the norm constant.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.t5.modeling_t5 import T5LayerNorm

from faithcheck.models.expectation import ALL_LRP, expect, expect_lrp
from faithcheck.models.networks.operation_by_operation import FEATURES, Written, operation_pair
from faithcheck.models.pairs.operation_affine import constant
from faithcheck.models.pairs.operation_choices import without_ties

EPS = 1e-5


def layer_norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, (FEATURES,), constant(x, FEATURES), constant(x, FEATURES), EPS)


def layer_norm_by_rms_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    return functional.rms_norm(centred, (FEATURES,), eps=EPS) * constant(x, FEATURES) + constant(x, FEATURES)


def group_norm(x: Tensor) -> Tensor:
    """GroupNorm of four channels in two groups, with γ and β."""
    return functional.group_norm(x.view(-1, 4, 2), 2, constant(x, 4), constant(x, 4), EPS)


def layer_norm_of_groups(x: Tensor) -> Tensor:
    """LayerNorm of each group's four values, times γ, plus β."""
    grouped = functional.layer_norm(x.view(-1, 2, 4), (4,), eps=EPS).view(-1, 4, 2)
    return grouped * constant(x, 4, 1) + constant(x, 4, 1)


def mean_square_of_centred(x: Tensor) -> Tensor:
    """The mean of (x − mean x)², with x − mean x as one linear map."""
    centring = torch.eye(FEATURES, dtype=x.dtype, device=x.device) - 1 / FEATURES
    return (x @ centring).square().mean(1, keepdim=True)


class PreciseT5LayerNorm(T5LayerNorm):
    """T5's RMSNorm without its cast to float32, which no other norm has."""

    def forward(self, x: Tensor) -> Tensor:
        """x/rms(x) ⊙ γ."""
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon))


def weighted(norm: nn.Module) -> nn.Module:
    """The norm with the weights of `weighted_rms_norm`."""
    norm.weight = nn.Parameter(constant(torch.ones((), dtype=torch.float64), FEATURES))
    return norm


def weighted_rms_norm(x: Tensor) -> Tensor:
    return functional.rms_norm(x, (FEATURES,), constant(x, FEATURES), EPS)


operation_pair(
    "norms",
    {
        "layer_norm": Written(layer_norm, layer_norm_by_rms_norm),
        "group_norm": Written(group_norm, layer_norm_of_groups),
        "var": Written(lambda x: torch.var(x, 1, keepdim=True, unbiased=False), mean_square_of_centred),
        "rms_norm": Written(
            lambda x: functional.rms_norm(x, (FEATURES,), eps=EPS),
            lambda x: functional.layer_norm(torch.cat([x, -x], 1), (2 * FEATURES,), eps=EPS)[:, :FEATURES],
        ),
        "*RMSNorm": Written(weighted(nn.RMSNorm(FEATURES, EPS)), weighted_rms_norm),
        "*T5LayerNorm": Written(weighted(PreciseT5LayerNorm(FEATURES, EPS)), weighted_rms_norm),  # type: ignore[no-untyped-call]
    },
    "LayerNorm is RMSNorm of x − mean x, and RMSNorm half of LayerNorm of (x, −x)",
    expect_lrp("with σ held constant both are one linear map of x", of=ALL_LRP),
    expect("invariance", "blockwise_lrp", "with σ held constant both are one linear map of x"),
    prepare=without_ties,
)


def heads(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of four tokens of width 2, linear in the features: ``(batch, 4, 2)`` each.

    They are so small that the softmax of large random inputs keeps its digits in float32.
    """
    tokens = x.view(-1, 4, 2) / 4
    query, key, value = (tokens @ constant(x, 3, 2, 2)[i] for i in range(3))
    return query, key, value


def masks(x: Tensor) -> tuple[None, Tensor, Tensor]:
    """No mask, one that hides a token from each, and one that adds numbers to the logits, ``(4, 4)``."""
    return None, ~torch.eye(4, dtype=torch.bool, device=x.device), constant(x, 4, 4)


def in_one_operation(x: Tensor) -> Tensor:
    """softmax(QKᵀ/√d + mask) V with each mask, ``(batch, 12, 2)``."""
    attend = functional.scaled_dot_product_attention
    return torch.cat([attend(*heads(x), attn_mask=mask) for mask in masks(x)], 1)


def multi_head_attention(x: Tensor) -> Tensor:
    """Attention of two heads over four tokens, whose projections have weights and biases, ``(batch, 4, 2)``."""
    width, tokens = 2, x.view(-1, 4, 2).transpose(0, 1) / 4
    arguments = (constant(x, 6, 2), constant(x, 6), None, None, False, 0.0, constant(x, 2, 2), constant(x, 2))
    attended, _ = functional.multi_head_attention_forward(
        tokens, tokens, tokens, width, 2, *arguments, attn_mask=masks(x)[2], need_weights=False
    )
    return attended.transpose(0, 1)


def multi_head_attention_by_heads(x: Tensor) -> Tensor:
    """The same, one head after the other."""
    tokens, weight, bias = x.view(-1, 4, 2) / 4, constant(x, 6, 2), constant(x, 6)
    heads = []
    for head in range(2):
        query, key, value = (tokens @ weight[i : i + 1].T + bias[i] for i in (head, 2 + head, 4 + head))
        heads.append(torch.softmax(query @ key.mT + masks(x)[2], -1) @ value)
    return torch.cat(heads, 2) @ constant(x, 2, 2).T + constant(x, 2)


def eager(x: Tensor) -> Tensor:
    """The same in single operations; a token that is hidden has the least logit that its type has."""
    query, key, value = heads(x)
    logits = query @ key.transpose(1, 2) / 2**0.5
    _, shown, added = masks(x)
    hidden = logits.masked_fill(~shown, torch.finfo(x.dtype).min)
    return torch.cat([torch.softmax(z, -1) @ value for z in (logits, hidden, logits + added)], 1)


operation_pair(
    "attention",
    {
        "scaled_dot_product_attention": Written(in_one_operation, eager),
        "multi_head_attention_forward": Written(multi_head_attention, multi_head_attention_by_heads),
        "logsumexp": Written(
            lambda x: torch.logsumexp(x, 1, keepdim=True),
            lambda x: torch.logsumexp(x + constant(x, 1), 1, keepdim=True) - constant(x, 1),
        ),
        "softmax": Written(
            lambda x: torch.softmax(x, 1) * constant(x, FEATURES),
            lambda x: torch.softmax(x + constant(x, 1), 1) * constant(x, FEATURES),
        ),
    },
    "softmax(QKᵀ/√d) V, and a softmax of shifted logits",
    expect_lrp("the same products and the same softmax, each by its own rule"),
    expect("invariance", "blockwise_lrp", "the same products and the same softmax, each by its own rule"),
)


def root_of_squares(x: Tensor) -> Tensor:
    return x.square().sum(1, keepdim=True).sqrt()


operation_pair(
    "vector_norms",
    {
        "norm": Written(lambda x: torch.norm(x, dim=1, keepdim=True), root_of_squares),
        "linalg_vector_norm": Written(lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True), root_of_squares),
        "normalize": Written(
            lambda x: functional.normalize(x, dim=1),
            lambda x: functional.rms_norm(x, (FEATURES,), eps=0.0) / math.sqrt(FEATURES),
        ),
    },
    "‖x‖ = √Σx², and x/‖x‖ = x/rms(x)/√n",
    expect_lrp("shares x²/y² of a norm, and the shares of a linear map of x/‖x‖", of=ALL_LRP),
    prepare=without_ties,  # at x = 0 the norm has no gradient
)
