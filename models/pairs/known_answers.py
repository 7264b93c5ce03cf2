"""Known answers: small functions on which evidence conflicts, interacts, saturates, shatters or is an absence.

What a family of explainers gives at inputs x and the baseline 0, where nothing else is said:

* *The tangent*, x ⊙ ∇f(x): gradient × input, and the mask gates, which take a gradient where a case has no mask.
  `BudgetedLeaveOneOut` affords no removal of so few features, and is a mask gate.
* *LRP* with ε → 0: activations leave relevance unchanged, and linear maps pass the plain gradient on. So a ReLU gives
  the tangent, tanh gives tanh x, and a product gives each factor half.
* *Slopes between x′ and x*: Integrated Gradients (IG) and DeepLIFT's rescale rule.
* *Removal*, f(x) − f(x without i): Leave-One-Out.
* *Four groups*: the grouped gate takes ⅗ of a feature's slope where its own group is halved, and ⅖ of its mean slope
  where one of the three other groups is.
"""

import torch
from torch import Tensor, nn

from faithcheck.models.cases import examples
from faithcheck.models.closed_forms import quadrature
from faithcheck.models.expectation import ALL_LRP
from faithcheck.models.known_answer import known_answer, right_of, wrong_of
from faithcheck.models.networks.probes import Probe

LRP = f"{ALL_LRP} blockwise_lrp"
GATES = "mask_gate finite_mask_gate readout_gate budgeted_loo"
TANGENT = f"gradient_x_input {GATES}"
SLOPES = "integrated_gradients deeplift_rescale"
XAI_UNITS = "Lee et al. 2025, arXiv 2506.01059"


