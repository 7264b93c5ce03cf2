"""The closed forms of a forward pass under AttnLRP: a propagation that records them.

An operation has one if it maps each token by itself, see `row_steps`, or is a part of attention: a product QKᵀ, what
scales or masks it, its softmax, and the product with V. Its result is cut off from autograd's graph. Any other
operation runs as in every propagation, and autograd gives the gradients at the cut tensors that it uses: a model's
output is read so, from the last tensor that still has a row for each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from faithcheck.explainers.fast.linear_map import constant_linear
from faithcheck.explainers.lrp.engine import Propagation
from faithcheck.explainers.lrp.operation_call import HOLDING_NO_TENSOR, OperationCall, Rule
from faithcheck.explainers.lrp.operations import Trait, operations_with
from faithcheck.explainers.lrp.row_layout import NUMBERS, RowLayout, moved_columns
from faithcheck.explainers.lrp.row_steps import Attention, Elementwise, LayerNorm, LinearMap, MovedColumns, Node, Step
from faithcheck.explainers.refused_modules import is_plain

IN_PLACE = operations_with(Trait.IN_PLACE)
MOVING = operations_with(Trait.REARRANGEMENT, without=(Trait.CHOICE, Trait.FILLS))
ELEMENTWISE = (
    operations_with(Trait.ONE_VALUE)
    | operations_with(Trait.MODULE)
    | operations_with(Trait.ELEMENTWISE_PRODUCT)
    | operations_with(Trait.ELEMENTWISE_AFFINE)
    | {"masked_fill", "where", "rms_norm"}
)
"""Operations whose rule has one factor for each value, if their result has the operand's shape."""
MULTIPLES = operations_with(Trait.ELEMENTWISE_PRODUCT, Trait.ELEMENTWISE_AFFINE, without=(Trait.IN_PLACE,))
"""Products and quotients, whose gradient is the number that the operand is multiplied by."""
WEIGHT_OF = {"linear": (1, "weight"), "addmm": (2, "mat2")}
"""The linear maps of the last axis: position and name of their weight."""


class NoClosedForm(Exception):
    """The model has an operation without a closed form below its last attention."""


@dataclass(frozen=True)
class Rows:
    """A tensor with rows."""

    node: Node
    layout: RowLayout


@dataclass(frozen=True)
class Logits:
    """Attention logits, scale ⊙ QKᵀ + constants."""

    query: Rows
    key: Rows
    q: Tensor
    k: Tensor
    scale: Tensor | float = 1.0


@dataclass(frozen=True)
class Weights:
    """Attention weights, the softmax of logits."""

    logits: Logits
    values: Tensor
    number: int


Known: TypeAlias = Rows | Logits | Weights


