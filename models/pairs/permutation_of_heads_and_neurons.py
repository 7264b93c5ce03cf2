"""Permutations of the heads of an attention layer, and of the neurons of a feed-forward block.

Why the function stays the same: the output projection sums over heads, the second feed-forward map sums over neurons,
and every operation before these sums acts on each head and on each neuron alone.

Why AttnLRP and CP-LRP stay the same, for every ε:

1. Every LRP rule acts on each head and on each neuron alone, too.
2. A permutation P before and P⁻¹ behind therefore permutes the values and modified gradients in between, and changes
   nothing else.

In float32 the sums run in another order: gaps of 1e-7 to 1e-5.
"""

import torch
from torch import Tensor, nn

from faithcheck.models.architectures.base_models import layers
from faithcheck.models.architectures.transformer_layer import LinearView
from faithcheck.models.transform import every_layer, function_preserving_transform


def reorder(linear: LinearView, order: Tensor) -> None:
    """Reorder the map's outputs in blocks of equal size; ``order`` has the blocks' indices ``(blocks,)``."""
    for rows in (linear.weight, linear.bias):
        if rows is not None:
            rows.copy_(rows.reshape(len(order), -1)[order].reshape(rows.shape))


def reorder_inputs(linear: LinearView, order: Tensor) -> None:
    reorder(LinearView(linear.weight.T, None), order)


def cycle(size: int) -> Tensor:
    """A random permutation ``(size,)`` in one cycle: for two or more elements, each changes its place."""
    places, order = torch.randperm(size), torch.empty(size, dtype=torch.int64)
    order[places] = places.roll(1)
    return order


@function_preserving_transform(
    "permutation.heads",
    requires=[every_layer("at least two heads of keys and values", lambda layer: layer.key_value_heads > 1)],
    why="the output projection sums over heads; query heads that share keys and values are permuted as one group",
    lrp="every rule acts on each head alone, so that relevance is permuted with the heads, then summed over them",
)
def heads(embedding_model: nn.Module) -> nn.Module:
    for layer in layers(embedding_model):
        order = cycle(layer.key_value_heads)
        for linear in (layer.query, layer.key, layer.value):
            reorder(linear, order)
        reorder_inputs(layer.output, order)
    return embedding_model


@function_preserving_transform(
    "permutation.neurons",
    why="the feed-forward block's second map sums over its hidden neurons; a gate is permuted with its neuron",
    lrp="every rule acts on each neuron alone, so that relevance is permuted with the neurons, then summed over them",
)
def neurons(embedding_model: nn.Module) -> nn.Module:
    for layer in layers(embedding_model):
        order = cycle(len(layer.up[0].weight))
        for linear in layer.up:
            reorder(linear, order)
        reorder_inputs(layer.down, order)
    return embedding_model
