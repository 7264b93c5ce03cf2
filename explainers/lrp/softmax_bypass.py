"""AttnLRP with the softmax bypassed in some layers: one explainer a set of layers, or many sets at once.

Where the softmax is bypassed, attention weights are constants, as in CP-LRP: the values take all relevance, queries and
keys none. arXiv 2510.18810, §5 (Figure 2, Table A3).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.rules import ATTNLRP, OperationCall, constant_rule, gradient_rule, tensors_with_relevance
from faithcheck.explainers.protocol import Unsupported, per_feature
from faithcheck.models.case import Case


def attnlrp_with_bypassed_softmax(layers: Collection[int], epsilon: float = 0.0) -> LRP:
    """AttnLRP that bypasses the softmax in these layers, counted from 0, the one next to the inputs.

    None of them is AttnLRP; all of them is CP-LRP.
    """

    def softmax(call: OperationCall) -> Any:
        return constant_rule(call) if call.number in layers else gradient_rule(call)

    name = f"attnlrp_bypassing_{'_'.join(map(str, sorted(layers)))}" if layers else "attnlrp"
    return LRP(name, {**ATTNLRP, "softmax": softmax}, epsilon)


def layerwise_sets(layers: int) -> dict[str, list[frozenset[int]]]:
    """The three series of Figure 2 for a model of so many layers, each in the order of Table A3, k = 1 … layers."""
    return {
        "first k layers": [frozenset(range(k)) for k in range(1, layers + 1)],
        "last k layers": [frozenset(range(layers - k, layers)) for k in range(1, layers + 1)],
        "layer k alone": [frozenset({k}) for k in range(layers)],
    }


def blocks(model: nn.Module) -> list[nn.Module]:
    """The layers of a Transformer, in order: the entries of its first `nn.ModuleList` that is not inside another.

    Raises:
        Unsupported: it has none.
    """
    found = next((module for module in model.modules() if isinstance(module, nn.ModuleList)), None)
    if found is None:
        raise Unsupported(
            f"{type(model).__name__} has no nn.ModuleList of layers: bypass one set a call, or take finite_mask_gate"
        )
    return list(found)


Gradients: TypeAlias = dict[frozenset[int], Tensor]


def attributions_with_bypassed_softmax(
    model: nn.Module, case: Case, sets: Sequence[Collection[int]], epsilon: float = 0.0
) -> Tensor:
    """What `attnlrp_with_bypassed_softmax` gives for each set of layers: ``(sets, batch, features)``.

    Relevance goes down layer by layer, for all sets in one batched backward pass a layer. Only two forward passes are
    run, one with every softmax bypassed and one with none, and sets that agree in all layers above share their way.

    Raises:
        Unsupported: as `LRP.attribute`; or not one softmax in each layer; or relevance goes around a layer.
        IndexError: a set names a layer that the model does not have.
    """
    depth = len(blocks(model))
    chosen = [frozenset(layers) for layers in sets]
    if any(not 0 <= layer < depth for layers in chosen for layer in layers):
        raise IndexError(f"layers are counted from 0 to {depth - 1}")
    graphs = [
        layer_inputs(model, case, attnlrp_with_bypassed_softmax(layers, epsilon)) for layers in ((), range(depth))
    ]
    # At the output of a layer: the gradient for each choice that the sets make in the layers above it.
    gradients: Gradients = {frozenset(): torch.ones_like(graphs[0][-1])}
    for layer in reversed(range(depth)):
        below: Gradients = {}
        for bypass, points in enumerate(graphs):
            wanted = {
                layers - set(range(layer)): gradients[layers - set(range(layer + 1))]
                for layers in chosen
                if (layer in layers) == bypass
            }
            below |= backward(points[layer + 2], points[layer + 1], wanted)
        gradients = below
    at_inputs = backward(graphs[0][1], graphs[0][0], gradients)
    return torch.stack([per_feature(case.inputs * at_inputs[layers]) for layers in chosen])


def backward(end: Tensor, start: Tensor, gradients: Gradients) -> Gradients:
    """Take the gradients at ``end`` to ``start``, all in one batched backward pass."""
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
    layers, points = blocks(model), list[Tensor]()

    def cut(module: nn.Module, args: tuple[Any, ...]) -> Any:
        if not any(module is layer for layer in layers):
            return None
        if not args or len(tensors_with_relevance(args)) != 1 or not tensors_with_relevance(args[0]):
            raise Unsupported(f"{type(module).__name__}: expected relevance in its first argument and in no other")
        points.append(args[0].view_as(args[0]))  # a node of its own, so that a hook on the layer's input runs once
        return (points[-1], *args[1:])

    handle = register_module_forward_pre_hook(cut)
    try:
        propagation, output = method.propagate(model, case)
    finally:
        handle.remove()
    if not len(points) == len(layers) == propagation.calls["softmax"]:
        found = f"{len(layers)} layers, {len(points)} of them run, {propagation.calls['softmax']} softmaxes"
        raise Unsupported(f"expected one softmax a layer, found {found}: bypass one set a call")
    points = [propagation.point, *points, output]
    for start, end in pairwise(points):
        if not separates(start, end, propagation.point):
            raise Unsupported("relevance goes around a layer: bypass one set a call")
    return points


def separates(start: Tensor, end: Tensor, point: Tensor) -> bool:
    """Whether every way from ``end`` down to the leaf ``point`` leads through ``start``."""
    if start is point:
        return True
    nodes, seen = [end.grad_fn], {start.grad_fn}
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        if getattr(node, "variable", None) is point:
            return False
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
    return True
