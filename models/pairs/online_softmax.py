"""Attention in one softmax, and online: chunk by chunk, with a running maximum, as fused kernels compute it.

A query that is a weight attends to the tokens: z_k = u·x_k, values v_k = Wx_k, output Σ A_k v_k with A = softmax(z).
Let s_k be the part of the explained output that is linear in v_k, and o = Σ A_k s_k: the output is o and a constant.
There are no biases below the head, so a token gets z_k times the modified gradient at z_k, and v_k times that at v_k.

1. In one softmax: A @ V gives v_k half, ½A_k s_k. Eq. 5 gives z_k · ½A_k (s_k − o).
2. Online, with a detached maximum: Σ e_k v_k / Σ e_k with e_k = exp(t_k), t_k = z_k − m, m the maximum when k's chunk
   was read. A later rescaling by exp(m − m′) is a product with a constant.
3. The quotient halves, and so does the product of e and v: ¼A_k s_k at v_k and at e_k. The denominator's half, ½o, goes
   to e_k in proportion, ½A_k o. exp passes it on by 1/t_k, or by its slope 1 where t_k = 0.
4. CP-LRP: in one softmax v_k gets all, A_k s_k. Online the matrix product gives all of its half to v_k, ½A_k s_k, and
   e_k gets the denominator's half.
5. Block-wise LRP in one softmax is AttnLRP. Online the numerator has degree 2 and the denominator 1: ⅔ and ⅓, so that
   v_k, e_k and the denominator get ⅓ each. exp passes on exp(t) − 1 in place of exp(t). Its canoniser sees a softmax
   only where exponentials are divided by their own sum.

ε-LRP refuses all of these; Attention Rollout and the gates refuse a model without a softmax.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.cases import TOKENS, WIDTH, sentences
from faithcheck.models.expectation import Predict, expect_lrp
from faithcheck.models.pair import copies, invariance_pair

Attend: TypeAlias = Callable[[Tensor, Tensor], Tensor]
CHUNK = 4
CITE = "Milakov & Gimelshein 2018, arXiv 1805.02867; Dao et al. 2022, arXiv 2205.14135"


def at_once(z: Tensor, values: Tensor) -> Tensor:
    """Σ A_k v_k, ``(batch, 1, tokens)`` and ``(batch, tokens, width)`` to ``(batch, 1, width)``."""
    return torch.softmax(z, -1) @ values


def online(z: Tensor, values: Tensor) -> Tensor:
    """The same, with one chunk of logits and values at a time."""
    largest = z.detach()[..., :CHUNK].amax(-1, keepdim=True)
    exponentials = torch.exp(z[..., :CHUNK] - largest)
    total, weighted = exponentials.sum(-1, keepdim=True), exponentials @ values[:, :CHUNK]
    for first in range(CHUNK, z.shape[-1], CHUNK):
        chunk = slice(first, first + CHUNK)
        larger = torch.maximum(largest, z.detach()[..., chunk].amax(-1, keepdim=True))
        exponentials, rescaling = torch.exp(z[..., chunk] - larger), torch.exp(largest - larger)
        total = rescaling * total + exponentials.sum(-1, keepdim=True)
        weighted = rescaling * weighted + exponentials @ values[:, chunk]
        largest = larger
    return weighted / total


class Pooling(nn.Module):
    """One query attends to the tokens, then a linear map: ``(batch, tokens, 32)`` to ``(batch, 2)``."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend
        self.query, self.value = nn.Linear(WIDTH, 1, bias=False), nn.Linear(WIDTH, 8, bias=False)
        self.head = nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        z = self.query(tokens).transpose(1, 2)
        outputs: Tensor = self.head(self.attend(z, self.value(tokens)).squeeze(1))
        return outputs


def running_maximum(z: Tensor) -> Tensor:
    """The maximum when each token's chunk was read, ``(batch, tokens)`` to the same."""
    maxima = z.cummax(1).values
    last = [min(k // CHUNK * CHUNK + CHUNK, TOKENS) - 1 for k in range(TOKENS)]
    return maxima[:, last]


def gap(value: float, shares: tuple[float, float, float], bias: float, eq_5: float = 1 / 2) -> Predict:
    """The gap a_f − a_g, ``(batch, tokens)``.

    Args:
        value: the share of A_k s_k that v_k gets in one softmax.
        shares: the shares that v_k, e_k and the denominator get online.
        bias: what exp keeps of its value.
        eq_5: the share that Eq. 5 passes on in one softmax.
    """

    @torch.no_grad()
    def predict(f: Pooling, g: Pooling, case: Case) -> Tensor:
        z = f.query(case.inputs).squeeze(2)
        s = (f.value(case.inputs) * f.head.weight[case.target].unsqueeze(1)).sum(2)
        weights = torch.softmax(z, 1)
        o = (weights * s).sum(1, keepdim=True)
        t = z - running_maximum(z)
        slope = torch.where(t == 0, 1, (1 - bias * torch.exp(-t)) / t)  # of exp, relative to its value
        of_value, of_exponential, of_total = shares
        at_f = value * s + eq_5 * z * (s - o)
        at_g = of_value * s + z * slope * (of_exponential * s + of_total * o)
        difference: Tensor = weights * (at_f - at_g)
        return difference

    return predict


invariance_pair(
    "online_softmax.two_chunks",
    copies(lambda: Pooling(at_once), attend=online),
    sentences,
    expect_lrp(
        "½ to values, Eq. 5 to logits; ¼, ¼ and ½ online", predict=gap(1 / 2, (1 / 4, 1 / 4, 1 / 2), 0), of="attnlrp"
    ),
    expect_lrp(
        "all to values; half to the denominator online", predict=gap(1, (1 / 2, 0, 1 / 2), 0, eq_5=0), of="cplrp"
    ),
    expect_lrp(
        "as AttnLRP at once; thirds of degrees 2 and 1 online",
        predict=gap(1 / 2, (1 / 3, 1 / 3, 1 / 3), 1),
        of="blockwise_lrp",
    ),
    why="softmax(z) = exp(z − m)/Σ exp(z − m) for every m, and exp(z − m′) = exp(m − m′) exp(z − m)",
    cite=CITE,
)
