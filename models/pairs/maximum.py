"""max(a, b) against (a + b + |a − b|)/2, in a maxout network.

1. max selects: relevance follows the gradient, which is 1 for the larger operand.
2. In (a + b + |a − b|)/2, sums and multiples pass the gradient on. |·| only changes a sign: its gradient ±1 equals its
   identity rule |z|/z.
3. So a gets ½(1 + sign(a − b)): 1 where it is the larger, 0 where it is the smaller, ½ at a tie, as torch's max does.

DeepLIFT's rescale rule is not defined for max, and refuses it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from faithcheck.models.expectation import ALL_LRP, expect_lrp
from faithcheck.models.pair import invariance_pair, random_points, seeded


class Maxout(nn.Module):
    """A linear map of max(W₁x, W₂x): ``(batch, 5)`` to ``(batch, 3)``; no biases, so that f(αx) = αf(x), α > 0."""

    def __init__(self, written_out: bool) -> None:
        super().__init__()
        self.written_out = written_out
        self.first, self.second = (nn.Linear(5, 8, bias=False) for _ in range(2))
        self.head = nn.Linear(8, 3, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        a, b = self.first(inputs), self.second(inputs)
        larger = (a + b + (a - b).abs()) / 2 if self.written_out else torch.maximum(a, b)
        outputs: Tensor = self.head(larger)
        return outputs


def absolute(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """A maxout network of random weights, its maximum in one operation and written out."""
    with seeded(seed):
        f = Maxout(written_out=False)
    g = Maxout(written_out=True)
    g.load_state_dict(f.state_dict())
    return f.to(device, dtype).eval(), g.to(device, dtype).eval()


invariance_pair(
    "maximum.absolute",
    absolute,
    random_points(6, 5, classes=3),
    expect_lrp("½(1 + sign(a − b)) is 1 for the larger and 0 for the smaller", of=ALL_LRP),
    why="|a − b| is the larger minus the smaller, a + b their sum",
)
