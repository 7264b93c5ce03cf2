"""Mixtures of experts: Σ_e w_e E_e(x), in which a router's softmax gives the weights w_e (Shazeer et al. 2017).

An expert is E_e(x) = V_e ReLU(U_e x) without biases, so that LRP passes the gradient through it. Let s_e be the part of
the explained output that is linear in E_e, m_e = w_e s_e, o = Σ m_e, and z = Wx + b the router's logits.

Why and how much AttnLRP, CP-LRP and block-wise LRP hold or differ, at ε = 0:

1. The product of weights and experts halves: an expert gets ½m_e, its weight ½m_e. Block-wise LRP has the same halves:
   a softmax has degree 1, and so has an expert. CP-LRP holds the softmax constant: an expert gets m_e.
2. The softmax passes on the plain gradient (Eq. 5): ρ_e = ½(m_e − w_e o) at z_e, which is 0 if all experts are equal.
3. The order of experts, and a weight of exactly 0, change no sum. Indices are chosen on values without relevance; what
   they select is a rearrangement.
4. Mixtral takes the softmax p over all experts, and divides the p_e of the selected ones by their sum. A quotient
   halves: p_e gets ¼m_e, and ¼w_e o of the denominator. So ρ_e = ¼(m_e + w_e o) − ½p_e o, where the last term is the
   softmax's −p_e Σ R. Block-wise LRP sees a norm, whose denominator is constant: ρ_e = ½(m_e − p_e o).

ε-LRP and DeepLIFT refuse a softmax.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.cases import points
from faithcheck.models.closed_forms import gradient_times_input
from faithcheck.models.expectation import Predict, expect_lrp
from faithcheck.models.pair import copies, invariance_pair

EXPERTS, SELECTED, WIDTH = 4, 2, 5
THREE = "attnlrp cplrp blockwise_lrp"
CITE = "Shazeer et al. 2017, arXiv 1701.06538, Eqs. 1–5; Jiang et al. 2024, arXiv 2401.04088, §2.1"


def weighted(weights: Tensor, outputs: Tensor) -> Tensor:
    return (weights.unsqueeze(1) @ outputs).squeeze(1)


def dense(logits: Tensor, outputs: Tensor) -> Tensor:
    return weighted(torch.softmax(logits, 1), outputs)


def first(logits: Tensor, outputs: Tensor) -> Tensor:
    return outputs[:, 0]


def largest(logits: Tensor, count: int) -> Tensor:
    return logits.detach().topk(count).indices


def at(index: Tensor, outputs: Tensor) -> Tensor:
    return outputs.gather(1, index.unsqueeze(2).expand(-1, -1, outputs.shape[2]))


def top(logits: Tensor, outputs: Tensor, count: int = SELECTED) -> Tensor:
    """The experts with the largest logits, in the order of their size, by a softmax of these logits."""
    index = largest(logits, count)
    return weighted(torch.softmax(logits.gather(1, index), 1), at(index, outputs))


def top_masked(logits: Tensor, outputs: Tensor) -> Tensor:
    """The same, by a softmax of all logits, in which the others are −∞."""
    selected = torch.zeros_like(logits, dtype=torch.bool).scatter(1, largest(logits, SELECTED), True)
    return dense(logits.masked_fill(~selected, -torch.inf), outputs)


def renormalised(logits: Tensor, outputs: Tensor) -> Tensor:
    """The same, by a softmax of all logits, whose selected entries are divided by their sum."""
    index = largest(logits, SELECTED)
    weights = torch.softmax(logits, 1).gather(1, index)
    return weighted(weights / weights.sum(1, keepdim=True), at(index, outputs))


class Mixture(nn.Module):
    """A router, experts that may be equal, and a linear map of what combines them: ``(batch, 8)`` to ``(batch, 3)``."""

    def __init__(self, combine: Callable[[Tensor, Tensor], Tensor], equal: bool = False) -> None:
        super().__init__()
        self.combine = combine
        self.router, self.head = nn.Linear(8, EXPERTS), nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 6, bias=False), nn.ReLU(), nn.Linear(6, WIDTH, bias=False))
            for _ in range(EXPERTS)
        )
        for expert in self.experts if equal else ():
            expert.load_state_dict(self.experts[0].state_dict())

    def outputs(self, inputs: Tensor) -> Tensor:
        return torch.stack([expert(inputs) for expert in self.experts], 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.combine(self.router(inputs), self.outputs(inputs)))


def reverse(mixture: Mixture) -> None:
    mixture.experts = nn.ModuleList(reversed(mixture.experts)).eval()
    for rows in mixture.router.parameters():
        rows.copy_(rows.flip(0))


invariance_pair(
    "experts.permuted",
    copies(lambda: Mixture(dense), reverse),
    points,
    expect_lrp("each expert and its logit keep their relevance; the sum over experts has no order", of=THREE),
    why="a sum over experts has no order, and the router's logits are permuted with the experts",
    cite=CITE,
)


def half_of_expert(f: Mixture, g: Mixture, case: Case) -> Tensor:
    """The gap a_f − a_g, ``(batch, 8)``: all of the relevance against half of it."""
    return gradient_times_input(f, case) / 2


invariance_pair(
    "experts.equal",
    copies(lambda: Mixture(first, equal=True), combine=dense),
    points,
    expect_lrp(
        "the weights get half of the relevance, and the softmax passes nothing on, as all experts are equal",
        predict=half_of_expert,
        of="attnlrp blockwise_lrp",
    ),
    expect_lrp("the softmax is constant, so that the experts get all of the relevance", of="cplrp"),
    why="the weights sum to one: Σ w_e E(x) = E(x)",
    cite=CITE,
)
invariance_pair(
    "experts.top_all",
    copies(lambda: Mixture(dense), combine=partial(top, count=EXPERTS)),
    points,
    expect_lrp("a selection of all logits and all experts is a permutation of both", of=THREE),
    why="the k largest of k logits are all of them, and a sum over experts has no order",
    cite=CITE,
)
invariance_pair(
    "experts.top_masked",
    copies(lambda: Mixture(top), combine=top_masked),
    points,
    expect_lrp("a weight of 0 gets and passes on nothing; the other weights are equal in both", of=THREE),
    why="exp(−∞) = 0: a masked logit has weight 0, and the others have the weights of their own softmax",
    cite=CITE,
)


def gap_at_router(half: float, of_own: float, of_total: float) -> Predict:
    """The gap a_f − a_g, ``(batch, 8)``, where g's ρ_e is half·m_e + of_own·w_e o − of_total·p_e o."""

    @torch.no_grad()
    def predict(f: Mixture, g: Mixture, case: Case) -> Tensor:
        z = f.router(case.inputs)
        p, index = torch.softmax(z, 1), largest(z, SELECTED)
        w = torch.zeros_like(z).scatter(1, index, torch.softmax(z.gather(1, index), 1))
        m = w * (f.outputs(case.inputs) * f.head.weight[case.target].unsqueeze(1)).sum(2)
        o = m.sum(1, keepdim=True)
        at_f, at_g = (m - w * o) / 2, half * m + of_own * w * o - of_total * p * o
        return case.inputs * ((at_f - at_g) @ f.router.weight)

    return predict


invariance_pair(
    "experts.renormalised",
    copies(lambda: Mixture(top), combine=renormalised),
    points,
    expect_lrp(
        "the quotient halves once more, and the softmax over all experts subtracts p_e in place of w_e",
        predict=gap_at_router(1 / 4, 1 / 4, 1 / 2),
        cite="Eqs. 3–5",
        of="attnlrp",
    ),
    expect_lrp("both softmaxes are constant, so that the experts get all of the relevance", of="cplrp"),
    expect_lrp(
        "a norm with a constant denominator: the softmax over all experts subtracts p_e in place of w_e",
        predict=gap_at_router(1 / 2, 0, 1 / 2),
        of="blockwise_lrp",
    ),
    why="exp(z_e)/Σ exp(z) divided by its sum over the selected experts is exp(z_e) over the selected Σ exp(z)",
    cite=CITE,
)
