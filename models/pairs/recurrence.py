"""Recurrences: a gated recurrent unit's update in two forms, and a selective scan in sequence and in parallel.

AttnLRP gives each operand of a product half; CP-LRP's own rule is for matrix products, so it gives the same halves.

*The update of a gated recurrent unit* (Cho et al. 2014, arXiv 1406.1078, Eq. 7), (1 − z)n + zh = n + z(h − n):

1. In the first form the candidate n gets ½(1 − z), in the second 1 − ½z: a gap of −½ in its modified gradient. The
   constant 1 keeps ½n on the left.
2. z gets ½(h − n) and h gets ½z in both.
3. Block-wise LRP has the same shares: a sum with the constant 1, and h − n, start again at degree 1. It does not see
   that (1 − z)n is n − zn.

*The selective scan* (Gu & Dao 2023, arXiv 2312.00752, Eq. 2), hₜ = aₜhₜ₋₁ + bₜ, at four steps, is a sum of four
products: h₄ = a₄a₃a₂b₁ + a₄a₃b₂ + a₄b₃ + b₄.

1. A factor at depth d of a tree of products gets 2⁻ᵈ of it. In sequence the trees are a₄(a₃(a₂b₁)) and a₄(a₃b₂), in
   parallel (a₄a₃)(a₂b₁) and (a₄a₃)b₂.
2. Block-wise LRP has the same halves in sequence: h₂ = a₂b₁ + b₂ is a sum of degrees 2 and 1, and starts again at
   degree 1. In parallel a₄a₃ has degree 2: in its product with h₂ it gets ⅔, and h₂ gets ⅓.
3. The gate a = σ(u) passes on all of its relevance in AttnLRP, and 1 − ½/a in block-wise LRP: σ(0) = ½ is a bias.

ε-LRP refuses products of data.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.cases import points
from faithcheck.models.expectation import expect_lrp
from faithcheck.models.pair import copies, invariance_pair, random_points


def convex(z: Tensor, n: Tensor, h: Tensor) -> Tensor:
    return (1 - z) * n + z * h


def step(z: Tensor, n: Tensor, h: Tensor) -> Tensor:
    return n + z * (h - n)


class Unit(nn.Module):
    """A gated update between linear maps: ``(batch, 8)`` to ``(batch, 3)``."""

    def __init__(self, update: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.update = update
        self.gate, self.candidate, self.state = (nn.Linear(8, 5) for _ in range(3))
        self.head = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        z, n = torch.sigmoid(self.gate(inputs)), torch.tanh(self.candidate(inputs))
        return self.head(self.update(z, n, self.state(inputs)))


@torch.no_grad()
def half_of_candidate(f: Unit, g: Unit, case: Case) -> Tensor:
    """The gap a_f − a_g, ``(batch, 8)``: −½ at n, which tanh passes on by n/u, with u = Wx + b."""
    u = f.candidate(case.inputs)
    slope = torch.tanh(u) / u * f.head.weight[case.target]
    return -case.inputs * (slope @ f.candidate.weight) / 2


invariance_pair(
    "recurrence.gated_update",
    copies(lambda: Unit(convex), update=step),
    points,
    expect_lrp(
        "n gets ½(1 − z) and 1 − ½z: the constant 1 keeps ½n",
        predict=half_of_candidate,
        of="attnlrp cplrp blockwise_lrp",
    ),
    why="(1 − z)n + zh = n + z(h − n)",
)


STEPS, WIDTH = 4, 3


def in_sequence(a: Tensor, b: Tensor) -> Tensor:
    """h₄ of hₜ = aₜhₜ₋₁ + bₜ, ``(batch, steps)`` twice to ``(batch,)``."""
    h = b[:, 0]
    for t in range(1, STEPS):
        h = a[:, t] * h + b[:, t]
    return h


def in_parallel(a: Tensor, b: Tensor) -> Tensor:
    """The same by a scan: both halves at once, each as the map h → Ah + B, then their composition."""
    first_half = a[:, 1] * b[:, 0] + b[:, 1]
    return (a[:, 3] * a[:, 2]) * first_half + (a[:, 3] * b[:, 2] + b[:, 3])


class Scan(nn.Module):
    """Two scans over tokens, with gates σ(Wx) and inputs W′x: ``(batch, 4, 3)`` to ``(batch, 2)``."""

    def __init__(self, scan: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.scan = scan
        self.gate, self.input = (nn.Linear(WIDTH, 2, bias=False) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        a, b = torch.sigmoid(self.gate(tokens)), self.input(tokens)
        return torch.stack([self.scan(a[..., i], b[..., i]) for i in range(2)], 1)


Shares = Mapping[str, str]
SEQUENCE: Shares = {"a4 a3 a2 b1": "1/2 1/4 1/8 1/8", "a4 a3 b2": "1/2 1/4 1/4"}
PARALLEL: Shares = {"a4 a3 a2 b1": "1/4 1/4 1/4 1/4", "a4 a3 b2": "1/4 1/4 1/2"}
PARALLEL_BY_DEGREE: Shares = {"a4 a3 a2 b1": "1/3 1/3 1/6 1/6", "a4 a3 b2": "1/3 1/3 1/3"}
"""The shares of each product's factors. a₄b₃ and b₄ are the same in both forms."""


def shared(shares: Shares, a: Tensor, b: Tensor, passed_on: Tensor) -> Tensor:
    """Each token's relevance from products of these shares; a gate's sigmoid passes a part on: ``(batch, 4)``."""
    values, relevance = {"a": a, "b": b}, torch.zeros_like(a)
    for product, of_factors in shares.items():
        factors = [(name[0], int(name[1]) - 1) for name in product.split()]
        value = torch.stack([values[kind][:, t] for kind, t in factors]).prod(0)
        for (kind, t), share in zip(factors, map(Fraction, of_factors.split()), strict=True):
            relevance[:, t] += float(share) * value * (passed_on[:, t] if kind == "a" else 1)
    return relevance


def scan_gap(parallel: Shares, bias: float) -> Callable[[Scan, Scan, Case], Tensor]:
    """The gap a_f − a_g between the scan in sequence and one with these shares, where a sigmoid keeps ``bias``."""

    @torch.no_grad()
    def predict(f: Scan, g: Scan, case: Case) -> Tensor:
        examples = torch.arange(len(case.inputs), device=case.inputs.device)
        a = torch.sigmoid(f.gate(case.inputs))[examples, :, case.target]
        b = f.input(case.inputs)[examples, :, case.target]
        passed_on = 1 - bias / a
        return shared(SEQUENCE, a, b, passed_on) - shared(parallel, a, b, passed_on)

    return predict


invariance_pair(
    "recurrence.selective_scan",
    copies(lambda: Scan(in_sequence), scan=in_parallel),
    random_points(6, STEPS, WIDTH, classes=2),
    expect_lrp("2⁻ᵈ of a product for a factor at depth d", predict=scan_gap(PARALLEL, 0)),
    expect_lrp(
        "halves in sequence, as each sum starts again; thirds in parallel, where a₄a₃ has degree 2",
        predict=scan_gap(PARALLEL_BY_DEGREE, 1 / 2),
        of="blockwise_lrp",
    ),
    why="the composition of the maps h → ah + b is associative",
    cite="Gu & Dao 2023, arXiv 2312.00752",
)
