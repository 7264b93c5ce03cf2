"""Attention whose logits depend on the distance of two tokens (ALiBi): written out, and as torch's one operation.

Press, Smith & Lewis 2022, arXiv 2108.12409, §3: −m·|i − j| is added to the logit of tokens i and j.

Why LRP holds: see `faithcheck.models.pairs.attention_implementations`. The distances are constants, which add to the
logits and get no relevance.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from faithcheck.models.cases import WIDTH, sentences
from faithcheck.models.expectation import expect, expect_lrp
from faithcheck.models.pair import copies, invariance_pair
from faithcheck.models.pairs.attention_implementations import WRITTEN_OUT

HEADS, OUTPUTS = 2, 2


class DistanceAttention(nn.Module):
    """x + attention(x), summed over the tokens and mapped to the outputs: ``(batch, tokens, width)`` to ``(batch, 2)``.

    Args:
        one_operation: whether attention is ``scaled_dot_product_attention``; else it is written out.
    """

    def __init__(self, one_operation: bool = False) -> None:
        super().__init__()
        self.one_operation = one_operation
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, inputs: Tensor) -> Tensor:
        query, key, value = (
            part(inputs).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        position = torch.arange(inputs.shape[1], device=inputs.device)
        slopes = 2.0 ** -torch.arange(1, HEADS + 1, device=inputs.device)  # the paper's, for two heads: ½ and ¼
        bias = (-slopes[:, None, None] * (position[:, None] - position).abs()).to(inputs)
        if self.one_operation:
            attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        else:
            logits = torch.matmul(query, key.transpose(-1, -2)) / query.shape[-1] ** 0.5
            attended = torch.matmul(torch.softmax(logits + bias, -1), value)
        outputs: Tensor = self.head((inputs + attended.transpose(1, 2).flatten(2)).sum(1))
        return outputs


invariance_pair(
    "attention.distances_sdpa",
    copies(DistanceAttention, one_operation=True),
    sentences,
    expect_lrp(WRITTEN_OUT),
    expect("invariance", "blockwise_lrp", WRITTEN_OUT),
    why="scaled_dot_product_attention adds its mask to the logits",
)
