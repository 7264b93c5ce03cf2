"""Permutations of what has no order: the heads of an attention layer, the neurons of a feed-forward block.

The output projection sums over heads, the second feed-forward map over neurons, and what comes before acts on each
head and on each neuron alone. So does every rule of LRP. A permutation P before and P⁻¹ behind permutes all that lies
between, values and modified gradients, and nothing else.

That is so for any ε too. In float32 the sums run in another order: gaps of 1e-7 to 1e-5.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from faithcheck.models.architectures.base_models import Linear, layers
from faithcheck.models.transform import function_preserving_transform


def reorder(linear: Linear, order: Tensor) -> None:
    """The map's outputs, in blocks of equal size, in this order: ``(blocks,)`` indices."""
    for rows in (linear.weight, linear.bias):
        if rows is not None:
            rows.copy_(rows.reshape(len(order), -1)[order].reshape(rows.shape))


def reorder_inputs(linear: Linear, order: Tensor) -> None:
    """The map's inputs, in blocks of equal size, in this order."""
    reorder(Linear(linear.weight.T, None), order)


def cycle(size: int) -> Tensor:
    """A random order ``(size,)`` in which nothing keeps its place, if there are two or more."""
    places, order = torch.randperm(size), torch.empty(size, dtype=torch.int64)
    order[places] = places.roll(1)
    return order


@function_preserving_transform(
    "permutation.heads",
    where=lambda embedding_model: all(layer.key_value_heads > 1 for layer in layers(embedding_model)),
    why="the output projection sums over heads; queries that share keys and values move with them, as one group",
    lrp="every rule acts on each head alone, so that relevance is permuted with the heads, then summed over them",
)
def heads(embedding_model: nn.Module) -> nn.Module:
    """Each head, or group of heads that shares keys and values, in another's place."""
    for layer in layers(embedding_model):
        order = cycle(layer.key_value_heads)
        for linear in (layer.query, layer.key, layer.value):
            reorder(linear, order)
        reorder_inputs(layer.output, order)
    return embedding_model


@function_preserving_transform(
    "permutation.neurons",
    why="the feed-forward block's second map sums over its hidden neurons; a gate moves with what it gates",
    lrp="every rule acts on each neuron alone, so that relevance is permuted with the neurons, then summed over them",
)
def neurons(embedding_model: nn.Module) -> nn.Module:
    """Each feed-forward neuron in another's place."""
    for layer in layers(embedding_model):
        order = cycle(len(layer.up[0].weight))
        for linear in layer.up:
            reorder(linear, order)
        reorder_inputs(layer.down, order)
    return embedding_model
