"""Activations written out: one function whose formula has an added constant, or none.

The pairs are networks x → z = Wx + b → f(z) → V f(z) + c.

1. AttnLRP, CP-LRP and ε-LRP pass relevance through an operation f of one operand unchanged, so its modified gradient is
   f(z)/z.
2. Written out in several operations, let m(z) be the modified gradient of the whole formula. The attributions of output
   t differ by a_f − a_g = x ⊙ Wᵀ((f(z)/z − m(z)) ⊙ V_t).
3. Without an added constant every step conserves, a product halves into operands that both lead back to z, and m(z) is
   f(z)/z again.
4. An added constant keeps its share of the relevance, so m(z) is smaller than f(z)/z:

   * GELU, 0.5·z·(1 + erf(z/√2)): z gets ½·½(1 + erf), erf gets ½·½z·erf/z; m = Φ − ¼, where Φ = ½(1 + erf). In short,
     the quarter is the constant 1's half of ½z.
   * The tanh form of GELU (`gelu_new`): the same, as z + 0.044715 z³ conserves; m = GELU(z)/z − ¼.
   * σ(z) = ½ + ½tanh(z/2): the constant ½ keeps ½, so f/z − m = ½/z.
   * softplus log(1 + eᶻ): 1 keeps its share 1/(1 + eᶻ) = σ(−z), so f/z − m = softplus(z)·σ(−z)/z.

GELU's formulas have products of data, which ε-LRP refuses; it runs on the other two, with the same rules. DeepLIFT's
rescale rule multiplies Δoutput/Δinput along a chain of operations. All are functions of z alone, so it gives Δf/Δz.
"""

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from transformers.activations import NewGELUActivation

from faithcheck.models.cases import points
from faithcheck.models.expectation import ALL_LRP, INVARIANT_BY_DEFINITION, Expectations, expect_lrp
from faithcheck.models.networks.hidden_layer import missing_slope, two_hidden_layers
from faithcheck.models.pair import invariance_pair

SLOPE_OF_A_CHAIN = expect_lrp("Δ/Δ of a chain of operations on z alone multiply to Δf/Δz", of="deeplift_rescale")
CITE = "Achtibat et al. 2024 (arXiv 2402.05602), the identity rule; added constants: Eq. 1 of arXiv 2510.18810"


def expect_lost_quarter(why: str) -> Expectations:
    """The expectations where the constant 1 of ½z(1 + …) takes half of ½z: x ⊙ ¼WᵀV_t is lost."""
    return {
        **INVARIANT_BY_DEFINITION,
        **expect_lrp(why, predict=missing_slope(lambda z: torch.full_like(z, 0.25)), cite=CITE),
    }


def gelu_by_erf(z: Tensor) -> Tensor:
    return 0.5 * z * (1 + torch.erf(z / math.sqrt(2)))


def gelu_new(z: Tensor) -> Tensor:
    """The tanh form of GELU, as `transformers.activations.NewGELUActivation` computes it."""
    return 0.5 * z * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * torch.pow(z, 3.0))))


invariance_pair(
    "activation.gelu_ndtr",
    partial(two_hidden_layers, f=functional.gelu, g=lambda z: z * torch.special.ndtr(z)),
    points,
    expect_lrp("½Φ + ½z·Φ/z = Φ: the product halves, and both operands are functions of z alone"),
    why="GELU(z) = z·Φ(z)",
)
invariance_pair(
    "activation.gelu_erf",
    partial(two_hidden_layers, f=functional.gelu, g=gelu_by_erf),
    points,
    expect_lost_quarter("½·½(1 + erf) + ½·½z·erf/z = Φ − ¼: the constant 1 keeps a quarter of the linear network"),
    why="GELU(z) = z·Φ(z), and Φ(z) = ½(1 + erf(z/√2))",
)
invariance_pair(
    "activation.gelu_tanh",
    partial(two_hidden_layers, f=lambda z: functional.gelu(z, approximate="tanh"), g=gelu_new),
    points,
    expect_lost_quarter("½·½(1 + tanh) + ½·½z·tanh/z: as with erf, the constant 1 keeps a quarter"),
    why="the tanh form of GELU and its formula",
    cite="Hendrycks & Gimpel 2016, arXiv 1606.08415",
)
invariance_pair(
    "activation.gelu_new_class",
    partial(two_hidden_layers, f=lambda z: functional.gelu(z, approximate="tanh"), g=NewGELUActivation()),
    points,
    expect_lrp("the class is treated as one operation with the identity rule, like F.gelu", of=ALL_LRP),
    SLOPE_OF_A_CHAIN,
    why="NewGELUActivation is the formula of the tanh form of GELU",
)
invariance_pair(
    "activation.gelu_new_name",
    partial(two_hidden_layers, f=NewGELUActivation(), g=gelu_new),
    points,
    expect_lost_quarter(
        "the class is treated as one operation; the same code outside it loses a quarter to the constant 1"
    ),
    why="the same code inside NewGELUActivation and outside it",
)


def slope_of_the_half(z: Tensor) -> Tensor:
    """½ over z: the share of the constant ½ in σ(z) = ½ + ½tanh(z/2), per unit of z."""
    return 0.5 / z


invariance_pair(
    "activation.sigmoid_tanh",
    partial(two_hidden_layers, f=torch.sigmoid, g=lambda z: 0.5 + 0.5 * torch.tanh(z / 2)),
    points,
    expect_lrp("the constant ½ keeps ½ of the output", predict=missing_slope(slope_of_the_half), of=ALL_LRP),
    SLOPE_OF_A_CHAIN,
    why="σ(z) = ½ + ½tanh(z/2)",
)


def slope_of_the_one(z: Tensor) -> Tensor:
    """softplus(z)·σ(−z) over z: the share of the constant 1 in log(1 + eᶻ), per unit of z."""
    return functional.softplus(z) * torch.sigmoid(-z) / z


EXACT_SOFTPLUS = partial(functional.softplus, threshold=40)  # the default, 20, is off by e⁻²⁰ = 2e-9
invariance_pair(
    "activation.softplus_log_exp",
    partial(two_hidden_layers, f=EXACT_SOFTPLUS, g=lambda z: torch.log(1 + torch.exp(z))),
    points,
    expect_lrp("in 1 + eᶻ the constant 1 keeps its share σ(−z)", predict=missing_slope(slope_of_the_one), of=ALL_LRP),
    SLOPE_OF_A_CHAIN,
    why="softplus(z) = log(1 + eᶻ)",
)
