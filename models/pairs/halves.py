"""One term written as two: x = ½x + ½x, and Wx + b = (W′x + b′) + (W″x + b″).

1. LRP with ε → 0 is gradient × input with the gradient modified at products of data, activations and norms (see
   `faithcheck.explainers.lrp.rules`). A sum and a multiple by a constant keep the plain gradient.
2. Both terms together pass on ½ + ½ = 1 times the gradient, or W′ + W″ = W, and the activations after them have the
   same values. So the maps are equal, exactly.
3. With the stabiliser ε > 0 the sum is one more denominator, and the maps differ in the first order of ε
   (docs/explanation/epsilon.md).
4. DeepLIFT's rescale rule takes plain gradients through sums too, and its slopes are computed from the same values.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.models.expectation import ALL_LRP, expect, expect_lrp
from faithcheck.models.pair import copies, invariance_pair, random_points

FEATURES, HIDDEN, CLASSES = 6, 10, 3
EXPECTED = (
    expect_lrp(
        "the gradients of the two terms add up to the gradient of the whole, and sums are not modified where ε → 0",
        of=ALL_LRP,
    ),
    expect("invariance", "deeplift_rescale", "activations have the same values; sums pass gradients on"),
)
points = random_points(6, FEATURES, classes=CLASSES)


class Residual(nn.Module):
    """x + W₂ tanh(W₁x + b₁) + b₂, with x whole or in halves."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = False
        self.branch = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, FEATURES))

    def forward(self, inputs: Tensor) -> Tensor:
        skip = inputs / 2 + inputs / 2 if self.halves else inputs
        return skip + self.branch(inputs)


class SplitLinear(nn.Module):
    """A linear layer as the sum of two: the first has random weights, the second the difference to the whole."""

    def __init__(self, whole: nn.Linear) -> None:
        super().__init__()
        self.first, self.second = deepcopy(whole), deepcopy(whole)
        with torch.no_grad():
            for random, rest in zip(self.first.parameters(), self.second.parameters(), strict=True):
                random.copy_(torch.randn_like(random))
                rest.sub_(random)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.first(inputs) + self.second(inputs)


def in_halves(model: Any) -> None:
    for block in model[:2]:
        block.halves = True


residual = copies(lambda: nn.Sequential(Residual(), Residual(), nn.Linear(FEATURES, CLASSES)), in_halves)
invariance_pair("halves.residual", residual, points, *EXPECTED, why="x = ½x + ½x, exactly")
linear = copies(
    lambda: nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)),
    lambda model: nn.Sequential(SplitLinear(model[0]), *model[1:]),
)
invariance_pair("halves.linear", linear, points, *EXPECTED, why="W = W′ + W″ and b = b′ + b″")
