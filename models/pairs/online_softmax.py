"""Attention in one softmax, and in chunks: with a running maximum, as fused kernels do, or merged afterwards.

A query that is a weight attends to the tokens: z_k = u·x_k, values v_k = Wx_k, output Σ A_k v_k with A = softmax(z).
Let s_k be the part of the explained output that is linear in v_k, and o = Σ A_k s_k: the output is o and a constant.
There are no biases below the head, so a token gets z_k times the modified gradient at z_k, and v_k times that at v_k.

1. In one softmax: A @ V gives v_k half, ½A_k s_k. Eq. 5 gives z_k · ½A_k (s_k − o).
2. Online, with a detached maximum: Σ e_k v_k / Σ e_k with e_k = exp(t_k), t_k = z_k − m, m the maximum when k's chunk
   was read. A later rescaling by exp(m − m′) is a product with a constant.
3. The quotient halves, and so does the product of e and v: ¼A_k s_k at v_k and at e_k. The denominator's half, ½o, goes
   to e_k in proportion, ½A_k o. exp passes it on by 1/t_k; at t_k = 0 this has a pole, and exp(0) = 1 absorbs it.
4. CP-LRP: in one softmax v_k gets all, A_k s_k. Online the matrix product gives all of its half to v_k, ½A_k s_k, and
   e_k gets the denominator's half.
5. Block-wise LRP in one softmax is AttnLRP. Online the numerator has degree 2 and the denominator 1: ⅔ and ⅓, so that
   v_k, e_k and the denominator get ⅓ each. exp passes on exp(t) − 1 in place of exp(t). Its canoniser sees a softmax
   only where exponentials are divided by their own sum.

*Flash decoding* takes a softmax for each chunk, and merges the chunks by the logarithms of their sums. Chunk c has
T_c = Σ exp(z_k), L_c = log T_c, weights B_k = exp(z_k)/T_c and the output o_c = Σ B_k s_k. They are merged with
α = softmax(L), so that A_k = α_c B_k.

1. The product of α and the chunks' outputs halves, and the product in a chunk halves again: v_k gets ¼A_k s_k,
   and Eq. 5 in the chunk gives ¼z_k A_k (s_k − o_c).
2. α gets the other half, and its softmax gives L_c · ½α_c (o_c − o) to L_c. The logarithm passes it on, the sum divides
   it in proportion to exp(z_k), and the exponential passes it on: ½A_k (o_c − o) L_c.
3. CP-LRP: all softmaxes are constant, so that v_k gets A_k s_k in both.
4. Block-wise LRP: a chunk's output has degree 2 and α has degree 1, so that there are thirds in place of ½, ¼ and ¼.
   exp passes on exp(z) − 1 in place of exp(z).

ε-LRP refuses all of these; Attention Rollout and the gates refuse a model without a softmax.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.cases import TOKENS, WIDTH, sentences
from faithcheck.models.expectation import Predict, expect, expect_lrp
from faithcheck.models.pair import copies, invariance_pair

Attend: TypeAlias = Callable[[Tensor, Tensor], Tensor]
CHUNK = 4
CITE = "Milakov & Gimelshein 2018, arXiv 1805.02867; Dao et al. 2022, arXiv 2205.14135"


def at_once(z: Tensor, values: Tensor) -> Tensor:
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
        return self.head(self.attend(z, self.value(tokens)).squeeze(1))

    def parts(self, case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """z, s and A, ``(batch, tokens)`` each, and o, ``(batch, 1)``."""
        z = self.query(case.inputs).squeeze(2)
        s = (self.value(case.inputs) * self.head.weight[case.target].unsqueeze(1)).sum(2)
        weights = torch.softmax(z, 1)
        return z, s, weights, (weights * s).sum(1, keepdim=True)


def running_maximum(z: Tensor) -> Tensor:
    """The maximum when each token's chunk was read, ``(batch, tokens)`` to the same."""
    maxima = z.cummax(1).values
    last = [min(k // CHUNK * CHUNK + CHUNK, TOKENS) - 1 for k in range(TOKENS)]
    return maxima[:, last]


def gap(value: float, shares: tuple[float, float, float], bias: float, eq_5: float = 1 / 2) -> Predict:
    """The gap a_f − a_g, ``(batch, tokens)``: f's shares of v_k and of Eq. 5, g's of v_k, e_k and denominator."""

    @torch.no_grad()
    def predict(f: Pooling, g: Pooling, case: Case) -> Tensor:
        z, s, weights, o = f.parts(case)
        t = z - running_maximum(z)
        slope = torch.where(t == 0, bias, (1 - bias * torch.exp(-t)) / t)  # of exp, relative to its value
        of_value, of_exponential, of_total = shares
        at_f = value * s + eq_5 * z * (s - o)
        at_g = of_value * s + z * slope * (of_exponential * s + of_total * o)
        return weights * (at_f - at_g)

    return predict


@torch.no_grad()
def passed_at_zero(f: Pooling, g: Pooling, case: Case) -> Tensor:
    """What block-wise LRP passes on at t = 0, where every ε > 0 stops it: nothing in f, z_k A_k (s_k + o)/3 in g."""
    z, s, weights, o = g.parts(case)
    at_g = (z == running_maximum(z)) * z * weights * (s + o) / 3
    return torch.cat([torch.zeros_like(at_g), at_g], 1)


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
    expect(
        "continuity", "blockwise_lrp", "(exp(t) − 1)/t has the limit 1 at t = 0, 0 at ε > 0", predict=passed_at_zero
    ),
    why="softmax(z) = exp(z − m)/Σ exp(z − m) for every m, and exp(z − m′) = exp(m − m′) exp(z − m)",
    cite=CITE,
)


CHUNKS = [slice(first, first + CHUNK) for first in range(0, TOKENS, CHUNK)]


def merged(z: Tensor, values: Tensor) -> Tensor:
    """Σ A_k v_k, ``(batch, 1, tokens)`` and ``(batch, tokens, width)`` to ``(batch, 1, width)``."""
    outputs = torch.cat([at_once(z[..., chunk], values[:, chunk]) for chunk in CHUNKS], 1)
    totals = [torch.exp(z[..., chunk]).sum(-1, keepdim=True) for chunk in CHUNKS]
    return torch.softmax(torch.log(torch.cat(totals, -1)), -1) @ outputs


def gap_of_merged(values: float, logits: float, totals: float, bias: float) -> Predict:
    """The gap a_f − a_g, ``(batch, tokens)``: g's shares of v_k, of Eq. 5 in a chunk and of the merging softmax."""

    @torch.no_grad()
    def predict(f: Pooling, g: Pooling, case: Case) -> Tensor:
        z, s, weights, o = f.parts(case)
        of_chunk = torch.empty_like(z)
        log_total = torch.empty_like(z)
        for chunk in CHUNKS:
            of_chunk[:, chunk] = (torch.softmax(z[:, chunk], 1) * s[:, chunk]).sum(1, keepdim=True)
            log_total[:, chunk] = torch.logsumexp(z[:, chunk], 1, keepdim=True)
        at_f = s / 2 + z * (s - o) / 2
        passed_on = 1 - bias * torch.exp(-z)
        at_g = values * s + logits * z * (s - of_chunk) + totals * (of_chunk - o) * log_total * passed_on
        return weights * (at_f - at_g)

    return predict


invariance_pair(
    "online_softmax.merged_chunks",
    copies(lambda: Pooling(at_once), attend=merged),
    sentences,
    expect_lrp(
        "½ to values and Eq. 5 at once; ¼, ¼ and ½ when chunks are merged",
        predict=gap_of_merged(1 / 4, 1 / 4, 1 / 2, 0),
        of="attnlrp",
    ),
    expect_lrp("every softmax is constant, so that values get everything", of="cplrp"),
    expect_lrp(
        "as AttnLRP at once; thirds of degrees 2 and 1 when chunks are merged",
        predict=gap_of_merged(1 / 3, 1 / 3, 1 / 3, 1),
        of="blockwise_lrp",
    ),
    why="exp(z)/Σ exp(z) is exp(z)/T_c times T_c/Σ T, and T_c/Σ T is the softmax of log T_c",
    cite="Dao et al. 2022, arXiv 2205.14135, §3.1; flash decoding, Dao et al. 2023",
)
