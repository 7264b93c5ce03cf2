"""Linear attention small enough for SymPy: two tokens of two coordinates, rational weights, both associations.

QKᵀV is a product of three factors, so its order is one of the trees of `faithcheck.models.networks.scalar_product`.
With g_q, g_k, g_v the output's gradients through the three paths:

1. AttnLRP halves at each product of data: x ⊙ (¼g_q + ¼g_k + ½g_v) for (QKᵀ)V, x ⊙ (½g_q + ¼g_k + ¼g_v) for Q(KᵀV).
   Gap ¼ x ⊙ (g_v − g_q).
2. CP-LRP holds the first factor of a product constant: x ⊙ g_v for both.

The axiom ``symbolic`` derives both from Eqs. 1, 3 and 4 (arXiv 2510.18810) alone.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from faithcheck.models.expectation import INVARIANT_BY_DEFINITION, expect_lrp
from faithcheck.models.networks.linear_attention_closed_forms import association_gap
from faithcheck.models.networks.scalar_product import Leaf, ProductNode, Tree, evaluate, left_comb
from faithcheck.models.pair import equivalent_pair, random_points
from faithcheck.models.pairs.product import BILINEAR_RULE, SYMBOLIC

TOKENS, WIDTH = 2, 2
LEFT, RIGHT = left_comb(3), ProductNode(Leaf(0), ProductNode(Leaf(1), Leaf(2)))


class SmallAttention(nn.Module):
    """Σ H ⊙ QKᵀV, multiplied in the tree's order: tokens' coordinates ``(batch, tokens·width)`` to ``(batch, 1)``.

    ``weights`` are W_Q, W_K and W_V, ``(width, width)`` each, and H, ``(tokens, width)``.
    """

    def __init__(self, tree: Tree, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.tree = tree
        self.query, self.key, self.value, self.head = (nn.Parameter(weight) for weight in weights)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.forward_paths(inputs, inputs, inputs)

    def forward_paths(self, for_query: Tensor, for_key: Tensor, for_value: Tensor) -> Tensor:
        """The output from separate coordinates for each path, each ``(batch, tokens·width)``, to ``(batch, 1)``."""
        q, k, v = (x.view(len(x), *self.head.shape) for x in (for_query, for_key, for_value))
        factors = q @ self.query, (k @ self.key).transpose(1, 2), v @ self.value
        attended: Tensor = evaluate(self.tree, factors, operator.matmul)
        return (attended * self.head).sum((1, 2)).unsqueeze(1)


def rational(seed: int, *shape: int) -> Tensor:
    """Random numbers k/4 with 1 ≤ |k| ≤ 4: float64 computes exactly with a few of them."""
    generator = torch.Generator().manual_seed(seed)
    sign = 2 * torch.randint(0, 2, shape, generator=generator) - 1
    return sign * torch.randint(1, 5, shape, generator=generator).double() / 4


@equivalent_pair(
    "linear_attention.symbolic",
    case=random_points(8, TOKENS * WIDTH),
    why="matrix multiplication is associative: (QKᵀ)V = Q(KᵀV), the same weights",
    cite=BILINEAR_RULE,
    expected={
        **INVARIANT_BY_DEFINITION,
        **expect_lrp(
            "each product halves: the gap is ¼ x ⊙ (g_v − g_q)",
            predict=association_gap,
            cite=BILINEAR_RULE,
            of="attnlrp",
        ),
        **expect_lrp("all relevance goes through the value path: both orders give x ⊙ g_v", of="cplrp"),
        **SYMBOLIC,
    },
    axioms=("invariance", "symbolic"),
)
def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    square = rational(seed, 3, WIDTH, WIDTH)
    weights = [weight.to(device, dtype) for weight in (*square, rational(seed + 1, TOKENS, WIDTH))]
    return SmallAttention(LEFT, weights).eval(), SmallAttention(RIGHT, weights).eval()