def zeros(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


def each_in_full(x: Tensor) -> Tensor:
    return torch.ones_like(x)


def halves(x: Tensor) -> Tensor:
    return torch.full_like(x, 1 / 2)


SIGNS = (1.0, -1.0, 1.0)


@known_answer(
    "cancellation",
    examples([[1, 1, 0.5], [2, 2, 0], [3, 3, -1]]),
    right=lambda x: x * x.new_tensor(SIGNS),
    why="the output is a sum of one term for each feature, and a term is due to its feature alone",
    cite=XAI_UNITS,
    expected={
        **right_of(f"loo {SLOPES} {TANGENT} grouped_mask_gate", "linear: every change of a feature is its own term"),
        **right_of(LRP, "the plain gradient of a linear map; where terms cancel to 0, the limit from beside"),
    },
)
def cancellation() -> nn.Module:
    """x₁ − x₂ + x₃ at x₁ = x₂: evidence for and against that cancels; the output can be 0."""
    return Probe(lambda x: (x * x.new_tensor(SIGNS)).sum(1, keepdim=True))


def conflict_removed(x: Tensor) -> Tensor:
    return x[:, :1] * x.new_tensor([0, -1])


@known_answer(
    "conflict",
    examples([[1, 3], [2, 5]]),
    right=lambda x: x[:, :1] / 2 * x.new_tensor([1, -1]),
    why="x₁ alone gives x₁, x₂ alone and both give 0: by their order, x₁ adds x₁ or 0, and x₂ adds 0 or −x₁",
    cite=XAI_UNITS,
    expected={
        **wrong_of(
            f"{TANGENT} {SLOPES} {LRP} grouped_mask_gate",
            zeros,
            "the ReLU is off at x, and everywhere on the way from 0: neither feature is seen",
        ),
        **wrong_of("loo", conflict_removed, "without x₁ the output stays 0; without x₂ it is x₁"),
    },
)
def conflict() -> nn.Module:
    """ReLU(x₁ − x₂) at x₂ > 2x₁: the second feature takes back what the first one would give."""
    return Probe(lambda x: torch.relu(x[:, :1] - x[:, 1:]))


@known_answer(
    "conjunction",
    examples([[1, 1]]),
    right=halves,
    why="the output is 1 with both and 0 with either: they can take each other's place, and share the 1",
    cite=XAI_UNITS,
    expected={
        **right_of(SLOPES, "the ReLU is on for half of the way from 0, with the slope 1 for both"),
        **wrong_of(f"{TANGENT} {LRP} grouped_mask_gate", each_in_full, "slope 1 at x; the bias −1 takes the rest"),
        **wrong_of("loo", each_in_full, "without either the output is 0, so each gets the whole of what they share"),
    },
)
def conjunction() -> nn.Module:
    """ReLU(x₁ + x₂ − 1): AND."""
    return Probe(lambda x: torch.relu(x.sum(1, keepdim=True) - 1))


@known_answer(
    "disjunction",
    examples([[1, 1]]),
    right=halves,
    why="the output is 1 with either and with both: they can take each other's place, and share the 1",
    cite=XAI_UNITS,
    expected={
        **right_of(SLOPES, "the ReLU is on for half of the way from 0, with the slope 1 for both"),
        **wrong_of(f"{TANGENT} {LRP} grouped_mask_gate", zeros, "saturated: the ReLU is off at x, and near it"),
        **wrong_of("loo", zeros, "without either the other gives the same, so neither gets anything"),
    },
)
def disjunction() -> nn.Module:
    """1 − ReLU(1 − x₁ − x₂): OR, redundant evidence."""
    return Probe(lambda x: 1 - torch.relu(1 - x.sum(1, keepdim=True)))


def parity_slope(x: Tensor) -> Tensor:
    return x * (1 - 2 * x.flip(1))


def parity_of_groups(x: Tensor) -> Tensor:
    """x_i (1 − 28/15 x_j): 13/15 of the slope at x_j, 2/15 of that at ½x_j."""
    return x * (1 - 28 / 15 * x.flip(1))


@known_answer(
    "exclusive_or",
    examples([[1, 1], [1, 0], [0, 1]]),
    right=lambda x: x * (1 - x.flip(1)),
    why="each term x_i is due to its feature, and two features that can take each other's place share −2x₁x₂",
    cite=XAI_UNITS,
    expected={
        **right_of("integrated_gradients", "each term in parts by its degree: −x₁x₂ to either factor"),
        **right_of("attnlrp cplrp blockwise_lrp", "a product of data gives half to either factor"),
        **wrong_of(f"loo {TANGENT}", parity_slope, "the output is linear in x₁, and either factor gets all of −2x₁x₂"),
        **wrong_of("grouped_mask_gate", parity_of_groups, "half of the other feature is removed at one of four points"),
    },
)
def exclusive_or() -> nn.Module:
    """x₁ + x₂ − 2x₁x₂: XOR, 0 with none and with both."""
    return Probe(lambda x: (x[:, :1] + x[:, 1:]) - 2 * (x[:, :1] * x[:, 1:]))


def tangent_of_tanh(x: Tensor) -> Tensor:
    return x * (1 - torch.tanh(x).square())


def groups_of_tanh(x: Tensor) -> Tensor:
    """⅗ x (1 − tanh² ½x) + ⅖ x (1 − tanh² x)."""
    return 3 / 5 * 2 * tangent_of_tanh(x / 2) + 2 / 5 * tangent_of_tanh(x)


@known_answer(
    "saturation",
    examples([[0.5, 2, -3], [-1, 3, 2.5]]),
    right=torch.tanh,
    why="the output is a sum of one term for each feature, and a term is due to its feature alone",
    cite="Sundararajan et al. 2017, arXiv 1703.01365, §2.1",
    expected={
        **right_of(f"loo {SLOPES}", "complete for each term by itself; tanh is analytic: quadrature converges"),
        **right_of(LRP, "an activation leaves its relevance, tanh x, unchanged"),
        **wrong_of(TANGENT, tangent_of_tanh, "the slope of tanh falls to 0 where its value stays"),
        **wrong_of("grouped_mask_gate", groups_of_tanh, "the slope half way, and the slope at x"),
    },
)
def saturation() -> nn.Module:
    """Σ tanh x_i: a large feature counts, and a little more of it does not."""
    return Probe(lambda x: torch.tanh(x).sum(1, keepdim=True))


KINKS = ((0, 1.0), (1, -2.0), (2, 2.0), (3, -2.0))
"""Where a zigzag turns, and the change of its slope there."""


def zigzag(x: Tensor) -> Tensor:
    """From 0 up to 1 at 1, down to 0 at 2, up to 1 at 3 and down again; a sum of ReLUs, as in a deep ReLU network."""
    return sum((change * torch.relu(x - kink) for kink, change in KINKS), torch.zeros_like(x))


def tangent_of_zigzag(x: Tensor) -> Tensor:
    """±x: x times the slope."""
    return x * sum((change * (x > kink) for kink, change in KINKS), torch.zeros_like(x))


def groups_of_zigzag(x: Tensor) -> Tensor:
    """⅗ of x times the slope at ½x, and ⅖ of x times the slope at x."""
    return 3 / 5 * 2 * tangent_of_zigzag(x / 2) + 2 / 5 * tangent_of_zigzag(x)


def integral_of_zigzag(x: Tensor) -> Tensor:
    """x times the slope at αx, by Gauss–Legendre quadrature over α."""
    return quadrature(lambda alpha: tangent_of_zigzag(alpha * x) / alpha)


@known_answer(
    "shattered_gradients",
    examples([[3.75, 2.5, 0.5], [1.75, 3.25, 2.25]]),
    right=zigzag,
    why="the output is a sum of one term for each feature, and a term is due to its feature alone",
    cite="Balduzzi et al. 2017, arXiv 1702.08591; Lee et al. 2025, arXiv 2506.01059",
    expected={
        **right_of("loo", "the whole term of a feature is removed"),
        **right_of("deeplift_rescale", "slopes between 0 and x: complete for each term by itself"),
        **wrong_of(f"{TANGENT} {LRP}", tangent_of_zigzag, "a slope of ±1 is multiplied by x, and biases keep the rest"),
        **wrong_of("grouped_mask_gate", groups_of_zigzag, "the slopes at x and half way have signs of their own"),
        **wrong_of("integrated_gradients", integral_of_zigzag, "32 nodes do not find where the slope turns"),
    },
)
def shattered_gradients() -> nn.Module:
    """A sum of zigzags of slope ±1 and height 1: the slope at a point says nothing of the value."""
    return Probe(lambda x: zigzag(x).sum(1, keepdim=True))


WEIGHTS = (1.0, -2.0, 3.0, 0.5)
PRESENT = (0.0, 1.0, 1.0, 0.0)
"""The baseline of `pertinent_negative`: the second and the third feature are there where nothing is known."""


def weighted_inputs(x: Tensor) -> Tensor:
    return x * x.new_tensor(WEIGHTS)


@known_answer(
    "pertinent_negative",
    examples([[1, 0, 0, 1], [1, 1, 0, 0]], baseline=PRESENT),
    right=lambda x: (x - x.new_tensor(PRESENT)) * x.new_tensor(WEIGHTS),
    why="the output is linear: a feature of value 0 that is 1 in the baseline changes it by −w, by its absence",
    cite="Dhurandhar et al. 2018, arXiv 1802.07623; Lee et al. 2025, arXiv 2506.01059",
    expected={
        **right_of(f"loo {SLOPES} {GATES} grouped_mask_gate", "w ⊙ (x − x′): they compare with the baseline"),
        **wrong_of(f"gradient_x_input {LRP}", weighted_inputs, "the factor x is 0 where the absence is what counts"),
    },
)
def pertinent_negative() -> nn.Module:
    """w·x with baseline (0, 1, 1, 0): what is absent speaks, too."""
    return Probe(lambda x: (x * x.new_tensor(WEIGHTS)).sum(1, keepdim=True))
