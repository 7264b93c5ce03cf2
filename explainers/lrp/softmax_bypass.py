"""AttnLRP with the softmax bypassed in some layers: for one set of layers, or for many sets at once.

A bypassed softmax has constant attention weights, as in CP-LRP: the values receive all relevance, queries and keys
none. arXiv 2510.18810, §5 (Figure 2, Table A3).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from faithcheck.explainers.last_layer import outermost_layers
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.operation_call import OperationCall, tensors_with_relevance
from faithcheck.explainers.lrp.rules.attention import constant_rule, softmax_rule
from faithcheck.explainers.protocol import Unsupported, per_feature
from faithcheck.models.case import Case

Gradients: TypeAlias = dict[frozenset[int], Tensor]
"""The gradient at one place of the model, for each set of bypassed layers above it."""


def attnlrp_with_bypassed_softmax(layers: Collection[int], epsilon: float = 0.0) -> LRP:
    """AttnLRP that bypasses the softmax in these layers, counted from 0 at the inputs.

    With no layer it is AttnLRP, with all layers CP-LRP.
    """

    def softmax(call: OperationCall) -> Any:
        return constant_rule(call) if call.number in layers else softmax_rule(call)

    name = f"attnlrp_bypassing_{'_'.join(map(str, sorted(layers)))}" if layers else "attnlrp"
    return LRP(name, {**ATTNLRP, "softmax": softmax}, epsilon)


def figure_2_sets(layers: int) -> dict[str, list[frozenset[int]]]:
    """The three series of Figure 2 for a model of this many layers, each in the order of Table A3, k = 1 … layers."""
    return {
        "first k layers": [frozenset(range(k)) for k in range(1, layers + 1)],
        "last k layers": [frozenset(range(layers - k, layers)) for k in range(1, layers + 1)],
        "layer k alone": [frozenset({k}) for k in range(layers)],
    }


def transformer_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a Transformer, in order: the entries of its outermost first `nn.ModuleList`.

    Raises:
        Unsupported: the model has no `nn.ModuleList`.
    """
    layers = outermost_layers(model)
    if layers is None:
        raise Unsupported(
            f"{type(model).__name__} has no nn.ModuleList of layers: bypass one set of layers at a time with "
            "attnlrp_with_bypassed_softmax, or use finite_mask_gate"
        )
    return list(layers)


def attributions_with_bypassed_softmax(
    model: nn.Module, case: Case, sets: Sequence[Collection[int]], epsilon: float = 0.0
) -> Tensor:
    """The attributions of `attnlrp_with_bypassed_softmax` for each set of layers: ``(sets, batch, features)``.

    1. Two forward passes: one with every softmax bypassed, and one with none.
    2. One batched backward pass for each layer, from the last to the first, for all sets together. Sets that agree in
       all layers above share their gradients.

    Raises:
        Unsupported: as `LRP.attribute`; or not every layer has exactly one softmax; or relevance goes around a layer.
        IndexError: a set names a layer that the model does not have.
    """
    depth = len(transformer_layers(model))
    chosen = [frozenset(layers) for layers in sets]
    if any(not 0 <= layer < depth for layers in chosen for layer in layers):
        raise IndexError(f"layers are counted from 0 to {depth - 1}")
    graphs = [
        layer_inputs(model, case, attnlrp_with_bypassed_softmax(layers, epsilon)) for layers in ((), range(depth))
    ]
    gradients: Gradients = {frozenset(): torch.ones_like(graphs[0][-1])}
    for layer in reversed(range(depth)):
        at_layer_input: Gradients = {}
        for bypass, points in enumerate(graphs):
            wanted = {
                layers - set(range(layer)): gradients[layers - set(range(layer + 1))]
                for layers in chosen
                if (layer in layers) == bypass
            }
            at_layer_input |= backward(points[layer + 2], points[layer + 1], wanted)
        gradients = at_layer_input
    at_inputs = backward(graphs[0][1], graphs[0][0], gradients)
    return torch.stack([per_feature(case.inputs * at_inputs[layers]) for layers in chosen])


def backward(end: Tensor, start: Tensor, gradients: Gradients) -> Gradients:
    """The gradients at ``start`` from the gradients at ``end``, all in one batched backward pass."""
    if not gradients:
        return {}
    stacked = torch.stack(list(gradients.values()))
    (at_start,) = torch.autograd.grad(end, start, stacked, retain_graph=True, is_grads_batched=True)
    return dict(zip(gradients, at_start, strict=True))


def layer_inputs(model: nn.Module, case: Case, method: LRP) -> list[Tensor]:
    """The explained inputs, the input of each layer, and the explained output, of one forward pass under a method.

    Raises:
        Unsupported: see `attributions_with_bypassed_softmax`.
    """
    layers, points = transformer_layers(model), list[Tensor]()

    def keep_input(module: nn.Module, args: tuple[Any, ...]) -> Any:
        if not any(module is layer for layer in layers):
            return None
        if not args or len(tensors_with_relevance(args)) != 1 or not tensors_with_relevance(args[0]):
            raise Unsupported(f"{type(module).__name__}: expected relevance in its first argument and in no other")
        points.append(args[0].view_as(args[0]))  # its own autograd node, so that a hook on the layer's input runs once
        return (points[-1], *args[1:])

    handle = register_module_forward_pre_hook(keep_input)
    try:
        propagation, output = method.propagate(model, case)
    finally:
        handle.remove()
    if not len(points) == len(layers) == propagation.calls["softmax"]:
        raise Unsupported(
            f"expected one softmax in each layer, but of {len(layers)} layers {len(points)} ran, with "
            f"{propagation.calls['softmax']} softmaxes: bypass one set of layers at a time"
        )
    points = [propagation.point, *points, output]
    for start, end in pairwise(points):
        if not separates(start, end, propagation.point):
            raise Unsupported("relevance goes around a layer: bypass one set of layers at a time")
    return points


def separates(start: Tensor, end: Tensor, point: Tensor) -> bool:
    """Whether every path in the graph from ``end`` to the leaf ``point`` goes through ``start``."""
    if start is point:
        return True
    nodes, visited = [end.grad_fn], {start.grad_fn}
    while nodes:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        if getattr(node, "variable", None) is point:
            return False
        visited.add(node)
        nodes += [following for following, _ in node.next_functions]
    return True
