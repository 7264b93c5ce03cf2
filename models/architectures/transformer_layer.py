"""A uniform view of one Transformer layer: its weights, its modules, and what distinguishes it from other layers.

Transforms read and write weights through `LinearView`s and replace modules through `TransformerLayer.replace`, so they
need no module's name; the file of each family translates the names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True)
class LinearView:
    """A linear map's weight and bias as views of the model's parameters: writing to them changes the model."""

    weight: Tensor  # (outputs, inputs)
    bias: Tensor | None
    path: str = ""  # the module's name within its layer; empty if the map is only a part of a module

    def rows(self, start: int, stop: int) -> LinearView:
        """The view of the outputs from ``start`` to ``stop``."""
        return LinearView(self.weight[start:stop], None if self.bias is None else self.bias[start:stop])


class FoldableNorm(NamedTuple):
    """A norm whose output is read by linear maps alone, and these maps."""

    norm: Any
    maps: tuple[LinearView, ...]


@dataclass(frozen=True)
class TransformerLayer:
    """One Transformer layer. Transforms ask its attributes what the layer can do.

    A head owns consecutive rows of ``query``, ``key`` and ``value``, and columns of ``output``. In a post-LayerNorm
    model the residual connection reads the output of every norm but the last.
    """

    module: nn.Module
    attention: Any  # its attribute ``scaling`` is the factor of the attention logits
    activation: nn.Module  # of the feed-forward block
    query: LinearView
    key: LinearView
    value: LinearView
    output: LinearView
    query_key_value: LinearView | None  # the one module that computes all three; None if each has a module
    heads: int  # query heads
    up: tuple[LinearView, ...]  # into the hidden neurons: one map, or the gate and the gated map
    down: LinearView  # from the hidden neurons
    norms: tuple[FoldableNorm, ...]  # those whose output is read by linear maps alone
    rotary: bool  # queries and keys are rotated by their positions

    @property
    def fused(self) -> bool:
        """Whether one module computes queries, keys and values."""
        return self.query_key_value is not None

    @property
    def gated(self) -> bool:
        """Whether the feed-forward block multiplies a gate with a linear map, as SwiGLU does."""
        return len(self.up) == 2

    @property
    def key_value_heads(self) -> int:
        """The number of heads of keys and values: `heads`, or fewer if several queries share one."""
        return self.heads * len(self.key.weight) // len(self.query.weight)

    @property
    def queries_per_key(self) -> int:
        """How many query heads share each head of keys and values."""
        return self.heads // self.key_value_heads

    def replace(self, old: LinearView, new: nn.Module) -> None:
        """Put another module in the place of a view's module; `ValueError` if the view is only a part of one."""
        if not old.path:
            raise ValueError("a part of a fused map has no module of its own: replace `query_key_value`")
        self.module.set_submodule(old.path, new)

    def set_queries_per_key(self, count: int) -> None:
        """Tell the attention how many query heads share each head of keys and values."""
        assert hasattr(self.attention, "num_key_value_groups"), "transformers renamed num_key_value_groups"
        self.attention.num_key_value_groups = count


@torch.no_grad()
def linear_view(layer: nn.Module, path: str) -> LinearView:
    """The view of a `torch.nn.Linear` or of a `Conv1D`, which stores its weight transposed; ``path`` is its name."""
    module: Any = layer.get_submodule(path)
    weight, bias = module.weight.detach(), None if module.bias is None else module.bias.detach()
    return LinearView(weight.T if isinstance(module, Conv1D) else weight, bias, path)


def transformer_layer(
    layer: nn.Module,
    *,
    heads: int,
    attention: str,
    query: str = "",
    key: str = "",
    value: str = "",
    query_key_value: str = "",
    output: str,
    up: str,
    gate: str = "",
    down: str,
    activation: str,
    norm_before_attention: str = "",
    norm_before_feed_forward: str = "",
    norms: tuple[FoldableNorm, ...] = (),
    rotary: bool = False,
) -> TransformerLayer:
    """The view of a layer, from the names of its modules within it; the empty name: the layer has no such module.

    ``query_key_value`` is one module in the place of three. Only ``query``, ``key`` and ``value`` read the output of
    ``norm_before_attention``, and only ``gate`` and ``up`` that of ``norm_before_feed_forward``; ``norms`` are further
    ones that linear maps alone read.
    """
    fused = linear_view(layer, query_key_value) if query_key_value else None
    if fused is None:
        attention_maps = (linear_view(layer, query), linear_view(layer, key), linear_view(layer, value))
    else:
        size = len(fused.weight) // 3
        attention_maps = (fused.rows(0, size), fused.rows(size, 2 * size), fused.rows(2 * size, 3 * size))
    feed_forward_maps = tuple(linear_view(layer, path) for path in (gate, up) if path)
    before = ((norm_before_attention, attention_maps), (norm_before_feed_forward, feed_forward_maps))
    return TransformerLayer(
        layer,
        layer.get_submodule(attention),
        layer.get_submodule(activation),
        *attention_maps,
        output=linear_view(layer, output),
        query_key_value=fused,
        heads=heads,
        up=feed_forward_maps,
        down=linear_view(layer, down),
        norms=(*(FoldableNorm(layer.get_submodule(path), maps) for path, maps in before if path), *norms),
        rotary=rotary,
    )


def as_module(view: LinearView) -> nn.Linear:
    """A new `torch.nn.Linear` with a copy of these weights."""
    outputs, inputs = view.weight.shape
    module = nn.Linear(inputs, outputs, view.bias is not None, device="meta")  # meta: no weights are drawn in vain
    module.weight = nn.Parameter(view.weight.clone())
    if view.bias is not None:
        module.bias = nn.Parameter(view.bias.clone())
    return module
