"""Piecewise linear networks: a pair that separates DeepLIFT's rescale rule from gradients, neurons rescaled, maxout.

* `relu.sundararajan` is derived in `faithcheck.models.networks.counterexamples`.
* `relu.rescaled`: c·ReLU(z) = ReLU(c·z) for c > 0, so each neuron may be scaled by its own c > 0 if the weights that
  read it are divided by c. The gradient, the ratio ReLU(z)/z and the slope ΔReLU(z)/Δz stay the same.
* `maximum.absolute`: max(a, b) passes relevance to the larger operand, as its gradient does. In (a + b + |a − b|)/2
  sums and multiples pass the gradient on, and |·| has the gradient ±1, which is its identity rule |z|/z, too. So a gets
  ½(1 + sign(a − b)): 1 where it is the larger, 0 where it is the smaller, ½ at a tie, as torch's max does. DeepLIFT's
  rescale rule is not defined for max, and refuses it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.cases import generator, random_points_and_targets
from faithcheck.models.expectation import ALL_LRP, INVARIANT_BY_DEFINITION, Expectations, expect, expect_lrp
from faithcheck.models.networks.counterexamples import Sundararajan, loo_excess, rescale_gap, share_of_bias
from faithcheck.models.pair import copies, equivalent_pair, invariance_pair, random_points

CITE = "Sundararajan, Taly & Yan 2017 (arXiv 1703.01365), §2.2"
RESCALE = "Shrikumar, Greenside & Kundaje 2017 (arXiv 1704.02685), the rescale rule"


def points_around_kink(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    """(3, 1), points of either sign where y = 0 or x₂ < 0, and four random points where both features count.

    Where y > 0 it is 1: the kink is half way from the baseline 0, where Gauss–Legendre quadrature is exact.
    """
    random = torch.rand(4, 1, dtype=torch.float64, generator=generator(seed)) * 2
    fixed = torch.tensor([[3, 1], [2, -1], [0.5, 2], [1.5, 2], [-1, -1]], dtype=torch.float64)
    inputs = torch.cat([fixed, torch.cat([random + 2, random], 1)]).to(device, dtype)
    return Case(inputs, torch.zeros(len(inputs), dtype=torch.int64, device=device), torch.zeros_like(inputs))


EXPECTED: Expectations = {
    **INVARIANT_BY_DEFINITION,
    **expect_lrp("ε → 0 LRP of ReLU is its gradient, so it is gradient × input: (3, −1) twice at (3, 1)", of=ALL_LRP),
    **expect(
        "invariance",
        "deeplift_rescale",
        "the slope of f's outer ReLU counts from −1, g's from 0: r/(y + 1)·(−1, 1)",
        predict=rescale_gap,
        cite=f"{CITE}; {RESCALE}",
    ),
    **expect("completeness", "deeplift_rescale", "summation-to-delta: a chain of Δout/Δin", cite=RESCALE),
    **expect(
        "completeness",
        "integrated_gradients",
        "the gradient jumps half way on the path, and the quadrature is symmetric",
    ),
    **expect(
        "completeness",
        f"gradient_x_input {ALL_LRP}",
        "the bias −1 keeps its share where y > 0: the sum is y + 1",
        predict=share_of_bias,
    ),
    **expect("completeness", "loo", "without x₁ the output is 0, without x₂ it is ReLU(x₁ − 1)", predict=loo_excess),
}


sundararajan = copies(lambda: Sundararajan(nested=False), nested=True)
equivalent_pair(
    "relu.sundararajan",
    case=points_around_kink,
    why="where x₁ ≥ 1 the inner ReLU changes nothing; where x₁ < 1 both are 0",
    cite=CITE,
    expected=EXPECTED,
    axioms=("invariance", "completeness"),
)(sundararajan)


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


def rescale(model: Any) -> None:
    """Scale the neurons of the second hidden layer by factors from 1/100 to 100."""
    second, head = model[2], model[4]
    scales = (10 ** (4 * torch.rand(8, dtype=torch.float64) - 2)).to(head.weight)
    second.weight.mul_(scales.unsqueeze(1))
    second.bias.mul_(scales)
    head.weight.div_(scales)


invariance_pair(
    "relu.rescaled",
    copies(perceptron, rescale),
    random_points_and_targets(6, 5, classes=3),
    expect_lrp("ReLU(cz)/(cz) = ReLU(z)/z, and the weights' c and 1/c cancel on every path", of=ALL_LRP),
    expect("invariance", "deeplift_rescale", "ΔReLU(cz)/Δ(cz) = ΔReLU(z)/Δz; c and 1/c cancel"),
    why="c·ReLU(z) = ReLU(c·z) for c > 0: each neuron is multiplied by its own c, the weights that read it by 1/c",
)


class Maxout(nn.Module):
    """A linear map of larger(W₁x, W₂x): ``(batch, 5)`` to ``(batch, 3)``; no biases: f(αx) = αf(x) for α > 0."""

    def __init__(self, larger: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.larger = larger
        self.first, self.second = (nn.Linear(5, 8, bias=False) for _ in range(2))
        self.head = nn.Linear(8, 3, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.larger(self.first(inputs), self.second(inputs)))


invariance_pair(
    "maximum.absolute",
    copies(lambda: Maxout(torch.maximum), larger=lambda a, b: (a + b + (a - b).abs()) / 2),
    random_points(6, 5, classes=3),
    expect_lrp("½(1 + sign(a − b)) is 1 for the larger and 0 for the smaller", of=ALL_LRP),
    why="|a − b| is the larger minus the smaller, a + b their sum",
)
