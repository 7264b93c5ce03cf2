"""Operations that change nothing: a zero that is added, a limit that is never reached.

Let p = x₁x₂x₃ and y = N(p)x₄ be the output, where N is computed in two ways that are equal at every p here.

1. Every way passes the gradient of N on, or N(p)/p, which is the same for a piecewise linear N through 0. So AttnLRP
   and CP-LRP have the same map twice: ½ to x₄, and ⅛, ⅛ and ¼ to the others.
2. Block-wise LRP gives each factor of a homogeneous product ¼. N is positively homogeneous, N(αp) = αN(p) for α > 0, in
   all forms but one: a function with limits is so only between them, and block-wise LRP, which does not read values,
   starts anew at it. Then x₄ has ½y, and the others ⅙y each: the gap is (1/12, 1/12, 1/12, −1/4)·y.

The last pair takes x₂ away from x₁ and adds it again, where x₁ = x₂. LRP for ε → 0 passes the plain gradient on, also
at x₁ − x₂ = 0. At every ε > 0 this term of 0 passes nothing on: (0, x₂) in place of (x₁, 0), see
docs/explanation/epsilon.md.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from faithcheck.models.case import Case
from faithcheck.models.cases import examples, factors
from faithcheck.models.expectation import ALL_LRP, Expectations, expect, expect_lrp
from faithcheck.models.pair import copies, invariance_pair

Step: TypeAlias = Callable[[Tensor], Tensor]
LIMIT = 1e6


class Gated(nn.Module):
    """N(x₁x₂x₃)·x₄: ``(batch, 4)`` to ``(batch, 1)``."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step

    def forward(self, inputs: Tensor) -> Tensor:
        x1, x2, x3, x4 = inputs.unsqueeze(2).unbind(1)
        return self.step(x1 * x2 * x3) * x4


def constant(p: Tensor, value: float) -> Tensor:
    return torch.full_like(p[:1], value).detach()


def doubled(p: Tensor) -> Tensor:
    return functional.linear(p, constant(p, 2))


def restarted(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """Block-wise LRP's gap where g starts anew at N: (1/12, 1/12, 1/12, −1/4)·y, ``(batch, 4)``."""
    return case.inputs.prod(1, keepdim=True) * case.inputs.new_tensor([1 / 12, 1 / 12, 1 / 12, -1 / 4])


KEPT = expect_lrp("N is positively homogeneous in both forms, and keeps the degree", of="blockwise_lrp")
RESTARTED = expect("invariance", "blockwise_lrp", "a function with limits starts anew", predict=restarted)


def no_op(name: str, without: Step, step: Step, why: str, blockwise: Expectations = KEPT) -> None:
    """Register the pair of two forms of N."""
    expected = expect_lrp("N passes on its own gradient in both forms")
    invariance_pair(
        f"no_op.{name}", copies(lambda: Gated(without), step=step), factors(4), expected, blockwise, why=why
    )


no_op("zeros", lambda p: p, lambda p: p + torch.zeros_like(p).detach(), "p + 0 = p")
no_op("zero_bias", doubled, lambda p: functional.linear(p, constant(p, 2), constant(p, 0)[0]), "2p + 0 = 2p")
no_op("zero_addend", doubled, lambda p: torch.addmm(constant(p, 0), p, constant(p, 2)), "0 + 2p = 2p")
no_op("limit", lambda p: p, lambda p: functional.hardtanh(p, -LIMIT, LIMIT), "no |p| is above the limit", RESTARTED)


class First(nn.Module):
    """x₁, of two features."""

    def __init__(self) -> None:
        super().__init__()
        self.through_difference = False

    def forward(self, inputs: Tensor) -> Tensor:
        x1, x2 = inputs.unsqueeze(2).unbind(1)
        return (x1 - x2) + x2 if self.through_difference else x1 * 1


def stopped_at_zero(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """What x₁ − x₂ = 0 passes on in g for ε → 0, and not at ε > 0: (x₁, −x₂), ``(batch, 4)`` of f and g."""
    passed = case.inputs * case.inputs.new_tensor([1, -1]) * (case.inputs[:, :1] == case.inputs[:, 1:])
    return torch.cat([torch.zeros_like(passed), passed], 1)


LRP = f"{ALL_LRP} blockwise_lrp"
invariance_pair(
    "no_op.taken_away_and_added",
    copies(First, through_difference=True),
    examples([[2, 2], [3, 1]]),
    expect_lrp("sums pass the plain gradient on for ε → 0: (x₁, 0)", of=LRP),
    expect("invariance", "deeplift_rescale", "sums pass the plain gradient on"),
    expect("continuity", LRP, "a term of 0 passes nothing on at ε > 0", predict=stopped_at_zero),
    why="x₁ − x₂ + x₂ = x₁",
)
