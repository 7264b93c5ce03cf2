"""Rotary positions in several ways: halves of the coordinates, neighbours, one matrix for each position, two steps.

A query or a key is n/2 complex numbers, multiplied by e^{iφ} of its position (Su et al. 2021, arXiv 2104.09864, Eqs.
12–15 and 34). The real and imaginary parts are i and i + n/2 of `transformers`, or 2i and 2i + 1 of the paper; they are
the product with a block-diagonal matrix of 2 × 2 rotations.

Why LRP stays the same, at ε = 0:

1. A rotation by a constant angle is linear, with constant weights: it passes the plain gradient on, Rᵀ r, however it
   is computed.
2. If the rows of W_q and W_k are permuted alike, so are the coordinates of queries and keys. Their product q·k is a sum
   over coordinates, and the bilinear rule gives each of them half of its own term.

PA-LRP gives positions their part, and stays the same where the products with cosines and sines do. Two rotations have
twice as many as one, and the position is given its part of relevance twice. PA-LRP refuses products with matrices and
with complex numbers; ε-LRP and DeepLIFT refuse the softmax.

1. A rotation passes ½ of the relevance S of a query to its position and ½ to its linear map. There the bias keeps its
   share, which is B of S. As the position is the token's own, the token has ½S + ½(S − B) = S − ½B.
2. Of two rotations, the first has ½S to share: ½S + ¼S + ¼(S − B) = S − ¼B. So the gap is −¼B, of queries and keys.
3. B is ¼ b ⊙ ∂f/∂q: the weights have ½ of a product with values, and a query ½ of a product with keys.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case, select_target
from faithcheck.models.expectation import INVARIANT_BY_DEFINITION, expect_lrp
from faithcheck.models.pair import copies, invariance_pair, random_points

STEPS, WIDTH, SIZE = 5, 6, 8
CASE = random_points(5, STEPS, WIDTH, classes=2)
CITE = "Su et al. 2021, arXiv 2104.09864, Eqs. 12–15 and 34"
THREE = "attnlrp cplrp blockwise_lrp"

Rotate = Callable[[Tensor, Tensor], Tensor]


def exchanged_halves(x: Tensor, angles: Tensor) -> Tensor:
    """x cos φ + (−x₂, x₁) sin φ of the halves x₁ and x₂, ``(batch, steps, n)`` by ``(steps, n/2)`` angles."""
    first, second = x.chunk(2, -1)
    cos, sin = (torch.cat([part, part], -1) for part in (angles.cos(), angles.sin()))
    return x * cos + torch.cat([-second, first], -1) * sin


def complex_product(x: Tensor, angles: Tensor) -> Tensor:
    rotated = torch.view_as_complex(torch.stack(x.chunk(2, -1), -1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([rotated.real, rotated.imag], -1)


def matrices(x: Tensor, angles: Tensor) -> Tensor:
    """The product with one matrix ``(n, n)`` for each position."""
    cos, sin = torch.diag_embed(angles.cos()), torch.diag_embed(angles.sin())
    rotation = torch.cat([torch.cat([cos, -sin], 2), torch.cat([sin, cos], 2)], 1)
    return torch.matmul(rotation, x.unsqueeze(3)).squeeze(3)


def neighbours(x: Tensor, angles: Tensor) -> Tensor:
    """Pairs of neighbouring coordinates in place of halves."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], 3).flatten(2)


def two_steps(x: Tensor, angles: Tensor) -> Tensor:
    return exchanged_halves(exchanged_halves(x, angles / 2), angles / 2)


class Rotary(nn.Module):
    """One head with rotary positions, the mean over tokens, a linear map: ``(batch, 5, 6)`` to ``(batch, 2)``."""

    def __init__(self, rotate: Rotate) -> None:
        super().__init__()
        self.rotate = rotate
        self.query, self.key, self.value = (nn.Linear(WIDTH, SIZE) for _ in range(3))
        self.head = nn.Linear(SIZE, 2)
        frequencies = 100.0 ** (-torch.arange(SIZE // 2, dtype=torch.float64) / (SIZE // 2))
        self.rotary_angles = nn.Buffer(torch.arange(STEPS, dtype=torch.float64).unsqueeze(1) * frequencies)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.attend(self.query(tokens), self.key(tokens), self.value(tokens))

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The outputs, from queries and keys before they are rotated, and values."""
        q, k = (self.rotate(x, self.rotary_angles) for x in (query, key))
        weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(SIZE), -1)
        return self.head((weights @ value).mean(1))


CONSTANT = {
    **INVARIANT_BY_DEFINITION,
    **expect_lrp("a rotation by constant angles passes the plain gradient on, however it is computed", of=THREE),
}
SAME_PRODUCTS = expect_lrp(
    "the products with cosines and sines, which share relevance, are the same numbers", of="pa_lrp"
)
invariance_pair(
    "rotary.complex_product",
    copies(lambda: Rotary(exchanged_halves), rotate=complex_product),
    CASE,
    CONSTANT,
    why="a rotation of the plane is a product with e^{iφ}",
    cite=CITE,
)
invariance_pair(
    "rotary.matrices",
    copies(lambda: Rotary(exchanged_halves), rotate=matrices),
    CASE,
    CONSTANT,
    why="a rotation of each plane is one block-diagonal matrix",
    cite=CITE,
)


def permute_coordinates(model: Rotary) -> None:
    """From halves, as in Llama, to neighbours, as in the paper and in GPT-J: permute the rows of weights."""
    order = torch.arange(SIZE).view(2, -1).T.flatten()
    for rows in (*model.query.parameters(), *model.key.parameters()):
        rows.copy_(rows[order])


invariance_pair(
    "rotary.neighbours",
    copies(lambda: Rotary(exchanged_halves), permute_coordinates, rotate=neighbours),
    CASE,
    expect_lrp("q·k is a sum over coordinates, each with half of its own term in any order", of=THREE),
    SAME_PRODUCTS,
    why="queries and keys with their coordinates permuted alike have the same product",
    cite=CITE,
)


@torch.enable_grad()
def biases_kept_twice(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """PA-LRP's map on one rotation minus that on two, ``(batch, tokens)``: −1/16 (b_q·∂f/∂q + b_k·∂f/∂k)."""
    assert isinstance(f, Rotary)
    q, k, v = (linear(case.inputs).detach().requires_grad_() for linear in (f.query, f.key, f.value))
    at_q, at_k = torch.autograd.grad(select_target(f.attend(q, k, v), case.target).sum(), (q, k))
    return -(at_q @ f.query.bias + at_k @ f.key.bias).detach() / 16


invariance_pair(
    "rotary.two_steps",
    copies(lambda: Rotary(exchanged_halves), rotate=two_steps),
    CASE,
    CONSTANT,
    expect_lrp(
        "each rotation gives its position half, and the bias of a query or key keeps ½ of its share, or ¼",
        predict=biases_kept_twice,
        of="pa_lrp",
    ),
    why="the angles of two rotations of a plane add up",
    cite=CITE,
)
