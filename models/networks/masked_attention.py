"""Small softmax attention whose attention mask is a gate: a key of mask m in [0, 1] has m times its weight.

A 0 in the mask removes a key, and so does the mask of any other model. Between 0 and 1 it removes a part of the key,
A_k ∝ m_k exp z_k, so that the derivative with respect to a gate is a limit of outputs of the model itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH, OUTPUTS = 8, 2


class MaskedLayer(nn.Module):
    """x + attention(x) W_O, without biases and without norms."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        for part in (self.query, self.key, self.value, self.output):
            nn.init.normal_(part.weight, std=WIDTH**-0.5)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            part(states).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        weights = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5 + mask, -1)
        attended = torch.matmul(weights, v).transpose(1, 2).flatten(2)
        return states + self.output(attended)


class MaskedAttention(nn.Module):
    """Layers of attention and a linear map at one row: tokens ``(batch, tokens, width)`` to ``(batch, outputs)``."""

    def __init__(self, layers: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.layers = nn.ModuleList(MaskedLayer(heads) for _ in range(layers))
        self.head = nn.Linear(WIDTH, OUTPUTS, bias=False)

    def forward(self, inputs: Tensor, attention_mask: Tensor, last: Tensor | None = None) -> Tensor:
        """The logits at the row ``last`` ``(batch,)``, by default the first; mask ``(batch, tokens)`` in [0, 1]."""
        lowest = torch.finfo(inputs.dtype).min
        mask = attention_mask.to(inputs).log().clamp_min(lowest)[:, None, None]
        if self.causal:
            after = torch.ones(inputs.shape[1], inputs.shape[1], dtype=torch.bool, device=inputs.device).triu(1)
            mask = torch.where(after, lowest, mask)
        states = inputs
        for layer in self.layers:
            states = layer(states, mask.expand(-1, -1, states.shape[1], -1))
        row = torch.zeros_like(attention_mask[:, 0], dtype=torch.int64) if last is None else last
        return self.head(states[torch.arange(len(states), device=states.device), row])
