"""Attention in one softmax, and in a softmax for each chunk, merged by the logarithms of their sums (flash decoding).

The models are those of `faithcheck.models.pairs.online_softmax`: z_k = u·x_k, v_k = Wx_k, s_k the part of the explained
output that is linear in v_k, A = softmax(z), o = Σ A_k s_k. Chunk c has T_c = Σ exp(z_k), L_c = log T_c, weights
B_k = exp(z_k)/T_c and the output o_c = Σ B_k s_k. They are merged with α = softmax(L), so that A_k = α_c B_k.

1. In one softmax: v_k gets ½A_k s_k, and Eq. 5 gives ½z_k A_k (s_k − o).
2. Merged, the product of α and the chunks' outputs halves, and the product in a chunk halves again: v_k gets ¼A_k s_k,
   and Eq. 5 in the chunk gives ¼z_k A_k (s_k − o_c).
3. α gets the other half, and its softmax gives L_c · ½α_c (o_c − o) to L_c. The logarithm passes it on, the sum divides
   it in proportion to exp(z_k), and the exponential passes it on: ½A_k (o_c − o) L_c.
4. CP-LRP: all softmaxes are constant, so that v_k gets A_k s_k in both.
5. Block-wise LRP: a chunk's output has degree 2 and α has degree 1, so that there are thirds in place of ½, ¼ and ¼.
   exp passes on exp(z) − 1 in place of exp(z).
"""

from __future__ import annotations

import torch
from torch import Tensor

from faithcheck.models.case import Case
from faithcheck.models.cases import TOKENS, sentences
from faithcheck.models.expectation import Predict, expect_lrp
from faithcheck.models.pair import copies, invariance_pair
from faithcheck.models.pairs.online_softmax import CHUNK, Pooling, at_once

CHUNKS = [slice(first, first + CHUNK) for first in range(0, TOKENS, CHUNK)]


def merged(z: Tensor, values: Tensor) -> Tensor:
    """Σ A_k v_k, ``(batch, 1, tokens)`` and ``(batch, tokens, width)`` to ``(batch, 1, width)``."""
    outputs = torch.cat([at_once(z[..., chunk], values[:, chunk]) for chunk in CHUNKS], 1)
    totals = [torch.exp(z[..., chunk]).sum(-1, keepdim=True) for chunk in CHUNKS]
    return torch.softmax(torch.log(torch.cat(totals, -1)), -1) @ outputs


def gap(values: float, logits: float, totals: float, bias: float) -> Predict:
    """The gap a_f − a_g, ``(batch, tokens)``.

    Args:
        values: the share of A_k s_k that v_k gets when chunks are merged.
        logits: the share of Eq. 5 in a chunk.
        totals: the share of the softmax that merges.
        bias: what exp keeps of its value.
    """

    @torch.no_grad()
    def predict(f: Pooling, g: Pooling, case: Case) -> Tensor:
        z = f.query(case.inputs).squeeze(2)
        s = (f.value(case.inputs) * f.head.weight[case.target].unsqueeze(1)).sum(2)
        weights = torch.softmax(z, 1)
        o = (weights * s).sum(1, keepdim=True)
        of_chunk = torch.empty_like(z)
        log_total = torch.empty_like(z)
        for chunk in CHUNKS:
            of_chunk[:, chunk] = (torch.softmax(z[:, chunk], 1) * s[:, chunk]).sum(1, keepdim=True)
            log_total[:, chunk] = torch.logsumexp(z[:, chunk], 1, keepdim=True)
        at_f = s / 2 + z * (s - o) / 2
        passed_on = 1 - bias * torch.exp(-z)
        at_g = values * s + logits * z * (s - of_chunk) + totals * (of_chunk - o) * log_total * passed_on
        difference: Tensor = weights * (at_f - at_g)
        return difference

    return predict


invariance_pair(
    "online_softmax.merged_chunks",
    copies(lambda: Pooling(at_once), attend=merged),
    sentences,
    expect_lrp(
        "½ to values and Eq. 5 at once; ¼, ¼ and ½ when chunks are merged",
        predict=gap(1 / 4, 1 / 4, 1 / 2, 0),
        of="attnlrp",
    ),
    expect_lrp("every softmax is constant, so that values get everything", of="cplrp"),
    expect_lrp(
        "as AttnLRP at once; thirds of degrees 2 and 1 when chunks are merged",
        predict=gap(1 / 3, 1 / 3, 1 / 3, 1),
        of="blockwise_lrp",
    ),
    why="exp(z)/Σ exp(z) is exp(z)/T_c times T_c/Σ T, and T_c/Σ T is the softmax of log T_c",
    cite="Dao et al. 2022, arXiv 2205.14135, §3.1; flash decoding, Dao et al. 2023",
)
