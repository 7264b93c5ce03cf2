"""What Attention Rollout reads and a model does not use: a head without an output, and the order of tokens.

Rollout is computed from attention weights, A averaged over heads: the mean of the rows of ½(A + I) that the output is
read at (one layer).

1. A *dead head*, whose columns of the output map are 0, does not reach the output. Rollout averages its weights all
   the same. If its query is another, the gap is half of the change of its weights' mean row, over the number of heads.
   With two layers it is the change of the product of both layers' ½(A + I).
2. A model without positions that reads the mean over tokens computes the same of tokens *in reverse order*. Rollout
   takes the positions that the model attends over for those of the features: its map is in reverse order.

LRP and gradients: nothing arrives at a dead head, and reversing is a rearrangement.
"""

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.cases import WIDTH, sentences
from faithcheck.models.expectation import expect, expect_lrp
from faithcheck.models.networks.masked_attention import MaskedAttention, of_case, rollout
from faithcheck.models.pair import copies, invariance_pair
from faithcheck.models.pairs.masked_attention import texts

HEADS, HEAD_WIDTH = 2, 4


class TwoHeads(nn.Module):
    """Attention with two heads, the mean over tokens, a linear map: ``(batch, tokens, 32)`` to ``(batch, 2)``."""

    def __init__(self, reverse: bool = False) -> None:
        super().__init__()
        self.reverse = reverse
        self.query, self.key, self.value = (nn.Linear(WIDTH, HEADS * HEAD_WIDTH) for _ in range(3))
        self.head = nn.Linear(HEADS * HEAD_WIDTH, 2)

    def weights(self, tokens: Tensor) -> Tensor:
        q, k = (linear(tokens).unflatten(2, (HEADS, -1)).transpose(1, 2) for linear in (self.query, self.key))
        return torch.softmax(q @ k.transpose(2, 3) / HEAD_WIDTH**0.5, -1)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens.flip(1) if self.reverse else tokens
        values = self.value(tokens).unflatten(2, (HEADS, -1)).transpose(1, 2)
        mixed = (self.weights(tokens) @ values).transpose(1, 2).flatten(2)
        return self.head(mixed.mean(1))


@torch.no_grad()
def with_dead_head() -> TwoHeads:
    model = TwoHeads()
    model.head.weight[:, HEAD_WIDTH:] = 0
    return model


@torch.no_grad()
def gap_of_dead_head(f: TwoHeads, g: TwoHeads, case: Case) -> Tensor:
    """Rollout's a_f − a_g, ``(batch, tokens)``: ½ of the mean row of the dead head's difference, over two heads."""
    difference = f.weights(case.inputs)[:, 1] - g.weights(case.inputs)[:, 1]
    return difference.mean(1) / 2 / HEADS


def negate_dead_queries(model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        if name.endswith("query.weight"):
            weight[HEAD_WIDTH:] *= -1


invariance_pair(
    "rollout.dead_head",
    copies(with_dead_head, negate_dead_queries),
    sentences,
    expect_lrp("the dead head's output gets the gradient 0, and so does everything below it"),
    expect(
        "invariance", "attention_rollout", "a mean over heads counts the dead head's weights", predict=gap_of_dead_head
    ),
    why="the dead head's columns of the output map are 0, so that its query does not matter",
)


@torch.no_grad()
def gap_of_reversed_tokens(f: TwoHeads, g: TwoHeads, case: Case) -> Tensor:
    """Rollout's a_f − a_g, ``(batch, tokens)``: the mean row of ½(A + I) minus itself in reverse order."""
    row = f.weights(case.inputs).mean((1, 2)) / 2  # the mean row of I is the same in both orders
    return row - row.flip(1)


invariance_pair(
    "rollout.reversed_tokens",
    copies(with_dead_head, reverse=True),
    sentences,
    expect_lrp("reversing is a rearrangement, which passes the gradient on"),
    expect(
        "invariance",
        "attention_rollout",
        "it reads the row of the position that comes first",
        predict=gap_of_reversed_tokens,
    ),
    why="attention without positions gives each token the same output in every order, and the mean has no order",
)


@torch.no_grad()
def gap_of_dead_heads(f: MaskedAttention, g: MaskedAttention, case: Case) -> Tensor:
    """Rollout's a_f − a_g on two layers, ``(batch, tokens)``, 0 at padding."""
    return of_case(rollout)(f, case) - of_case(rollout)(g, case)


@torch.no_grad()
def with_dead_heads() -> MaskedAttention:
    model = MaskedAttention(2, HEADS)
    for i in range(2):
        model.get_parameter(f"layers.{i}.output.weight")[:, HEAD_WIDTH:] = 0
    return model


invariance_pair(
    "rollout.dead_heads",
    copies(with_dead_heads, negate_dead_queries),
    texts(6, 5, 4),
    expect_lrp("the dead heads' outputs get the gradient 0, and so does everything below them"),
    expect(
        "invariance", "attention_rollout", "a mean over heads counts the dead heads' weights", predict=gap_of_dead_heads
    ),
    why="the dead heads' columns of the output maps are 0, so that their queries do not matter",
)