class RowRecorder(Propagation):
    """A propagation that records closed forms, in the limit ε → 0. Arguments as of `Propagation`.

    Attributes:
        steps: the closed forms, in order.
        read: the tensors with rows that operations without a closed form use, by node, with their layouts.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.calls_every_rule = True
        self.steps: list[Step] = []
        self.read: dict[Node, tuple[Tensor, RowLayout]] = {}
        self.rows = (self.point.shape[0], self.point.shape[1])
        axes = tuple(axis for axis in (0, 1) if self.rows[axis] > 1)
        self._made: dict[Any, Known] = {None: Rows(0, RowLayout((*self.point.shape,), axes, self.rows))}
        self._nodes = 1
        self._moved: dict[Any, tuple[RowLayout, Tensor] | None] = {}
        self.linear = partial(constant_linear, False)

    def apply_rule(self, rule: Rule, call: OperationCall) -> Any:
        """Compute a call by its closed form, or by its rule.

        Raises:
            NoClosedForm: an operation writes to its operand, or uses attention weights or logits in another way.
        """
        if not torch.is_grad_enabled():  # the model computes a constant
            return super().apply_rule(rule, call)
        if call.name in IN_PLACE:
            raise NoClosedForm
        operands = call.operands_with_relevance()
        known = [self._made.get(x.grad_fn) for x in operands]
        rows = [x for x in known if isinstance(x, Rows)]
        closed = self.on_rows(rule, call, rows) if len(rows) == len(known) else self.on_pairs(rule, call, known)
        if closed is not None:
            return closed
        result = rule(call)
        if callable(result):
            return self.apply_steps(result)
        if any(result is x for x in operands):  # dropout in eval mode
            return result
        if any(isinstance(x, Logits | Weights) for x in known):
            raise NoClosedForm
        self.read |= {x.node: (tensor, x.layout) for tensor, x in zip(operands, known, strict=True) if x in rows}
        return result

    def on_rows(self, rule: Rule, call: OperationCall, operands: Sequence[Rows]) -> Any:
        """The result of an operation on tensors with rows; None if it has no closed form."""
        if call.name == "matmul" and len(operands) == 2:
            return self.logits(call, *operands)
        if call.name in WEIGHT_OF and len(operands) == 1:
            return self.linear_map(call, *operands)
        if call.name == "layer_norm" and len(operands) == 1:
            return self.layer_norm(call, *operands)
        if call.name in ELEMENTWISE:
            return self.elementwise(rule, call, operands)
        return self.moved(call, operands) if call.name in MOVING else None

    def on_pairs(self, rule: Rule, call: OperationCall, operands: Sequence[Known | None]) -> Any:
        """The result of an operation on attention logits or weights; None if it has no closed form."""
        if len(operands) == 1 and isinstance(operands[0], Logits):
            logits = operands[0]
            if call.name == "softmax":
                return self.weights(call, logits)
            return self.scaled(rule, call, logits) if call.name in ELEMENTWISE else None
        if call.name == "matmul" and len(operands) == 2:
            weights, value = operands
            if isinstance(weights, Weights) and isinstance(value, Rows):
                return self.attention(call, weights, value)
        return None

    def cut(self, value: Tensor, known: Known) -> Tensor:
        """The value, without its history."""
        leaf = value.detach().requires_grad_()
        with torch.enable_grad():
            result = leaf.view_as(leaf)  # the engine takes a leaf for a parameter
        self._made[result.grad_fn] = known
        return result

    def cut_rows(self, value: Tensor, layout: RowLayout) -> tuple[Tensor, Node]:
        """The value of a new tensor with rows, without its history."""
        node, self._nodes = self._nodes, self._nodes + 1
        return self.cut(value, Rows(node, layout)), node

    def linear_map(self, call: OperationCall, x: Rows) -> Tensor | None:
        """A linear map of the last axis, by a constant weight."""
        weight = call.argument(*WEIGHT_OF[call.name])
        (operand,) = call.operands_with_relevance()
        maps_operand = operand is call.argument(WEIGHT_OF[call.name][0] - 1, "input")
        if not (x.layout.ends_with_columns and maps_operand and is_plain(weight)) or {"alpha", "beta"} & {*call.kwargs}:
            return None
        weight = weight if call.name == "linear" else weight.mT
        with torch.no_grad():
            result, node = self.cut_rows(call.value(), x.layout.with_columns(len(weight)))
        self.steps.append(LinearMap(node, (x.node,), weight))
        return result

    def layer_norm(self, call: OperationCall, x: Rows) -> Tensor | None:
        """LayerNorm of the last axis."""
        if not x.layout.ends_with_columns or len(call.argument(1, "normalized_shape")) > 1:
            return None
        operand, shape = call.argument(0, "input").detach(), call.argument(1, "normalized_shape")
        gamma, beta, eps = call.argument(2, "weight"), call.argument(3, "bias"), call.argument(4, "eps", 1e-5)
        value, _, inverse_sigma = torch.native_layer_norm(operand, shape, gamma, beta, eps)
        result, node = self.cut_rows(value, x.layout)
        self.steps.append(LayerNorm(node, (x.node,), gamma, x.layout.with_columns(1).matrix(inverse_sigma)))
        return result

    def elementwise(self, rule: Rule, call: OperationCall, operands: Sequence[Rows]) -> Any:
        """An operation value by value, with the factors of its rule."""
        layout = operands[0].layout
        found = factors(rule, call) if all(x.layout == layout for x in operands) else None
        if found is None:
            return None
        result, node = self.cut_rows(found[0], layout)
        matrices = tuple(layout.matrix(x) if isinstance(x, Tensor) else x for x in found[1])
        self.steps.append(Elementwise(node, tuple(x.node for x in operands), matrices))
        return result

    def moved(self, call: OperationCall, operands: Sequence[Rows]) -> Any:
        """An operation that moves values, to one tensor or to several."""
        with torch.no_grad():
            value = call.value()
        of, layouts = call.operands_with_relevance(), [x.layout for x in operands]
        if any(value is x for x in of):
            return value
        values = [value] if isinstance(value, Tensor) else list(value)
        if not all(isinstance(x, Tensor) and x.dtype == of[0].dtype for x in values):
            return None
        found = [
            self.moved_columns(call, layouts, None if isinstance(value, Tensor) else i) for i in range(len(values))
        ]
        results = []
        for part, columns in zip(values, found, strict=True):
            if columns is None:
                return None
            if len(operands) == 1 and columns[1].equal(torch.arange(layouts[0].columns, device=columns[1].device)):
                results.append(self.cut(part, Rows(operands[0].node, columns[0])))  # the same matrix
                continue
            result, node = self.cut_rows(part, columns[0])
            widths = tuple(layout.columns for layout in layouts)
            self.steps.append(MovedColumns(node, tuple(x.node for x in operands), widths, columns[1]))
            results.append(result)
        return results[0] if isinstance(value, Tensor) else type(value)(results)

    def moved_columns(
        self, call: OperationCall, layouts: Sequence[RowLayout], part: int | None
    ) -> tuple[RowLayout, Tensor] | None:
        """`row_layout.moved_columns` of one result of a call; layers that make the same call share it."""

        def operation(tensors: list[Tensor]) -> Any:
            numbered = call.with_operands(tensors)
            args, kwargs = tree_map(without_number, (numbered.args, numbered.kwargs))
            value = call.operation(*args, **kwargs)
            return value if part is None else value[part]

        operands = call.operands_with_relevance()
        strides = tuple(x.stride() for x in operands)
        key = call.name, part, tuple(layouts), strides, arguments_key((call.args, (*call.kwargs.items(),)))
        if key not in self._moved:
            self._moved[key] = moved_columns(operation, operands, layouts)
        return self._moved[key]

    def logits(self, call: OperationCall, query: Rows, key: Rows) -> Tensor | None:
        """QKᵀ of heads: ``(batch, heads, tokens, width)`` times ``(batch, heads, width, tokens)``."""
        q, k = (x.detach() for x in call.operands_with_relevance())
        k = k.mT
        if not (has_heads(query.layout, 2) and has_heads(key.layout, 3) and q.shape == k.shape):
            return None
        with torch.no_grad():
            return self.cut(call.value(), Logits(query, key, q, k))

    def scaled(self, rule: Rule, call: OperationCall, logits: Logits) -> Any:
        """Logits that are multiplied by constants, or masked."""
        found = factors(rule, call)
        if found is None:
            return None
        (factor,) = found[1]
        return self.cut(found[0], Logits(logits.query, logits.key, logits.q, logits.k, logits.scale * factor))

    def weights(self, call: OperationCall, logits: Logits) -> Tensor | None:
        """The softmax of logits over the keys."""
        with torch.no_grad():
            value = call.value()
        (operand,) = call.operands_with_relevance()
        if call.argument(1, "dim") not in (-1, 3) or value.dtype != operand.dtype:
            return None
        return self.cut(value, Weights(logits, value.detach(), call.number))

    def attention(self, call: OperationCall, weights: Weights, value: Rows) -> Tensor | None:
        """The attention output, AV."""
        v, of = call.operands_with_relevance()[1].detach(), weights.logits
        if not has_heads(value.layout, 2) or v.shape != of.q.shape:
            return None
        with torch.no_grad():
            output = call.value()
        result, node = self.cut_rows(output, value.layout)
        nodes = of.query.node, of.key.node, value.node
        self.steps.append(Attention(node, *nodes, of.q, of.k, v, output, weights.values, of.scale, weights.number))
        return result


def arguments_key(value: Any) -> Any:
    """Equal for calls with equal arguments, whatever their operands with relevance; unequal if one has constants."""
    if isinstance(value, tuple | list):
        return tuple(map(arguments_key, value))
    if isinstance(value, Tensor) and value.requires_grad:
        return None
    return repr(value) if type(value) in HOLDING_NO_TENSOR else object()


def without_number(x: Any) -> Any:
    """In place of a constant's values a number that no row and no column has; anything else as it is."""
    return torch.full_like(x, -1, dtype=NUMBERS) if isinstance(x, Tensor) and x.is_floating_point() else x


