"""Transformers whose weights are set by hand: attention heads that find one token, and nothing else.

A head's logits are so far apart that its softmax is a choice: A is 1 at one key and 0 at the others, and its derivative
is 0. Where no key fits, a row attends to itself, and finds nothing there. A head adds what it finds to the residual
stream, in coordinates of its own (Elhage et al. 2021, *A Mathematical Framework for Transformer Circuits*).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

LARGE = 40000.0
"""The logit of a key that fits."""
SELF = LARGE / 4
"""The logit of a row's own key: a key that fits to less than ¼ does not fit."""

Weights = Mapping[tuple[int, int], float]
"""The entries of a matrix that are not 0: ``{(output, input): weight}``."""


def linear(width: int, weights: Weights, bias: Sequence[float] = ()) -> nn.Linear:
    layer = nn.Linear(width, width)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
        layer.bias[: len(bias)] = torch.tensor(bias)
        for (row, column), weight in weights.items():
            layer.weight[row, column] = weight
    return layer


class Head(nn.Module):
    """One head: x + softmax(QKᵀ + B)V with Q = x W_Q + b_Q, K = x W_K, V = x W_V and the logits B of positions."""

    def __init__(
        self,
        width: int,
        query: Weights,
        key: Weights,
        value: Weights,
        positions: Tensor,
        query_bias: Sequence[float] = (),
    ) -> None:
        super().__init__()
        self.query, self.key = linear(width, query, query_bias), linear(width, key)
        self.value, self.positions = linear(width, value), nn.Parameter(positions)

    def forward(self, states: Tensor) -> Tensor:
        logits = torch.matmul(self.query(states), self.key(states).transpose(1, 2)) + self.positions
        return states + torch.matmul(torch.softmax(logits, -1), self.value(states))


class HandBuilt(nn.Module):
    """Heads one after another, and some coordinates of one token: ``(batch, tokens, width)`` to ``(batch, read)``."""

    def __init__(self, heads: Sequence[Head], read: slice) -> None:
        super().__init__()
        self.heads, self.read = nn.Sequential(*heads), read

    def forward(self, inputs: Tensor, last: Tensor) -> Tensor:
        states = self.heads(inputs)
        return states[torch.arange(len(last), device=last.device), last][:, self.read]


def to_itself(tokens: int) -> Tensor:
    """Logits of positions: `SELF` for a row's own key, ``(tokens, tokens)``."""
    return SELF * torch.eye(tokens)


def to_the_previous(tokens: int) -> Tensor:
    """Logits of positions: `LARGE` for the key before a row's own, ``(tokens, tokens)``; the first row to itself."""
    return to_itself(tokens) + LARGE * torch.eye(tokens).roll(-1, 1).tril()
