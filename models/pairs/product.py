"""Scalar products x₁x₂…xₙ, re-associated: the smallest functions on which a product rule shows its order.

A product is built once, as an expression tree; `evaluate` turns the tree into the SymPy expression and into the torch
model by multiplying symbols or columns.

The closed forms (FACTS §2), with y = x₁…xₙ, d the depth of a leaf, from a baseline of 0:

* AttnLRP halves relevance at each product of data (arXiv 2510.18810, Eqs. 3–4), so a leaf gets y·2^−d, which depends
  on the tree; CP-LRP's own rule speaks of attention only and leaves element-wise products to the same half, so it
  gives the same. Kraft: Σ 2^−d = 1 over the leaves of a full binary tree, so both are complete.
* Integrated Gradients gives y/n: complete, and no order enters.
* Gradient × input and Leave-One-Out give y to every factor: Σ = n·y, so completeness fails by (n − 1)·y.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.pair import INVARIANT_BY_DEFINITION, Build, MakeCase, Pair, expect, expect_lrp, register

PAPER = "arXiv 2510.18810, Eqs. 3–4"
FACTORS = (3, 4, 5)


@dataclass(frozen=True)
class Leaf:
    """The factor with this index."""

    index: int


@dataclass(frozen=True)
class Product:
    """The product of two subtrees."""

    left: Tree
    right: Tree


Tree: TypeAlias = Leaf | Product


def parenthesisations(first: int, last: int) -> list[Tree]:
    """All Catalan(last − first) trees over the factors first…last, both included, in order."""
    if first == last:
        return [Leaf(first)]
    return [
        Product(left, right)
        for split in range(first, last)
        for left in parenthesisations(first, split)
        for right in parenthesisations(split + 1, last)
    ]


def left_comb(n: int) -> Tree:
    """((x₁x₂)x₃)…xₙ, the reference that every other parenthesisation is compared with."""
    leaves: list[Tree] = [Leaf(i) for i in range(n)]
    return reduce(Product, leaves)


def evaluate(tree: Tree, factors: Sequence[Any]) -> Any:
    """Multiply the factors in the tree's order; factors may be SymPy symbols, tensors or numbers."""
    if isinstance(tree, Leaf):
        return factors[tree.index]
    return operator.mul(evaluate(tree.left, factors), evaluate(tree.right, factors))


def depths(tree: Tree, depth: int = 0) -> list[int]:
    """The depth of each leaf, in the factors' order."""
    if isinstance(tree, Leaf):
        return [depth]
    return depths(tree.left, depth + 1) + depths(tree.right, depth + 1)


class ScalarProduct(nn.Module):
    """The torch model of a tree: ``(batch, n)`` to ``(batch, 1)``."""

    def __init__(self, tree: Tree) -> None:
        super().__init__()
        self.tree = tree

    def forward(self, inputs: Tensor) -> Tensor:
        """Multiply the columns."""
        product: Tensor = evaluate(self.tree, inputs.unbind(1))
        return product.unsqueeze(1)


def shares(model: ScalarProduct, case: Case) -> Tensor:
    """AttnLRP's closed form y·2^−d, ``(batch, n)``."""
    powers = 0.5 ** torch.tensor(depths(model.tree)).to(case.inputs)
    return case.inputs.prod(1, keepdim=True) * powers


def surplus(model: ScalarProduct, case: Case) -> Tensor:
    """(n − 1)·y, ``(batch,)``: what is too much where every factor gets all of y."""
    return (case.shape[1] - 1) * case.inputs.prod(1)


def move(f: ScalarProduct, g: ScalarProduct, case: Case) -> Tensor:
    """The difference of two trees' shares."""
    return shares(f, case) - shares(g, case)


LRP, SUM = "attnlrp cplrp", "every factor gets all of y: the sum is n·y"
SYMBOLIC = expect(
    "symbolic",
    f"loo gradient_x_input integrated_gradients {LRP}",
    "the same rules, once in SymPy and once in torch",
    cite=PAPER,
)
EXPECTED = {
    **INVARIANT_BY_DEFINITION,
    **expect_lrp("each product of data halves relevance: a leaf gets y·2^−depth", predict=move, cite=PAPER),
    **expect("completeness", "integrated_gradients", "the fundamental theorem of calculus: n·(y/n) = y"),
    **expect("completeness", LRP, "the shares 2^−depth of a full binary tree sum to 1", cite="Kraft's equality"),
    **expect("completeness", "loo gradient_x_input", SUM, predict=surplus, cite="FACTS §2"),
    **SYMBOLIC,
}


def points(n: int) -> MakeCase:
    """The paper's point (2, 3, 4, …) and seven random ones, to be explained from a baseline of 0."""

    def case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
        drawn = torch.randn(7, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        inputs = torch.cat([torch.arange(2.0, n + 2).double().unsqueeze(0), drawn]).to(device, dtype)
        return Case(inputs, torch.zeros(8, dtype=torch.int64, device=device), torch.zeros_like(inputs))

    return case


def against_left_comb(tree: Tree, n: int) -> Build:
    """The pair's models: the left comb and the tree."""

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
                    case=points(n),
                    why="multiplication is associative",
                    cite=PAPER,
                    expected=EXPECTED,
                    # No "loo": Leave-One-Out gives every factor the same y, and a constant map has no correlation.
                    axioms=frozenset({"invariance", "completeness", "symbolic"}),
                )
            )
