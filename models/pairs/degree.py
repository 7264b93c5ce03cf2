"""Products beside what is no product of the same degree: a function of a product, a sum or difference with a constant.

Closed forms with ε → 0; y is the output, u = x₁x₂. AttnLRP and CP-LRP give half of a product to each factor, and an
activation passes its relevance on.

1. SiLU(u) = x₁(x₂σ(u)). On the left x₁ and x₂ get ½y each. On the right x₁ gets ½y, and ⅛y through σ(u): together ⅝y,
   and x₂ ¼y + ⅛y = ⅜y. The gap is (−⅛y, ⅛y). Block-wise LRP sees SiLU(u) on both sides.
2. (u + 1)x₃ = (x₁x₂)x₃ + x₃. On the left x₃ gets ½y, and u + 1 the other half, of which u has ½ux₃, and each of its
   factors ¼ux₃. On the right x₁ and x₂ get ¼ux₃ each, and x₃ gets ½ux₃ + x₃. The gap is (0, 0, −½x₃). Block-wise LRP
   starts anew at the sum with a constant, so that the left side is the same. On the right each factor has ⅓ux₃. The
   gap is (−ux₃/12, −ux₃/12, ux₃/6 − ½x₃).
3. SiLU(p) = x₁(x₂(x₃σ(p))), p = x₁x₂x₃. On the left the factors get ¼y, ¼y and ½y. On the right they get ½y, ¼y and
   ⅛y, and σ(p) gets ⅛y, of which they get ¼, ¼ and ½. The gap is (−9y/32, −y/32, 5y/16). Block-wise LRP sees SiLU(p)
   on both sides.
4. (1 − u)x₃ = x₃ − (x₁x₂)x₃ is the second pair with −u in place of u.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.cases import factors
from faithcheck.models.expectation import Predict, expect, expect_lrp
from faithcheck.models.networks.expressions import Input, apply
from faithcheck.models.pair import MakeCase, invariance_pair
from faithcheck.models.pairs.generated import models_of_terms

x1, x2, x3 = (Input(i) for i in range(3))
product = (x1 * x2) * x3


def positive_factors(n: int) -> MakeCase:
    """A pair's ``case`` of n positive factors. SiLU has no slope at −1.28, where a gradient is round-off alone."""

    def case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
        signed = factors(n)(seed, dtype, device)
        return replace(signed, inputs=signed.inputs.abs())

    return case


def silu_gap(*shares: float) -> Predict:
    """LRP on SiLU of the product minus that on its factors, one after the other: shares of y, ``(batch, factors)``."""

    def predict(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
        y = nn.functional.silu(case.inputs.prod(1, keepdim=True))
        return y * case.inputs.new_tensor(shares)

    return predict


def plus_one_gap(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """LRP on (±x₁x₂ + 1)x₃ minus that on its two terms: (0, 0, −½x₃), ``(batch, 3)``."""
    return case.inputs * case.inputs.new_tensor([0, 0, -1 / 2])


def blockwise_gap(sign: int) -> Predict:
    """Block-wise LRP on (±x₁x₂ + 1)x₃ minus that on its two terms: (−p/12, −p/12, p/6 − ½x₃), p = ±x₁x₂x₃."""

    def predict(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
        p = sign * case.inputs.prod(1, keepdim=True)
        return p * case.inputs.new_tensor([-1 / 12, -1 / 12, 1 / 6]) + plus_one_gap(f, g, case)

    return predict


invariance_pair(
    "degree.silu_of_product",
    models_of_terms(apply("silu", x1 * x2), x1 * (x2 * apply("sigmoid", x1 * x2))),
    positive_factors(2),
    expect_lrp("the factors get ½ and ½ of y in f, ⅝ and ⅜ in g", predict=silu_gap(-1 / 8, 1 / 8)),
    why="SiLU(u) = u·σ(u), and multiplication is associative",
)
invariance_pair(
    "degree.silu_of_three",
    models_of_terms(apply("silu", product), x1 * (x2 * (x3 * apply("sigmoid", product)))),
    positive_factors(3),
    expect_lrp(
        "the factors get 8, 8 and 16 of 32 parts of y in f, 17, 9 and 6 in g",
        predict=silu_gap(-9 / 32, -1 / 32, 5 / 16),
    ),
    why="SiLU(p) = p·σ(p), and multiplication is associative",
)
invariance_pair(
    "degree.product_plus_one",
    models_of_terms((x1 * x2 + 1) * x3, (x1 * x2) * x3 + x3),
    factors(3),
    expect_lrp("x₃ gets half of x₃·1 in f, all of it in g", predict=plus_one_gap),
    expect(
        "invariance",
        "blockwise_lrp",
        "a sum with a constant is of degree 1, so that the factors have ¼, ¼, ½ in f and ⅓ each in g",
        predict=blockwise_gap(1),
    ),
    why="multiplication distributes over a sum",
)
invariance_pair(
    "degree.one_minus_product",
    models_of_terms((1 - x1 * x2) * x3, x3 - (x1 * x2) * x3),
    factors(3),
    expect_lrp("x₃ gets half of x₃·1 in f, all of it in g", predict=plus_one_gap),
    expect(
        "invariance",
        "blockwise_lrp",
        "a difference with a constant is of degree 1, so that the factors have ¼, ¼, ½ in f and ⅓ each in g",
        predict=blockwise_gap(-1),
    ),
    why="multiplication distributes over a difference",
)
