"""Scalar products x₁x₂…xₙ, re-associated: the smallest functions on which a product rule depends on the order.

Each parenthesisation of three, four or five factors is compared with ((x₁x₂)x₃)…, as derived in
`faithcheck.models.networks.scalar_product`. Linear attention small enough for SymPy has one of these trees, too: two
tokens of two coordinates, rational weights. With g_q, g_k, g_v the output's gradients through the paths of QKᵀV:

1. AttnLRP halves at each product of data: x ⊙ (¼g_q + ¼g_k + ½g_v) for (QKᵀ)V, x ⊙ (½g_q + ¼g_k + ¼g_v) for Q(KᵀV).
   Gap ¼ x ⊙ (g_v − g_q).
2. CP-LRP holds the first factor of a product constant: x ⊙ g_v for both.

The axiom ``symbolic`` derives both from Eqs. 1, 3 and 4 (arXiv 2510.18810) alone.
"""

from functools import partial

import torch
from torch import Tensor, nn

from faithcheck.models.cases import factors
from faithcheck.models.expectation import INVARIANT_BY_DEFINITION, expect, expect_lrp
from faithcheck.models.networks.linear_attention import association_gap
from faithcheck.models.networks.scalar_product import (
    Leaf,
    ProductNode,
    ScalarProduct,
    SmallAttention,
    depths,
    excess_of_full_products,
    left_comb,
    parenthesisations,
    reassociation_gap,
)
from faithcheck.models.pair import Pair, copies, equivalent_pair, random_points, register

BILINEAR_RULE = "arXiv 2510.18810, Eqs. 3–4"
FACTORS = (3, 4, 5)

LRP_OF_PRODUCTS = "attnlrp cplrp"
"""The LRP explainers that have a rule for products of data; ε-LRP refuses these."""

SYMBOLIC = expect(
    "symbolic",
    f"loo gradient_x_input integrated_gradients {LRP_OF_PRODUCTS}",
    "the same rules, once in SymPy and once in torch",
    cite=BILINEAR_RULE,
)
EXPECTED = {
    **INVARIANT_BY_DEFINITION,
    **expect_lrp(
        "each product of data halves relevance: a leaf gets y·2^−depth", predict=reassociation_gap, cite=BILINEAR_RULE
    ),
    **expect("completeness", "integrated_gradients", "the fundamental theorem of calculus: n·(y/n) = y"),
    **expect(
        "completeness", LRP_OF_PRODUCTS, "the shares 2^−depth of a full binary tree sum to 1", cite="Kraft's equality"
    ),
    **expect(
        "completeness",
        "loo gradient_x_input",
        "every factor gets all of y: the sum is n·y",
        predict=excess_of_full_products,
        cite="derived in faithcheck.models.networks.scalar_product",
    ),
    **SYMBOLIC,
}


for n in FACTORS:
    for tree in parenthesisations(0, n - 1):
        if tree != left_comb(n):
            digits = "".join(map(str, depths(tree)))
            register(
                Pair(
                    name="product.x1x2x3" if n == 3 else f"product.n{n}_depths_{digits}",
                    build=copies(partial(ScalarProduct, left_comb(n)), tree=tree),
                    case=factors(n),
                    why="multiplication is associative",
                    cite=BILINEAR_RULE,
                    expected=EXPECTED,
                    # No "loo": Leave-One-Out gives every factor the same y, and a constant map has no correlation.
                    axioms=frozenset({"invariance", "completeness", "symbolic"}),
                )
            )


TOKENS, WIDTH = 2, 2
LEFT, RIGHT = left_comb(3), ProductNode(Leaf(0), ProductNode(Leaf(1), Leaf(2)))


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
