"""Generated pairs: the subject of the search, and smallest counterexamples that it found for AttnLRP.

`faithcheck.axioms.generated` draws pairs of equal expressions, and looks for the smallest that separate an explainer.
What it finds for AttnLRP are five, one for each of five identities. One is (x₁x₂)x₃ = x₁(x₂x₃), the pair
``product.x1x2x3``; the others are registered here. Their closed forms, with ε → 0, y the output:

* exp(x₁ + x₂) = exp(x₁)·exp(x₂). On the left the exponential leaves y to the sum, which has shares xᵢ/(x₁ + x₂); on the
  right the product halves, and each exponential leaves ½y to its operand. Gap y·(xᵢ/(x₁ + x₂) − ½).
* x₁(x₂ + 1) = x₁x₂ + x₁·1. On the left x₁ gets half of x₁(x₂ + 1), on the right half of x₁x₂ and all of x₁·1, a product
  with a constant: the gap is −½x₁. x₂ gets ½x₁x₂ on either side.
* tanh(x) = 2σ(2x) − 1. On the left x gets y; on the right all of 2σ(2x) = y + 1, as the constant gets none: gap −1.
* σ(x) = ½(1 + tanh(½x)). On the left x gets y; on the right ½·tanh(½x) = y − ½: gap ½.

There is no matrix product in them: CP-LRP gives what AttnLRP gives. ε-LRP has no product of data, and otherwise the
same rules: it gives the same on the last two.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.networks.expressions import Expression, Input, Term, apply, features
from faithcheck.models.pair import (
    ALL_LRP,
    INVARIANT_BY_DEFINITION,
    Build,
    Expectation,
    Pair,
    Predict,
    expect_lrp,
    register,
)
from faithcheck.models.pairs import product

PAPER = "arXiv 2510.18810, Eqs. 3–4"
x1, x2, x3 = (Input(i) for i in range(3))


def both(left: Term, right: Term) -> Build:
    """The pair's models: the two terms."""

    def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
        return Expression(left).eval(), Expression(right).eval()

    return build


def found(name: str, left: Term, right: Term, predict: Predict, why: str, of: str = "attnlrp cplrp") -> None:
    """Register a counterexample: two terms, and a_f − a_g."""
    expected = {**INVARIANT_BY_DEFINITION, **expect_lrp(why, predict=predict, of=of)}
    case = product.points(features(left))
    axioms = frozenset({"invariance"})
    register(Pair(name, both(left, right), case, f"{left} = {right}", expected=expected, axioms=axioms))


def exponential_gap(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """y·(xᵢ/(x₁ + x₂) − ½), ``(batch, 2)``."""
    total = case.inputs.sum(1, keepdim=True)
    return total.exp() * (case.inputs / total - 0.5)


def one_more_gap(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """(−½x₁, 0), ``(batch, 2)``."""
    return case.inputs * case.inputs.new_tensor([-0.5, 0.0])


def tanh_gap(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """−1 everywhere, ``(batch, 1)``."""
    return torch.full_like(case.inputs, -1.0)


def sigmoid_gap(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """½ everywhere, ``(batch, 1)``."""
    return torch.full_like(case.inputs, 0.5)


found(
    "generated.exp_of_sum",
    apply("exp", x1 + x2),
    apply("exp", x1) * apply("exp", x2),
    exponential_gap,
    "a sum shares by its summands, a product of exponentials by halves: the gap is y·(xᵢ/(x₁ + x₂) − ½)",
)
found(
    "generated.times_one_more",
    x1 * (x2 + 1),
    x1 * x2 + x1 * 1,
    one_more_gap,
    "a product with data leaves x₁ half, one with a constant all: the gap is (−½x₁, 0)",
)
found(
    "generated.tanh_by_sigmoid",
    apply("tanh", x1),
    2 * apply("sigmoid", 2 * x1) - 1,
    tanh_gap,
    "x gets tanh x on the left and 2σ(2x) = tanh x + 1 on the right, as a constant gets none: the gap is −1",
    of=ALL_LRP,
)
found(
    "generated.sigmoid_by_tanh",
    apply("sigmoid", x1),
    0.5 * (1 + apply("tanh", 0.5 * x1)),
    sigmoid_gap,
    "x gets σ(x) on the left and ½·tanh(½x) = σ(x) − ½ on the right, as a constant gets none: the gap is ½",
    of=ALL_LRP,
)


triple = Expectation(
    "VIOLATES",
    "of the rewrites on four operations or fewer, re-association of three factors alone moves a share: ¼, ¼, ½ of y "
    "become ½, ¼, ¼, a gap of ½; where a factor occurs twice, ½, ½ become ¾, ¼, a gap of ⅓",
    floor=1 / 3,
    cite=PAPER,
)
constants = Expectation(
    "VIOLATES",
    "the smallest that it does not refuse move a constant c out of an activation: tanh x by 2σ(2x) − 1 and σ(x) by "
    "½(1 + tanh ½x) are ½ or more apart, exp(x + c) by exp(x)·exp(c) |c|/max(|x + c|, |x|): |c| is at least 1, and "
    "either logarithm at most ln 64 < 5, as larger values are left out",
    floor=1 / 5,
)
EXPECTED = {
    **{("generated", explainer): expectation for (_, explainer), expectation in INVARIANT_BY_DEFINITION.items()},
    ("generated", "attnlrp"): triple,
    ("generated", "cplrp"): triple,
    ("generated", "epsilon_lrp"): constants,
}

register(
    Pair(
        "generated.search",
        both((x1 * x2) * x3, x1 * (x2 * x3)),
        product.points(3),
        "multiplication is associative: the smallest counterexample to AttnLRP stands for all that are drawn",
        cite=PAPER,
        expected=EXPECTED,
        axioms=frozenset({"generated"}),
    )
)
