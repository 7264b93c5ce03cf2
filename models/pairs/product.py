"""Scalar products x₁x₂…xₙ, re-associated: the smallest functions on which a product rule depends on the order.

The models and the derivations are in `faithcheck.models.networks.scalar_product`. Each parenthesisation of three, four
or five factors is compared with ((x₁x₂)x₃)….
"""

from __future__ import annotations

import torch
from torch import nn

from faithcheck.models.cases import factors
from faithcheck.models.expectation import INVARIANT_BY_DEFINITION, expect, expect_lrp
from faithcheck.models.networks.scalar_product import (
    ScalarProduct,
    Tree,
    depths,
    excess_of_full_products,
    left_comb,
    parenthesisations,
    reassociation_gap,
)
from faithcheck.models.pair import Build, Pair, register

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


def against_left_comb(tree: Tree, n: int) -> Build:
    def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
        return ScalarProduct(left_comb(n)).eval(), ScalarProduct(tree).eval()

    return build


for n in FACTORS:
    for tree in parenthesisations(0, n - 1):
        if tree != left_comb(n):
            digits = "".join(map(str, depths(tree)))
            register(
                Pair(
                    name="product.x1x2x3" if n == 3 else f"product.n{n}_depths_{digits}",
                    build=against_left_comb(tree, n),
                    case=factors(n),
                    why="multiplication is associative",
                    cite=BILINEAR_RULE,
                    expected=EXPECTED,
                    # No "loo": Leave-One-Out gives every factor the same y, and a constant map has no correlation.
                    axioms=frozenset({"invariance", "completeness", "symbolic"}),
                )
            )
