"""Operations that choose among values by their size, against a selection by constant indices or masks.

max passes relevance to the value that it chooses, as its gradient does. Where the choice is made beforehand, on values
without relevance, what remains is a selection, or a product with 0, 1 and −1. relu and |·| choose among x, 0 and −x.
"""

import torch
from torch import Tensor
from torch.nn import functional

from faithcheck.models.expectation import ALL_LRP, expect, expect_lrp
from faithcheck.models.networks.operation_by_operation import FEATURES, Written, operation_pair
from faithcheck.models.pairs.operation_affine import tokens


def without_ties(x: Tensor) -> Tensor:
    """The features plus different irrational constants: drawn features are rational, so that no two are equal or 0."""
    return x + torch.arange(1, FEATURES + 1, dtype=x.dtype, device=x.device).sqrt() * 2**0.5 / 8


def chosen(x: Tensor, choice: Tensor) -> Tensor:
    """One entry of each row, by its index: ``(batch, n, m)`` and ``(batch, n)`` to ``(batch, n)``."""
    return x.gather(2, choice.unsqueeze(2)).squeeze(2)


def largest(x: Tensor) -> Tensor:
    return chosen(tokens(x), tokens(x.detach()).argmax(2))


def smallest(x: Tensor) -> Tensor:
    return chosen(tokens(x), tokens(x.detach()).argmin(2))


def one_of_two(x: Tensor, first: Tensor) -> Tensor:
    """Features 1 to 4 where ``first`` holds, else features 5 to 8."""
    return x[:, :4] * first + x[:, 4:] * ~first


def squares(x: Tensor) -> Tensor:
    """The two squares of 2 × 2 features in a matrix of 2 × 4, ``(batch, 2, 4)``."""
    return torch.stack([tokens(x)[:, :, :2].flatten(1), tokens(x)[:, :, 2:].flatten(1)], 1)


def halves(x: Tensor) -> Tensor:
    """0 for features 1 to 4, 1 for features 5 to 8."""
    return torch.arange(FEATURES, device=x.device) // 4


operation_pair(
    "choices",
    {
        "max": Written(lambda x: tokens(x).max(2).values, largest),
        "min": Written(lambda x: tokens(x).min(2).values, smallest),
        "amax": Written(lambda x: tokens(x).amax(2), largest),
        "amin": Written(lambda x: tokens(x).amin(2), smallest),
        "topk": Written(
            lambda x: tokens(x).topk(2, 2).values, lambda x: tokens(x).gather(2, tokens(x.detach()).topk(2, 2).indices)
        ),
        "maximum": Written(
            lambda x: torch.maximum(x[:, :4], x[:, 4:]), lambda x: one_of_two(x, x[:, :4].detach() > x[:, 4:].detach())
        ),
        "minimum": Written(
            lambda x: torch.minimum(x[:, :4], x[:, 4:]), lambda x: one_of_two(x, x[:, :4].detach() < x[:, 4:].detach())
        ),
        "max_pool1d": Written(
            lambda x: functional.max_pool1d(x.unsqueeze(1), 2),
            lambda x: chosen(x.view(-1, 4, 2), x.detach().view(-1, 4, 2).argmax(2)),
        ),
        "max_pool2d": Written(
            lambda x: functional.max_pool2d(tokens(x).unsqueeze(1), 2),
            lambda x: chosen(squares(x), squares(x.detach()).argmax(2)),
        ),
        "scatter_reduce": Written(
            lambda x: x.new_zeros(len(x), 2).scatter_reduce(1, halves(x).expand_as(x), x, "amax", include_self=False),
            largest,
        ),
        "relu": Written(torch.relu, lambda x: x * (x.detach() > 0)),
        "abs": Written(torch.abs, lambda x: x * x.detach().sign()),
    },
    "the value that is chosen, by its index or by a mask",
    expect_lrp("relevance goes to the value that is chosen, as in the selection", of=ALL_LRP),
    expect("invariance", "blockwise_lrp", "relevance goes to the value that is chosen, as in the selection"),
    prepare=without_ties,
)
