"""Attention sinks: features that take nearly all weight of many rows, and the values that gates give beside them.

A key of weight A adds A (V_i − W) to a row, W the mean of the other keys' values V. Without the key the row moves by
exactly that. So the division by 1 − A in the finite effect makes no row move further than two values are apart. Where A
is nearly 1, however, that is the whole row: the layers above meet a state of another size, and respond otherwise than
to first order. A row that a sink keeps small has a norm with a large derivative, which is small once the sink is gone.

1. A sink has its exact value, by a forward row of its own.
2. A sink also says that first-order responses are far off for other features. So, beside a sink, no estimate exceeds
   the largest exact change of the example: the feature with the largest estimate has a forward row too, until no
   estimate is larger or `MOST_ROWS` features had one. Then the other estimates are cut off.

Examples without a sink keep their values, and have no such bound. Derived here.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from faithcheck.explainers.protocol import SinkWarning
from faithcheck.models.case import Case

ExactChange: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""LOO of one feature in each of some examples: takes their indices, both ``(rows,)``, and gives ``(rows,)``."""

SINK_WEIGHT = 0.9
"""A row that gives a key a larger weight reads almost nothing else."""

SINK_SHARE = 0.2
"""A feature is a sink if at least this share of rows, over all layers and heads, reads almost nothing else.

The share is 0.27 to 0.48 at the first token of prompts of SmolLM2-135M. At [CLS] of MiniLM-L6 it is below 0.08 in texts
of 12 tokens or more, and up to 0.19 in texts of 4. All other tokens have less than 0.01.
"""

SINK_ROWS = 16
"""Fewer rows make no sink: one sharp head of a small model has a large share of all its rows."""

MOST_ROWS = 4
"""Features beside the sinks of an example that have a forward row, one after the other."""

IS_EXACT = "has its exact value, and those of other features are further off than without a sink"


def sink_shares(weights: Sequence[Tensor], case: Case) -> Tensor:
    """The share of rows that give a feature more than `SINK_WEIGHT`, ``(batch, features)``; 0 below `SINK_ROWS` rows.

    The rows of all layers and heads count, but for those of padding and the feature's own. The features are the last
    keys of each layer's weights, ``(batch, …, queries, keys)``.
    """
    first = weights[0].shape[-1] - case.shape[1]
    counts = pad(case.unpadded, (first, 0), value=True)
    taken, heads = torch.zeros(counts.shape, device=counts.device), 0
    for layer in weights:
        by_head = layer.reshape(len(counts), -1, *layer.shape[-2:])
        example, head, row = (by_head.amax(-1) > SINK_WEIGHT).nonzero(as_tuple=True)
        key = by_head[example, head, row].argmax(-1)
        taken.index_put_((example, key), (counts[example, row] & (key != row)).to(taken), accumulate=True)
        heads += by_head.shape[1]
    share = taken / (heads * (counts.sum(1, keepdim=True) - 1).clamp(min=1))
    return share.masked_fill(taken < SINK_ROWS, 0)[:, first:] * case.unpadded


def with_exact_values(
    case: Case, estimate: Tensor, shares: Tensor, exact_change: ExactChange, known: Tensor | None = None
) -> Tensor:
    """Estimates of Leave-One-Out, exact at sinks, and beside a sink no larger than the largest exact change.

    The features in ``known``, ``(batch, features)`` bool, have exact values, too. Warns of sinks.
    """
    sinks = is_sink(case, shares, IS_EXACT)
    exact = sinks | (sinks if known is None else known)
    values, new = estimate.clone(), exact.nonzero(as_tuple=True)
    for _ in range(1 + MOST_ROWS):
        if len(new[0]):
            values[new] = exact_change(*new).to(values.dtype)
            exact[new] = True
        largest, feature = values.abs().masked_fill(exact, 0).max(1)
        example = (sinks.any(1) & (largest > (values.abs() * exact).amax(1))).nonzero().flatten()
        new = (example, feature[example])
    return cut_off(values, values * exact, sinks)


def cut_off(estimate: Tensor, exact_changes: Tensor, sinks: Tensor) -> Tensor:
    """The estimates, cut off at the largest exact change where an example has sinks; all ``(batch, features)``."""
    bound = exact_changes.abs().amax(1, keepdim=True)
    return torch.where(sinks.any(1, keepdim=True), estimate.clamp(-bound, bound), estimate)


def is_sink(case: Case, shares: Tensor, consequence: str) -> Tensor:
    """Which features are sinks by their shares, both ``(batch, features)``; a SinkWarning names the largest of them."""
    sinks = shares >= SINK_SHARE
    if sinks.any():
        example, feature = divmod(int(shares.argmax()), shares.shape[1])
        name = f" {case.feature_names[example][feature]!r}" if case.feature_names else ""
        others = f", as are {int(sinks.sum()) - 1} more" if sinks.sum() > 1 else ""
        warnings.warn(
            f"feature {feature}{name} of example {example} is an attention sink{others}: "
            f"{float(shares[example, feature]):.0%} of the other rows of attention give it more than {SINK_WEIGHT} of "
            f"their weight; it {consequence}",
            SinkWarning,
            stacklevel=2,
        )
    return sinks