def has_heads(layout: RowLayout, tokens: int) -> bool:
    """Whether a layout has four axes, the first of the examples, and this one of the tokens."""
    return len(layout.shape) == 4 and layout.row_axes == tuple(a for a in (0, tokens) if layout.shape[a] > 1)


def factors(rule: Rule, call: OperationCall) -> tuple[Tensor, tuple[Tensor | float, ...]] | None:
    """The value of an operation value by value, and for each operand the factor of its rule's gradient.

    A factor that is the same everywhere is a number. None if value and operands differ in shape.
    """
    operands = call.operands_with_relevance()
    if call.name in MULTIPLES and len(operands) == 1 and isinstance(other := call.argument(1, "other"), int | float):
        with torch.no_grad():
            return call.value(), (float(call.operation(operands[0].new_ones(()), other)),)
    if len(operands) > 1:  # one may depend on another
        operands = [x.detach().requires_grad_() for x in operands]
        call = call.with_operands(operands)
    value = rule(call)
    if not isinstance(value, Tensor) or any(value.shape != x.shape for x in operands) or not value.requires_grad:
        return None
    ones = torch.ones((), dtype=value.dtype, device=value.device).expand_as(value)
    found = torch.autograd.grad(value, operands, ones)
    return value.detach(), tuple(map(as_number, found))


def as_number(factor: Tensor) -> Tensor | float:
    """The number that all values of a tensor are equal to; the tensor if they are not."""
    distinct = factor[tuple(slice(None) if stride else 0 for stride in factor.stride())]
    few = distinct.reshape(-1)[:16]
    return float(few[0]) if (few == few[0]).all() and (distinct == few[0]).all() else factor
