"""Scalar products x₁x₂…xₙ in a given order of multiplication, and the closed forms of explainers on them.

`evaluate` turns a product's expression tree into a SymPy expression or into the torch model. Closed forms, with
y = x₁…xₙ, d the depth of a leaf in the tree, and the baseline 0:

1. AttnLRP halves relevance at each product of data (arXiv 2510.18810, Eqs. 3–4), so a leaf gets y·2^−d, which depends
   on the tree. CP-LRP's own rule is for attention only, so it gives the same map.
2. The leaves of a full binary tree satisfy Σ 2^−d = 1 (Kraft's equality), so both are complete.
3. Integrated Gradients gives y/n to every factor: it is complete, and the order does not enter.
4. Gradient × input and Leave-One-Out give y to every factor. The sum is n·y, so completeness fails by (n − 1)·y.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.networks.derived import SHIFT


@dataclass(frozen=True)
class Leaf:
    """The factor with this index."""

    index: int


@dataclass(frozen=True)
class ProductNode:
    """The product of two subtrees."""

    left: Tree
    right: Tree


Tree: TypeAlias = Leaf | ProductNode


def parenthesisations(first: int, last: int) -> list[Tree]:
    """All Catalan(last − first) trees over the factors first…last, both included, in order."""
    if first == last:
        return [Leaf(first)]
    return [
        ProductNode(left, right)
        for split in range(first, last)
        for left in parenthesisations(first, split)
        for right in parenthesisations(split + 1, last)
    ]


def left_comb(n: int) -> Tree:
    """((x₁x₂)x₃)…xₙ, the tree that every other parenthesisation is compared with."""
    leaves: list[Tree] = [Leaf(i) for i in range(n)]
    return reduce(ProductNode, leaves)


def evaluate(tree: Tree, factors: Sequence[Any], multiply: Callable[[Any, Any], Any] = operator.mul) -> Any:
    """Multiply the factors in the tree's order; factors may be SymPy symbols, tensors or numbers."""
    if isinstance(tree, Leaf):
        return factors[tree.index]
    return multiply(evaluate(tree.left, factors, multiply), evaluate(tree.right, factors, multiply))


def depths(tree: Tree, depth: int = 0) -> list[int]:
    if isinstance(tree, Leaf):
        return [depth]
    return depths(tree.left, depth + 1) + depths(tree.right, depth + 1)


class ScalarProduct(nn.Module):
    """The torch model of a tree: ``(batch, n)`` to ``(batch, 1)``."""

    def __init__(self, tree: Tree) -> None:
        super().__init__()
        self.tree = tree

    def forward(self, inputs: Tensor) -> Tensor:
        product: Tensor = evaluate(self.tree, inputs.unbind(1))
        return product.unsqueeze(1)

    def term_as_json(self) -> Any:
        """The product as a term, see `faithcheck.models.networks.expressions.to_json`: ``["*", "x1", "x2"]``."""
        names = [f"x{feature + 1}" for feature in range(len(depths(self.tree)))]
        return evaluate(self.tree, names, lambda left, right: ["*", left, right])


class SmallAttention(nn.Module):
    """Σ H ⊙ QKᵀV, multiplied in the tree's order: tokens' coordinates ``(batch, tokens·width)`` to ``(batch, 1)``."""

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


def halved_by_depth(model: ScalarProduct, case: Case) -> Tensor:
    """AttnLRP's map y·2^−d, ``(batch, n)``."""
    powers = 0.5 ** torch.tensor(depths(model.tree)).to(case.inputs)
    return case.inputs.prod(1, keepdim=True) * powers


def reassociation_gap(f: ScalarProduct, g: ScalarProduct, case: Case) -> Tensor:
    """AttnLRP's map on the tree f minus that on the tree g, ``(batch, n)``."""
    return halved_by_depth(f, case) - halved_by_depth(g, case)


def excess_of_full_products(model: nn.Module, case: Case) -> Tensor:
    """(n − 1)·y, ``(batch,)``: the error of completeness of a map that gives y to every factor."""
    return (case.shape[1] - 1) * case.inputs.prod(1)


def shift_of_shares(shares: Sequence[float]) -> Callable[[nn.Module, Case], Tensor]:
    """What x ⊙ (share · ∂y/∂x) gains when inputs are shifted by c = `SHIFT`: c · shareᵢ · y/xᵢ, ``(batch, n)``."""

    def predict(model: nn.Module, case: Case) -> Tensor:
        return SHIFT * case.inputs.new_tensor(shares) * case.inputs.prod(1, keepdim=True) / case.inputs

    return predict


def excess_of_last_factor(model: nn.Module, case: Case) -> Tensor:
    """AttnLRP's (¼, ¼, ½)y minus its first entry, ``(batch, 3)``, where all factors equal the first."""
    return case.inputs[:, :1] ** 3 * case.inputs.new_tensor([0, 0, 1 / 4])


def grouped_gate_excess(groups: int) -> Callable[[nn.Module, Case], Tensor]:
    """The error of completeness of the grouped mask gate, ``(batch,)``; features are dealt to the groups in turn.

    1. The gate takes gradients at one point for each group of features: the group's c factors are halved there.
    2. At a point where its own group is halved, a factor's slope is y·2^(1 − c). Where another group of c factors is
       halved, its slope is y·2^−c.
    3. The gate weighs the own point by ⅗ and the mean of the others by ⅖.
    """

    def predict(model: nn.Module, case: Case) -> Tensor:
        sizes = [len(range(group, case.shape[1], groups)) for group in range(groups)]
        total = 0.0
        for i in range(case.shape[1]):
            other_points = [2.0**-size for group, size in enumerate(sizes) if group != i % groups]
            total += 3 / 5 * 2.0 ** (1 - sizes[i % groups]) + 2 / 5 * sum(other_points) / len(other_points)
        return (total - 1) * case.inputs.prod(1)

    return predict
