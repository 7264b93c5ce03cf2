"""Small attention with a sink: a first token, a learned logit or register tokens that take nearly all weight.

Every state keeps two marks, which no layer writes to: coordinate 0 is 1 at the sink and 0 elsewhere, and coordinate 1
is 1 everywhere. The first coordinate of each head's query reads the second mark, and that of its key the first, so that
the sink's logit exceeds the others' by about `MARGIN`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from faithcheck.models.networks.masked_attention import OUTPUTS, WIDTH

Sink: TypeAlias = Literal["first token", "learned", "registers"]

MARGIN = 9.0
"""A key whose logit is larger by 9 than those of n others has 1 − A ≈ n e⁻⁹ of the weight, below 0.002 for n = 10."""
HEADS = 2
REGISTERS = 2


class SinkLayer(nn.Module):
    """x + attention(x) W_O. What is read without the sink is larger than the states, and with it smaller."""

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self.sink = sink
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        for part, std in ((self.query, 0.2), (self.key, 0.2), (self.value, 1.0), (self.output, 20.0)):
            nn.init.normal_(part.weight, std=std)
        head = WIDTH // HEADS
        with torch.no_grad():
            self.output.weight[:2] = 0
            self.value.weight[:, :2] = 0
            self.query.weight[::head] = self.key.weight[::head] = 0
            self.query.weight[::head, 1] = MARGIN * head**0.5
            self.key.weight[::head, 0] = 1
        self.logit = nn.Parameter(torch.full((HEADS, 1, 1), MARGIN))

    def forward(self, states: Tensor, mask: Tensor, rescaled: bool) -> Tensor:
        """States ``(batch, tokens, width)`` and a mask that is added to the logits, ``(batch, 1, queries, keys)``."""
        q, k, v = (
            part(states).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        logits = torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5 + mask
        attended = torch.matmul(self.weights(logits, rescaled), v)
        result: Tensor = states + self.output(attended.transpose(1, 2).flatten(2))
        return result

    def weights(self, logits: Tensor, rescaled: bool) -> Tensor:
        """The attention weights, ``(batch, heads, queries, keys)``; a learned sink takes its share and is dropped."""
        if self.sink != "learned":
            return torch.softmax(logits, -1)
        if rescaled:  # Σ_k exp z_k / (exp s + Σ_k exp z_k) = σ(log Σ_k exp z_k − s)
            return torch.softmax(logits, -1) * torch.sigmoid(torch.logsumexp(logits, -1, keepdim=True) - self.logit)
        sink = self.logit.expand(len(logits), -1, logits.shape[-2], -1)
        return torch.softmax(torch.cat([logits, sink], -1), -1)[..., :-1]


class AttentionWithSink(nn.Module):
    """Layers, an RMSNorm if wanted, and a linear map at the last token: ``(batch, tokens, width)`` to outputs.

    Args:
        sink: what takes nearly all weight.
        layers: how many.
        norm: whether the last states are divided by their root mean square.

    Attributes:
        rescaled: whether a learned sink rescales the weights of the keys instead of standing beside them.
    """

    def __init__(self, sink: Sink, layers: int, norm: bool = True) -> None:
        super().__init__()
        self.sink, self.norm, self.rescaled = sink, norm, False
        self.layers = nn.ModuleList(SinkLayer(sink) for _ in range(layers))
        self.registers = nn.Parameter(torch.randn(REGISTERS, WIDTH))
        with torch.no_grad():
            self.registers[:, :2] = 1
        self.head = nn.Linear(WIDTH, OUTPUTS, bias=False)

    def forward(self, inputs: Tensor, attention_mask: Tensor) -> Tensor:
        """The outputs ``(batch, 2)``, causal but for register tokens; mask ``(batch, tokens)`` in [0, 1]."""
        lowest, states = torch.finfo(inputs.dtype).min, inputs
        mask = attention_mask.to(inputs).log().clamp_min(lowest)[:, None, None]
        if self.sink == "registers":
            states = torch.cat([self.registers.expand(len(inputs), -1, -1), inputs], 1)
            mask = nn.functional.pad(mask, (REGISTERS, 0))
        else:
            count = inputs.shape[1]
            after = torch.ones(count, count, dtype=torch.bool, device=inputs.device).triu(1)
            mask = torch.where(after, lowest, mask)
        for layer in self.layers:
            states = layer(states, mask.expand(-1, -1, states.shape[1], -1), self.rescaled)
        last = states[:, -1]
        if self.norm:
            last = last * torch.rsqrt(last.square().mean(-1, keepdim=True) + 1e-5)
        outputs: Tensor = self.head(last)
        return outputs
