"""Normalised kernel attention: weights first, or keys times values first.

With features q, k of queries and keys, O_i = Σ_j (q_i·k_j) v_j / Σ_j (q_i·k_j) (Katharopoulos et al. 2020, arXiv
2006.16236, Eqs. 4–5). The features are squares of linear maps, so that weights are positive and no constant keeps a
share; nor does a bias, as there is none below the head. Let A_ij be the normalised weights, m_ij the part of the
explained output, linear in A_ij v_j, and o_i = Σ_j m_ij.

Shares of m_ij for q_i, k_j, v_j, and of A_ij o_i, the denominator's part, for q_i and k_j:

1. AttnLRP, (w/Σw) V: v gets ½, w ¼ and the denominator ¼; w gives q and k half each: ⅛, ⅛, ½ and ⅛, ⅛.
2. AttnLRP, q(KᵀV)/(q·Σk): numerator and denominator get ½; q ¼, k and v ⅛ each; and ¼, ¼ of the denominator.
3. CP-LRP takes the first operand of a matrix product for constant: 0, 0, 1 and 0, 0; then 0, 0, ½ and 0, ½.
4. Block-wise LRP, (w/Σw) V: w divided by its own sum is a norm, whose denominator is constant. ¼, ¼, ½ and 0, 0.
5. Block-wise LRP, q(KᵀV)/(q·Σk): q and k have degree 2, v 1, the numerator 5, the denominator 4. By degree
   2/9, 2/9, 1/9 and 2/9, 2/9. The canoniser does not see that this is a norm too.

A square passes all of its relevance on to its root. ε-LRP refuses products of data.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.cases import WIDTH, sentences
from faithcheck.models.expectation import Predict, expect_lrp
from faithcheck.models.pair import copies, invariance_pair


def sentences_without_zeros(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    """The sentences, with baseline ½: at a token of zeros the weights are 0/0."""
    case = sentences(seed, dtype, device)
    return replace(case, baseline=torch.full_like(case.inputs, 0.5))


def weights_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(w/Σw) V with w = qkᵀ, ``(batch, tokens, width)`` three times to the same."""
    weights = q @ k.transpose(1, 2)
    return (weights / weights.sum(-1, keepdim=True)) @ v


def keys_and_values_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ (k.transpose(1, 2) @ v)) / (q @ k.sum(1).unsqueeze(2))


class KernelAttention(nn.Module):
    """Squared features without biases, the mean of tokens, a linear map: ``(batch, tokens, 32)`` to ``(batch, 2)``."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.attend = attend
        self.query, self.key, self.value = (nn.Linear(WIDTH, 6, bias=False) for _ in range(3))
        self.head = nn.Linear(6, 2)

    def features(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.query(tokens).square(), self.key(tokens).square(), self.value(tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.attend(*self.features(tokens)).mean(1))


def gap(of_f: Sequence[float], of_g: Sequence[float]) -> Predict:
    """The gap a_f − a_g, ``(batch, tokens)``; shares of m for q, k, v and of A·o for q, k, in f and in g."""

    @torch.no_grad()
    def predict(f: KernelAttention, g: KernelAttention, case: Case) -> Tensor:
        q, k, v = f.features(case.inputs)
        weights = torch.softmax((q @ k.transpose(1, 2)).log(), -1)
        parts = weights * (v @ f.head.weight[case.target].unsqueeze(2)).transpose(1, 2) / case.shape[1]
        output = parts.sum(2)
        by_column = (weights * output.unsqueeze(2)).sum(1)
        share_q, share_k, share_v, below_q, below_k = (a - b for a, b in zip(of_f, of_g, strict=True))
        return (share_q + below_q) * output + (share_k + share_v) * parts.sum(1) + below_k * by_column

    return predict


invariance_pair(
    "kernel_attention.normalised",
    copies(lambda: KernelAttention(weights_first), attend=keys_and_values_first),
    sentences_without_zeros,
    expect_lrp(
        "v gets ½ if weights come first and ⅛ if keys and values do",
        predict=gap((1 / 8, 1 / 8, 1 / 2, 1 / 8, 1 / 8), (1 / 4, 1 / 8, 1 / 8, 1 / 4, 1 / 4)),
        of="attnlrp",
    ),
    expect_lrp(
        "all to values; or half, and half to the keys of the denominator",
        predict=gap((0, 0, 1, 0, 0), (0, 0, 1 / 2, 0, 1 / 2)),
        of="cplrp",
    ),
    expect_lrp(
        "a norm with a constant denominator; or a quotient of degrees 5 and 4",
        predict=gap((1 / 4, 1 / 4, 1 / 2, 0, 0), (2 / 9, 2 / 9, 1 / 9, 2 / 9, 2 / 9)),
        of="blockwise_lrp",
    ),
    why="Σ_j (q·k_j) v_j = q·Σ_j k_j v_jᵀ, in the numerator and with 1 for v_j in the denominator",
    cite="Katharopoulos et al. 2020, arXiv 2006.16236",
)
