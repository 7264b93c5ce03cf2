"""Mixing by the Fourier transform, as FNet does: by the matrices of the transform, and by the fast transform.

The mixed tokens are the real part of F X G, with F and G the transforms over tokens and over coordinates (Lee-Thorp et
al. 2021, arXiv 2105.03824, Eq. 3). By matrices it takes real numbers alone; the fast transform is complex.

Both are linear in the inputs, with constant weights, so that every LRP method passes the plain gradient on, at ε = 0,
and DeepLIFT's multipliers are the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from faithcheck.models.expectation import LINEAR_WITH_CONSTANT_WEIGHTS
from faithcheck.models.pair import copies, invariance_pair, random_points

TOKENS, WIDTH = 8, 4


def angles(size: int, like: Tensor) -> Tensor:
    """2πjk/n, ``(n, n)``."""
    index = torch.arange(size, dtype=torch.float64, device=like.device)
    return (2 * math.pi / size * index.unsqueeze(1) * index).to(like)


def by_matrices(tokens: Tensor) -> Tensor:
    """Re(F X G) = cos X cos − sin X sin: ``(batch, tokens, width)`` to the same."""
    over_tokens, over_width = angles(TOKENS, tokens), angles(WIDTH, tokens)
    return over_tokens.cos() @ tokens @ over_width.cos() - over_tokens.sin() @ tokens @ over_width.sin()


def by_fast_transform(tokens: Tensor) -> Tensor:
    """The same by torch's fast transform, whose complex result is read at its real part."""
    mixed: Tensor = torch.fft.fftn(tokens, dim=(1, 2)).real
    return mixed


class Mixing(nn.Module):
    """Fourier mixing, tanh and a linear map of all: ``(batch, 8, 4)`` to ``(batch, 2)``."""

    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mix = mix
        self.hidden, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(TOKENS * WIDTH, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(torch.tanh(self.hidden(self.mix(inputs))).flatten(1))
        return outputs


invariance_pair(
    "fourier.mixing",
    copies(lambda: Mixing(by_matrices), mix=by_fast_transform),
    random_points(5, TOKENS, WIDTH, classes=2),
    LINEAR_WITH_CONSTANT_WEIGHTS,
    why="the fast Fourier transform is the product with the matrix of e^{−2πijk/n}",
    cite="Lee-Thorp et al. 2021, arXiv 2105.03824, Eq. 3",
)
