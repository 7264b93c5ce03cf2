"""Attention sinks: features that take nearly all weight of many rows, and the values that gates give beside them.

A key of weight A adds A (V_i − W) to a row, W the mean of the other keys' values V. Without the key the row moves by
exactly that. So the division by 1 − A in the finite effect makes no row move further than two values are apart. Where A
is nearly 1, however, that is the whole row: the layers above meet a state of another size, and respond otherwise than
to first order. A row that a sink keeps small has a norm with a large derivative, which is small once the sink is gone.

1. A sink has its exact value, by a forward row of its own.
2. A sink also says that first-order responses are far off for other features. So, beside a sink, no estimate exceeds
   the largest exact change of the example: the feature with the largest estimate has a forward row too, until no
   estimate is larger or `MOST_ROWS` features had one. Then the other estimates are cut off.

Examples without a sink keep their values. Derived here; for SmolLM2-135M the share of `sink_shares` is 0.27 to 0.48 at
the first token, for MiniLM-L6 0.01 to 0.06 at [CLS], and below 0.01 at all other tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from faithcheck.explainers.protocol import SinkWarning
from faithcheck.models.case import Case

ExactChange: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""LOO of one feature in each of some examples: takes their indices, both ``(rows,)``, and gives ``(rows,)``."""

SINK_WEIGHT = 0.9
"""A row that gives a key a larger weight reads almost nothing else."""

SINK_SHARE = 0.1
"""A feature is a sink if at least this share of rows, over all layers and heads, reads almost nothing else."""

SINK_ROWS = 16
"""Fewer rows make no sink: one sharp head of a small model is a tenth of all its rows."""

MOST_ROWS = 4
"""Features beside the sinks of an example that have a forward row, one after the other."""

SINK_CONSEQUENCE = "has its exact value, and those of other features are further off than without a sink"
"""What a sink means where gates give it its exact value."""


def sink_shares(weights: Sequence[Tensor], case: Case) -> Tensor:
    """The share of rows that give a feature more than `SINK_WEIGHT`, ``(batch, features)``; 0 below `SINK_ROWS` rows.

    The rows of all layers and heads count, but for those of padding and the feature's own.

    Args:
        weights: A of each layer, ``(batch, …, queries, keys)``; the features are the last keys.
        case: the examples.
    """
    batch, features = case.shape
    by_layer = [layer.reshape(batch, -1, *layer.shape[-2:]) for layer in weights]
    positions = by_layer[0].shape[-1]
    rows = torch.nn.functional.pad(case.unpadded.float(), (positions - features, 0), value=1.0)
    entries = sum(layer.shape[1] for layer in by_layer) * (rows.sum(1, keepdim=True) - 1).clamp(min=1)
    # One pass over the weights finds who may be a sink: its mean weight is at least `SINK_SHARE` × `SINK_WEIGHT`.
    received = torch.stack([(rows.to(layer)[:, None, None] @ layer).float().sum((1, 2)) for layer in by_layer]).sum(0)
    candidates = (received[:, -features:] > 0.99 * SINK_SHARE * SINK_WEIGHT * entries) & case.unpadded
    shares = torch.zeros_like(entries.expand(-1, features))
    for feature in candidates.any(0).nonzero().flatten().tolist():
        key = positions - features + feature
        others = rows.clone()
        others[:, key] = 0
        taken = sum(((layer[..., key] > SINK_WEIGHT) * others.unsqueeze(1)).sum((1, 2)) for layer in by_layer)
        shares[:, feature] = torch.where(candidates[:, feature] & (taken >= SINK_ROWS), taken / entries[:, 0], 0)
    return shares


def with_exact_sinks(case: Case, estimate: Tensor, weights: Sequence[Tensor], exact_change: ExactChange) -> Tensor:
    """The estimates ``(batch, features)``, exact at sinks, and beside a sink no larger than the largest exact change.

    Args:
        case: the examples.
        estimate: of Leave-One-Out, 0 at padding.
        weights: see `sink_shares`.
        exact_change: the exact values.

    Warns:
        SinkWarning: there is a sink.
    """
    shares = sink_shares(weights, case)
    sinks = shares >= SINK_SHARE
    if not sinks.any():
        return estimate
    warn_of_sinks(case, shares, SINK_CONSEQUENCE)
    values, (example, feature) = estimate.clone(), sinks.nonzero(as_tuple=True)
    values[example, feature] = exact_change(example, feature).to(values.dtype)
    return within_exact_changes(values, sinks, sinks, exact_change)


def within_exact_changes(values: Tensor, exact: Tensor, sinks: Tensor, exact_change: ExactChange) -> Tensor:
    """The values, of which no estimate exceeds the largest exact one where an example has sinks.

    Args:
        values: exact values and estimates, ``(batch, features)``.
        exact: which are exact, bool, likewise.
        sinks: which are sinks, bool, likewise; they are exact.
        exact_change: the exact values of features whose estimate is larger.
    """
    values, exact = values.clone(), exact.clone()
    for _ in range(MOST_ROWS):
        largest, feature = values.abs().masked_fill(exact, 0).max(1)
        example = (sinks.any(1) & (largest > (values.abs() * exact).amax(1))).nonzero().flatten()
        if not len(example):
            break
        values[example, feature[example]] = exact_change(example, feature[example]).to(values.dtype)
        exact[example, feature[example]] = True
    return cut_off(values, values * exact, sinks)


def cut_off(estimate: Tensor, exact_changes: Tensor, sinks: Tensor) -> Tensor:
    """The estimates, cut off at the largest exact change where an example has sinks; all ``(batch, features)``."""
    bound = exact_changes.abs().amax(1, keepdim=True)
    return torch.where(sinks.any(1, keepdim=True), estimate.clamp(-bound, bound), estimate)


def warn_of_sinks(case: Case, shares: Tensor, consequence: str) -> None:
    """Warn of the features whose shares ``(batch, features)`` make them sinks; names the one with the largest.

    Warns:
        SinkWarning: with the token, its share and what it means for its value.
    """
    sinks = shares >= SINK_SHARE
    if not sinks.any():
        return
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
