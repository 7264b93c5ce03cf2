"""ReLU networks: the pair that tells a rescale rule from a gradient, and a transform that nothing should see.

`relu.sundararajan` (Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §2.2 and its appendix) is one function on ℝ²:

    f = ReLU(x₁ − 1 − ReLU(x₂)),   g = ReLU(ReLU(x₁ − 1) − ReLU(x₂)).

Where x₁ ≥ 1 the inner ReLU of g does nothing; where x₁ < 1 both are 0, as −ReLU(x₂) ≤ 0. With y the common value and
r = ReLU(x₂), from a baseline of 0:

* Gradients, and LRP with ε → 0, whose rule for ReLU is its gradient (its output is x or 0): 1[y > 0] (x₁, −r) twice.
  Its sum is 1[y > 0] (y + 1): the bias −1 keeps its share.
* DeepLIFT's rescale rule (arXiv 1704.02685) gives f's outer ReLU, which goes from −1 to y, the slope
  y/(y + 1), so f gets y/(y + 1) · (x₁, −r). In g the inner ReLU goes from 0 to x₁ − 1 over x₁ and the outer one from 0
  to y, slope 1, so g gets (x₁ − 1, −r). With y = x₁ − 1 − r the difference is r/(y + 1) · (−1, 1): at (3, 1) it is
  (1.5, −0.5) against (2, −1). Both sum to y. Where y = 0 both are 0.
* LOO removes x₁ from f(x), which leaves 0, and x₂, which leaves ReLU(x₁ − 1): its sum misses f(x) by y − ReLU(x₁ − 1).

`relu.rescaled`: c·ReLU(z) = ReLU(c·z) for c > 0, so each neuron may be scaled by its own c > 0, and what reads it by
1/c. The gradient, the ratio ReLU(z)/z and the slope ΔReLU(z)/Δz are those of before.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.pair import (
    ALL_LRP,
    INVARIANT_BY_DEFINITION,
    Expectation,
    Expectations,
    equivalent_pair,
    expect,
    expect_lrp,
)

CITE = "Sundararajan, Taly & Yan 2017 (arXiv 1703.01365), §2.2"
RESCALE = "Shrikumar, Greenside & Kundaje 2017 (arXiv 1704.02685), the rescale rule"


class Sundararajan(nn.Module):
    """ReLU(x₁ − 1 − ReLU(x₂)), or with ``nested`` ReLU(ReLU(x₁ − 1) − ReLU(x₂)): ``(batch, 2)`` to ``(batch, 1)``."""

    def __init__(self, nested: bool) -> None:
        super().__init__()
        self.nested = nested

    def forward(self, inputs: Tensor) -> Tensor:
        """The value."""
        first, second = inputs[:, :1] - 1, torch.relu(inputs[:, 1:])
        return torch.relu((torch.relu(first) if self.nested else first) - second)


def around_the_kink(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    """(3, 1), points of either sign where y = 0 or x₂ < 0, and four drawn ones where both features count.

    Where y > 0 it is 1: the kink lies half-way from the baseline 0, where Gauss–Legendre quadrature is exact.
    """
    drawn = torch.rand(4, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2
    fixed = torch.tensor([[3, 1], [2, -1], [0.5, 2], [1.5, 2], [-1, -1]], dtype=torch.float64)
    inputs = torch.cat([fixed, torch.cat([drawn + 2, drawn], 1)]).to(device, dtype)
    return Case(inputs, torch.zeros(len(inputs), dtype=torch.int64, device=device), torch.zeros_like(inputs))


def value(case: Case) -> tuple[Tensor, Tensor]:
    """y and r = ReLU(x₂) of each example, ``(batch,)``."""
    r = case.inputs[:, 1].relu()
    return (case.inputs[:, 0] - 1 - r).relu(), r


def rescale_gap(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """What DeepLIFT's rescale rule gives f less what it gives g: r/(y + 1) · (−1, 1) where y > 0, ``(batch, 2)``."""
    y, r = value(case)
    return torch.where(y > 0, r / (y + 1), 0).unsqueeze(1) * torch.tensor([-1, 1]).to(r)


