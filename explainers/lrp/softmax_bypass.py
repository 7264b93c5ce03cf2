"""AttnLRP with the softmax bypassed in some layers: for one set of layers, or for many sets at once.

A bypassed softmax has constant attention weights, as in CP-LRP: the values receive all relevance, queries and keys
none. arXiv 2510.18810, §5 (Figure 2, Table A3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._pytree import tree_map

from faithcheck.explainers.fast.linear_map import constant_linear
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.engine import LRP, Propagation
from faithcheck.explainers.lrp.operation_call import OperationCall, Rule, tensors_with_relevance
from faithcheck.explainers.lrp.operations import Trait, operations_with
from faithcheck.explainers.lrp.row_recorder import NoClosedForm
from faithcheck.explainers.lrp.rules.attention import constant_rule, softmax_rule
from faithcheck.explainers.lrp.stacked_gradients import attributions_by_closed_forms
from faithcheck.explainers.modules import transformer_layers
from faithcheck.explainers.protocol import Unsupported, per_feature
from faithcheck.models.case import Case

Gradients: TypeAlias = dict[frozenset[int], Tensor]
"""The gradient at one place of the model, for each set of bypassed layers above it."""

LARGE = 2**16
"""Numbers in the inputs from which backward passes one by one are faster than a batched one: torch's vmap copies what
the gradients share, such as attention weights, for each of them, and has no linear maps by oneDNN."""


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


@dataclass
class AttentionOutput:
    """A layer's attention output, with autograd's graph cut above it.

    Attributes:
        above: the leaf from which the layer goes on.
        plain: the same value, which depends on the layer's input through the values and the attention weights.
        bypassed: the same value, which depends on it through the values alone.
    """

    above: Tensor
    plain: Tensor
    bypassed: Tensor


class BypassPropagation(Propagation):
    """A propagation that computes each attention output with and without the softmax bypassed.

    What depends on the explained inputs through a softmax alone is attention weights. The first operation on attention
    weights and other operands that carry relevance, the product with the values, gives the attention output. Arguments
    as of `Propagation`.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.calls_every_rule = True  # `apply_rule` must see every operation on attention weights
        self.weights: set[Any] = set()  # the autograd nodes of all attention weights
        self.attention_outputs: list[AttentionOutput] = []
        self.is_large = self.point.numel() >= LARGE
        if self.is_large:  # no batched backward pass, in which `constant_linear` could not look at values
            self.linear = partial(constant_linear, False)

    def apply_rule(self, rule: Rule, call: OperationCall) -> Any:
        """Compute a call by its rule; an attention output is computed twice, and cut off.

        Raises:
            Unsupported: an operation writes an attention output to one of its operands.
        """
        are_weights = [x.grad_fn in self.weights for x in call.operands_with_relevance()]
        if any(are_weights) and not all(are_weights):
            return self.attention_output(rule, call)
        result = super().apply_rule(rule, call)
        if call.name == "softmax" or any(are_weights):
            self.weights.update([x.grad_fn for x in tensors_with_relevance(call.args if result is None else result)])
        return result

    def attention_output(self, rule: Rule, call: OperationCall) -> Tensor:
        """Compute an attention output twice; autograd sees a copy that depends on neither."""
        if call.name in operations_with(Trait.IN_PLACE):
            raise call.unsupported("it writes to its operand: bypass one set of layers at a time")
        args, kwargs = tree_map(self.without_weights, (call.args, call.kwargs))
        plain: Tensor = super().apply_rule(rule, call)
        bypassed = super().apply_rule(rule, replace(call, args=args, kwargs=kwargs))
        above = plain.detach().requires_grad_()
        self.attention_outputs.append(AttentionOutput(above, plain, bypassed))
        return above.clone()  # a model may write to it, and autograd forbids writes to a leaf

    def without_weights(self, value: Any) -> Any:
        """The value; attention weights are held constant."""
        return value.detach() if isinstance(value, Tensor) and value.grad_fn in self.weights else value


def attributions_with_bypassed_softmax(
    model: nn.Module, case: Case, sets: Sequence[Collection[int]], epsilon: float = 0.0
) -> Tensor:
    """The attributions of `attnlrp_with_bypassed_softmax` for each set of layers: ``(sets, batch, features)``.

    All sets share one forward pass, and backward passes as far as they agree in the layers above. The backward pass has
    closed forms where the model's operations have them and ε is 0 (`attributions_by_closed_forms`), else autograd.

    Raises:
        Unsupported: as `LRP.attribute`; or not every layer has exactly one softmax and one attention output; or
            relevance goes around a layer.
        IndexError: a set names a layer that the model does not have.
    """
    depth = len(transformer_layers(model))
    chosen = [frozenset(layers) for layers in sets]
    if any(not 0 <= layer < depth for layers in chosen for layer in layers):
        raise IndexError(f"layers are counted from 0 to {depth - 1}")
    method = attnlrp_with_bypassed_softmax((), epsilon)
    if epsilon == 0:
        try:
            return attributions_by_closed_forms(method, model, case, chosen, depth)
        except NoClosedForm:
            pass
    return attributions_by_autograd(method, model, case, chosen, depth)


