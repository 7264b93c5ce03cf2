"""Linear mixing of tokens: a depthwise convolution, its windows times its weights, a full convolution; Fourier mixing.

All are linear in the inputs and have constant weights, so that every LRP method passes the plain gradient on, at ε = 0.
DeepLIFT's multipliers of a linear map are its gradient, too. Behind the mixing stands a tanh, which each explainer
treats alike in both models.

FNet (Lee-Thorp et al. 2021, arXiv 2105.03824, Eq. 3) mixes tokens by the real part of F X G, with F and G the Fourier
transforms over tokens and over coordinates. By matrices it takes real numbers alone; the fast transform is complex.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from faithcheck.models.expectation import LINEAR_WITH_CONSTANT_WEIGHTS
from faithcheck.models.pair import copies, invariance_pair, random_points

STEPS, CHANNELS, KERNEL = 6, 4, 3
CASE = random_points(6, STEPS, CHANNELS, classes=2)
CITE = "the short convolution of Gu & Dao 2023, arXiv 2312.00752, §3.4"

Convolve = Callable[[Tensor, Tensor], Tensor]


def depthwise(steps: Tensor, weight: Tensor) -> Tensor:
    """Each channel with its own kernel: ``(batch, channels, steps)`` and ``(channels, kernel)`` to the former."""
    padded = functional.pad(steps, (KERNEL - 1, 0))
    return functional.conv1d(padded, weight.unsqueeze(1), groups=CHANNELS)


def full(steps: Tensor, weight: Tensor) -> Tensor:
    """The same by a convolution of all channels with all, whose weights between different channels are 0."""
    return functional.conv1d(functional.pad(steps, (KERNEL - 1, 0)), torch.diag_embed(weight.T).permute(1, 2, 0))


def windows(steps: Tensor, weight: Tensor) -> Tensor:
    """The same by a matrix product of each channel's windows ``(steps, kernel)`` with its kernel."""
    padded = functional.pad(steps, (KERNEL - 1, 0))
    unfolded = torch.stack([padded[..., k : k + STEPS] for k in range(KERNEL)], 3)
    return torch.matmul(unfolded, weight.unsqueeze(2)).squeeze(3)


class Convolution(nn.Module):
    """A causal depthwise convolution, tanh and a linear map of all: ``(batch, 6, 4)`` to ``(batch, 2)``."""

    def __init__(self, convolve: Convolve) -> None:
        super().__init__()
        self.convolve = convolve
        self.weight = nn.Parameter(torch.randn(CHANNELS, KERNEL))
        self.head = nn.Linear(STEPS * CHANNELS, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.convolve(inputs.transpose(1, 2), self.weight)).flatten(1))


invariance_pair(
    "convolution.windows",
    copies(lambda: Convolution(depthwise), convolve=windows),
    CASE,
    LINEAR_WITH_CONSTANT_WEIGHTS,
    why="a convolution is the product of each window with the kernel",
    cite=CITE,
)
invariance_pair(
    "convolution.full",
    copies(lambda: Convolution(depthwise), convolve=full),
    CASE,
    LINEAR_WITH_CONSTANT_WEIGHTS,
    why="a group of one channel is a full convolution whose weights between different channels are 0",
    cite=CITE,
)


TOKENS, WIDTH = 8, 4


def angles(size: int, like: Tensor) -> Tensor:
    index = torch.arange(size, dtype=torch.float64, device=like.device)
    return (2 * math.pi / size * index.unsqueeze(1) * index).to(like)


def by_matrices(tokens: Tensor) -> Tensor:
    """Re(F X G) = cos X cos − sin X sin: ``(batch, tokens, width)`` to the same."""
    over_tokens, over_width = angles(TOKENS, tokens), angles(WIDTH, tokens)
    return over_tokens.cos() @ tokens @ over_width.cos() - over_tokens.sin() @ tokens @ over_width.sin()


def by_fast_transform(tokens: Tensor) -> Tensor:
    """The same by torch's fast transform, whose complex result is read at its real part."""
    return torch.fft.fftn(tokens, dim=(1, 2)).real


class Mixing(nn.Module):
    """Fourier mixing, tanh and a linear map of all: ``(batch, 8, 4)`` to ``(batch, 2)``."""

    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mix = mix
        self.hidden, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(TOKENS * WIDTH, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(self.mix(inputs))).flatten(1))


invariance_pair(
    "fourier.mixing",
    copies(lambda: Mixing(by_matrices), mix=by_fast_transform),
    random_points(5, TOKENS, WIDTH, classes=2),
    LINEAR_WITH_CONSTANT_WEIGHTS,
    why="the fast Fourier transform is the product with the matrix of e^{−2πijk/n}",
    cite="Lee-Thorp et al. 2021, arXiv 2105.03824, Eq. 3",
)