def bias_share(model: nn.Module, case: Case) -> Tensor:
    """1[y > 0], ``(batch,)``: what gradient × input sums to above y, as the bias −1 keeps −1."""
    return (value(case)[0] > 0).to(case.inputs)


def loo_surplus(model: nn.Module, case: Case) -> Tensor:
    """y − ReLU(x₁ − 1), ``(batch,)``: what LOO sums to above y."""
    return value(case)[0] - (case.inputs[:, 0] - 1).relu()


EXPECTED: Expectations = {
    **INVARIANT_BY_DEFINITION,
    **expect_lrp("ε → 0 LRP of ReLU is its gradient, so it is gradient × input: (3, −1) twice at (3, 1)", of=ALL_LRP),
    ("invariance", "deeplift_rescale"): Expectation(
        "VIOLATES",
        "the slope of f's outer ReLU counts from −1, g's from 0: r/(y + 1)·(−1, 1)",
        predict=rescale_gap,
        cite=f"{CITE}; {RESCALE}",
    ),
    ("completeness", "deeplift_rescale"): Expectation("HOLDS", "summation-to-delta: a chain of Δout/Δin", cite=RESCALE),
    ("completeness", "integrated_gradients"): Expectation(
        "HOLDS", "the gradient jumps half-way on the path, and the quadrature is symmetric"
    ),
    **expect(
        "completeness",
        f"gradient_x_input {ALL_LRP}",
        "the bias −1 keeps its share where y > 0: the sum is y + 1",
        predict=bias_share,
    ),
    ("completeness", "loo"): Expectation(
        "VIOLATES", "without x₁ nothing is left, without x₂ ReLU(x₁ − 1) is", predict=loo_surplus
    ),
}


@equivalent_pair(
    "relu.sundararajan",
    case=around_the_kink,
    why="where x₁ ≥ 1 the inner ReLU does nothing; where x₁ < 1 both are 0",
    cite=CITE,
    expected=EXPECTED,
    axioms=("invariance", "completeness"),
)
def sundararajan(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """Without parameters."""
    return Sundararajan(nested=False).eval(), Sundararajan(nested=True).eval()


def points(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Six random points of five features, baseline 0."""
    inputs = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(device, dtype)
    target = torch.randint(3, (6,), generator=torch.Generator().manual_seed(seed)).to(device)
    return Case(inputs, target, torch.zeros_like(inputs))


@equivalent_pair(
    "relu.rescaled",
    case=points,
    why="c·ReLU(z) = ReLU(c·z) for c > 0: each neuron scaled by its own c, what reads it by 1/c",
    expected={
        **INVARIANT_BY_DEFINITION,
        **expect_lrp("ReLU(cz)/(cz) = ReLU(z)/z, and the weights' c and 1/c cancel on every path", of=ALL_LRP),
        ("invariance", "deeplift_rescale"): Expectation("HOLDS", "ΔReLU(cz)/Δ(cz) = ΔReLU(z)/Δz; c and 1/c cancel"),
    },
    axioms=("invariance",),
)
def rescaled(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """A perceptron with two hidden layers; the neurons of the second scaled by factors from 1/100 to 100."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, second, head = nn.Linear(5, 12).double(), nn.Linear(12, 8).double(), nn.Linear(8, 3).double()
        scales = 10 ** (4 * torch.rand(8, dtype=torch.float64) - 2)
    scaled, rescaled_head = deepcopy(second), deepcopy(head)
    with torch.no_grad():
        scaled.weight.mul_(scales.unsqueeze(1))
        scaled.bias.mul_(scales)
        rescaled_head.weight.div_(scales)
    f = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), head)
    g = nn.Sequential(deepcopy(first), nn.ReLU(), scaled, nn.ReLU(), rescaled_head)
    return f.to(device, dtype).eval(), g.to(device, dtype).eval()
