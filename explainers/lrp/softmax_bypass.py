"""AttnLRP with the softmax bypassed in some layers: for one set of layers, or for many sets in a batch.

A bypassed softmax has constant attention weights, as in CP-LRP: the values receive all relevance, queries and keys
none. arXiv 2510.18810, §5 (Figure 2, Table A3).

Many sets of layers run as one batch: each example is repeated once for each set, and a mask of the rows says where the
softmax of a layer is bypassed. Both rules that the bypass changes compute every row both ways, and choose by the mask.
"""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.operation_call import OperationCall, Rule
from faithcheck.explainers.lrp.operation_table import operations_with
from faithcheck.explainers.lrp.operations import Trait
from faithcheck.explainers.lrp.rules.attention import constant_rule, softmax_rule
from faithcheck.explainers.modules import transformer_layers
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.case import Case

MOST_TOKENS = 4096
"""Up to how many tokens a pass has: sets of layers beyond that go into further passes, which bounds the memory."""


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


def attributions_with_bypassed_softmax(
    model: nn.Module, case: Case, sets: Sequence[Collection[int]], epsilon: float = 0.0
) -> Tensor:
    """The attributions of `attnlrp_with_bypassed_softmax` for each set of layers: ``(sets, batch, features)``.

    Raises:
        Unsupported: as `LRP.attribute`; or not every layer has exactly one softmax; or the first axis of attention
            weights does not count the examples. `attnlrp_with_bypassed_softmax` runs such a model.
        IndexError: a set names a layer that the model does not have.
    """
    depth = len(transformer_layers(model))
    if any(not 0 <= layer < depth for layers in sets for layer in layers):
        raise IndexError(f"layers are counted from 0 to {depth - 1}")
    at_once = max(1, MOST_TOKENS // case.shape.numel())
    parts = (sets[start : start + at_once] for start in range(0, len(sets), at_once))
    return torch.cat([_attributions(model, case, part, epsilon, depth) for part in parts])


def _attributions(model: nn.Module, case: Case, sets: Sequence[Collection[int]], epsilon: float, depth: int) -> Tensor:
    """The attributions for each set of layers, ``(sets, batch, features)``, by one forward and one backward pass."""
    examples = torch.arange(len(case.inputs), device=case.inputs.device)
    bypass = BypassByRow(sets, depth)
    stacked = LRP("attnlrp_bypassing_by_row", {**ATTNLRP, **bypass.rules()}, epsilon)
    attribution = stacked.attribute(model, case.select(examples.repeat(len(sets))))
    if len(bypass.softmaxes) < depth:
        raise Unsupported(f"expected one softmax in each of {depth} layers, but only {len(bypass.softmaxes)} ran")
    return attribution.view(len(sets), *case.shape)


class BypassByRow:
    """AttnLRP's rules for one forward pass, in which the rows of a batch bypass the softmax in different layers.

    Args:
        sets: the layers that bypass their softmax, for each part of the batch; the parts are copies of each other.
        depth: the number of the model's layers.
    """

    def __init__(self, sets: Sequence[Collection[int]], depth: int) -> None:
        self.sets, self.depth = sets, depth
        self.softmaxes: dict[Any, int] = {}  # autograd node of a softmax → its layer

    def rules(self) -> dict[str, Rule]:
        """The rules that differ from AttnLRP's: those that depend on which operands carry relevance."""
        products = (*operations_with(Trait.MATRIX_PRODUCT), "mul", "div", "rdiv")
        return {"softmax": self.softmax, **{name: partial(self.product, ATTNLRP[name]) for name in products}}

    def softmax(self, call: OperationCall) -> Tensor:
        """A constant in the rows that bypass this layer's softmax, Eq. 5 in the others."""
        layer = len(self.softmaxes)
        if layer == self.depth:
            raise call.unsupported(f"expected one softmax in each of {self.depth} layers, but this is a further one")
        weights: Tensor = softmax_rule(call)
        weights = torch.where(self.rows(call, {layer}, weights), weights.detach(), weights)
        self.softmaxes[weights.grad_fn] = layer
        return weights

    def product(self, rule: Rule, call: OperationCall) -> Any:
        """A product by its rule; where attention weights bypass their softmax, they are a constant operand."""
        operands, result = call.operands_with_relevance(), rule(call)
        for number, operand in enumerate(operands) if len(operands) == 2 else ():
            if layers := self.layers_of_weights(operand):
                constant = call.with_operands([x.detach() if i == number else x for i, x in enumerate(operands)])
                result = torch.where(self.rows(call, layers, result), rule(constant), result)
        return result

    def layers_of_weights(self, operand: Tensor) -> set[int]:
        """The layers through whose softmax a tensor depends on the inputs; none if it depends on them otherwise."""
        nodes, seen, layers = [operand.grad_fn], set[Any](), set[int]()
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node in self.softmaxes:
                layers.add(self.softmaxes[node])
            elif node.next_functions:
                nodes += [below for below, _ in node.next_functions]
            else:  # the explained inputs
                return set()
        return layers

    def rows(self, call: OperationCall, layers: Collection[int], value: Tensor) -> Tensor:
        """Which rows of a value bypass the softmax of all these layers, ``(rows, 1, …)`` bool.

        Raises:
            Unsupported: the first axis does not count the examples, so that the copies of an example differ.
        """
        is_stacked = len(value) % len(self.sets) == 0
        parts = torch.unflatten(value.detach(), 0, (len(self.sets), -1)) if is_stacked else None
        # Copies differ by round-off at most; rows of another axis differ in their first digits.
        if parts is None or not torch.allclose(parts[0], parts[-1], rtol=1e-2, atol=1e-5, equal_nan=True):
            raise call.unsupported("its first axis does not count the examples")
        bypassed = torch.tensor([all(layer in chosen for layer in layers) for chosen in self.sets])
        rows = bypassed.to(value.device).repeat_interleave(len(value) // len(self.sets))
        return rows.view(-1, *(1,) * (value.dim() - 1))