def attributions_by_autograd(
    method: LRP, model: nn.Module, case: Case, chosen: Sequence[frozenset[int]], depth: int
) -> Tensor:
    """The attributions for each set of layers, ``(sets, batch, features)``, by autograd's backward passes.

    1. One forward pass, in which attention outputs are computed twice: with every softmax bypassed, and with none.
    2. Backward passes through each layer, from the last to the first, for all sets together. Sets that agree in all
       layers above share their gradients as far as the layer's attention output.

    Raises:
        Unsupported: see `attributions_with_bypassed_softmax`.
    """
    propagation, places = layer_inputs(model, case, method, BypassPropagation)
    assert isinstance(propagation, BypassPropagation)
    require_separate_layers(places, depth, propagation)
    gradients: Gradients = {frozenset(): torch.ones_like(places[-1])}
    one_by_one = propagation.is_large  # as the graph was made
    for layer in reversed(range(depth)):
        start, attention = places[layer + 1], propagation.attention_outputs[layer]
        around, at_output = backward(places[layer + 2], [start, attention.above], gradients, one_by_one)
        gradients = {}
        for bypass, output in enumerate((attention.plain, attention.bypassed)):
            above = {
                layers - set(range(layer)): layers - set(range(layer + 1))
                for layers in chosen
                if (layer in layers) == bypass
            }
            given = {layers: at_output[above[layers]] for layers in above}
            (through,) = backward(output, [start], given, one_by_one)
            gradients |= {layers: through[layers] + around[above[layers]] for layers in above}
    (at_inputs,) = backward(places[1], places[:1], gradients, one_by_one)
    return torch.stack([per_feature(case.inputs * at_inputs[layers]) for layers in chosen])


def backward(end: Tensor, starts: Sequence[Tensor], gradients: Gradients, one_by_one: bool) -> list[Gradients]:
    """The gradients at each of ``starts`` from the gradients at ``end``, in one backward pass or one by one."""
    if not gradients:
        return [{} for _ in starts]

    def at_starts(gradient: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(end, starts, gradient, retain_graph=True, materialize_grads=True)

    of_each: Iterable[Any]
    if one_by_one:
        of_each = zip(*map(at_starts, gradients.values()), strict=True)
    else:
        of_each = torch.func.vmap(at_starts)(torch.stack(list(gradients.values())))
    return [dict(zip(gradients, at_start, strict=True)) for at_start in of_each]


def layer_inputs(
    model: nn.Module, case: Case, method: LRP, mode: type[Propagation] = Propagation
) -> tuple[Propagation, list[Tensor]]:
    """One forward pass under a method: the mode after it, and the places between the model's layers.

    The places are the explained inputs, the input of each layer, and the explained output.

    Raises:
        Unsupported: a layer does not run once, or relevance enters it in other arguments than the first.
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
        propagation, output = method.propagate(model, case, mode)
    finally:
        handle.remove()
    return propagation, [propagation.point, *points, output]


def require_separate_layers(places: Sequence[Tensor], layers: int, propagation: BypassPropagation) -> None:
    """Refuse a model whose layers cannot be bypassed in one graph.

    Raises:
        Unsupported: see `attributions_with_bypassed_softmax`.
    """
    outputs = propagation.attention_outputs
    ran, softmaxes = len(places) - 2, propagation.calls["softmax"]
    if not ran == softmaxes == len(outputs) == layers:
        raise Unsupported(
            f"expected one softmax and one attention output in each layer, but of {layers} layers {ran} ran, with "
            f"{softmaxes} softmaxes and {len(outputs)} attention outputs: bypass one set of layers at a time"
        )
    leaves = [propagation.point, *(output.above for output in outputs)]
    separate = separates(places[:1], places[1], leaves)
    for start, end, output in zip(places[1:], places[2:], outputs, strict=False):
        separate &= separates([start, output.above], end, leaves)
        separate &= all(separates([start], value, leaves) for value in (output.plain, output.bypassed))
    if not separate:
        raise Unsupported("relevance goes around a layer: bypass one set of layers at a time")


def separates(starts: Sequence[Tensor], end: Tensor, leaves: Sequence[Tensor]) -> bool:
    """Whether every path in the graph from ``end`` to one of the leaves goes through one of ``starts``."""
    nodes, visited = [end.grad_fn], {start.grad_fn for start in starts}
    while nodes:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        leaf = getattr(node, "variable", None)
        if any(leaf is x for x in leaves) and not any(leaf is x for x in starts):
            return False
        visited.add(node)
        nodes += [following for following, _ in node.next_functions]
    return True
