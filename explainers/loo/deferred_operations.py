"""The operations that a `DeferredTensor` records, and how the axes of their results lie in their operands.

Each function takes a call of an operation and returns its result as a value to be computed later, or None if this call
must be computed at once: with an operand of another kind of number, with an option that is not known here, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from faithcheck.explainers.loo.deferred import DeferredTensor, Positions, Value, computed
from faithcheck.explainers.lrp.operations import operation_name

Recorder = Callable[..., "Value | Sequence[Value] | None"]


def value_of(tensor: Tensor) -> Value:
    """The value of a tensor, deferred or ordinary."""
    return tensor.value if isinstance(tensor, DeferredTensor) else computed(tensor)


def aligned(shape: Sequence[int], result: Sequence[int], axis: int) -> int | None:
    """The axis of an operand that is broadcast to a result; None if the operand is the same along it."""
    own = axis - (len(result) - len(shape))
    return None if own < 0 or (shape[own] == 1 and result[axis] != 1) else own


def is_plain_number(tensor: Any, like: Tensor) -> bool:
    """Whether a tensor has the same kind of floating-point number, on the same device."""
    return isinstance(tensor, Tensor) and tensor.dtype == like.dtype and tensor.device == like.device


def element_by_element(func: Callable[..., Any], *args: Any, **options: Any) -> Value | None:
    """A function of one or two values, applied element by element and broadcast."""
    tensors = [x for x in args if isinstance(x, Tensor)]
    known = {"approximate", "alpha", "inplace"}
    if options.pop("inplace", False) or set(options) - known or not tensors or not tensors[0].is_floating_point():
        return None
    if not all(isinstance(x, int | float) or is_plain_number(x, tensors[0]) for x in args):
        return None
    shapes = [tuple(x.shape) for x in tensors]
    shape = tuple(torch.broadcast_shapes(*shapes))

    def compute(operands: Sequence[Tensor], _: Sequence[int]) -> Any:
        remaining = iter(operands)
        return func(*(next(remaining) if isinstance(x, Tensor) else x for x in args), **options)

    name, numbers = operation_name(func), [x for x in args if not isinstance(x, Tensor)]
    return Value(
        shape,
        tensors[0],
        name,
        [value_of(x) for x in tensors],
        compute,
        lambda axis: [aligned(each, shape, axis) for each in shapes],
        number_operand=numbers[0] if numbers else None,
    )


def unchanged(func: Any, x: Tensor, *args: Any, **options: Any) -> Value | None:
    """A conversion to the kind of number that a tensor has already."""
    wanted = {"float": torch.float32, "double": torch.float64}.get(operation_name(func))
    others = [*args, *options.values()] if wanted is None else [wanted]
    return value_of(x) if others == [x.dtype] or (wanted is None and not others) else None


def dropout(func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value | None:
    """Dropout in eval mode, which changes nothing."""
    return None if (training and p > 0) or inplace else value_of(input)


def linear(func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Value | None:
    """A linear map of the last axis."""
    if isinstance(weight, DeferredTensor) or isinstance(bias, DeferredTensor) or weight.dim() != 2 or input.dim() < 2:
        return None
    return linear_value(value_of(input), weight, bias)


def linear_value(x: Value, weight: Tensor, bias: Tensor | None) -> Value:
    """x Wᵀ + b."""
    shape = (*x.shape[:-1], len(weight))
    return Value(
        shape,
        x.like,
        "linear",
        [x],
        lambda operands, _: functional.linear(operands[0], weight, bias),
        lambda axis: None if axis == len(shape) - 1 else [axis],
    )


def addmm(func: Any, input: Tensor, mat1: Tensor, mat2: Tensor) -> Value | None:
    """A linear map of rows that were flattened, as in GPT-2: the map of the tensor before, flattened afterwards."""
    if not isinstance(mat1, DeferredTensor) or isinstance(mat2, DeferredTensor) or isinstance(input, DeferredTensor):
        return None
    rows = mat1.value
    if rows.name != "reshape" or not rows.operands or rows.operands[0].shape[-1] != rows.shape[-1] or input.dim() != 1:
        return None
    return reshaped(linear_value(rows.operands[0], mat2.t(), input), (rows.shape[0], mat2.shape[1]))


def layer_norm(
    func: Any,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Value | None:
    """A norm over the last axes."""
    if isinstance(weight, DeferredTensor) or isinstance(bias, DeferredTensor):
        return None
    first = input.dim() - len(normalized_shape)
    return Value(
        tuple(input.shape),
        input,
        "layer_norm",
        [value_of(input)],
        lambda operands, _: functional.layer_norm(operands[0], normalized_shape, weight, bias, eps),
        lambda axis: [axis] if axis < first else None,
    )


def softmax(func: Any, input: Tensor, dim: int, dtype: Any = None, **options: Any) -> Value | None:
    """A softmax along one axis."""
    if not isinstance(dim, int) or dtype not in (None, input.dtype) or set(options) - {"_stacklevel"}:
        return None
    normalised = dim % input.dim()
    return Value(
        tuple(input.shape),
        input,
        "softmax" if normalised == input.dim() - 1 else "softmax along another axis",
        [value_of(input)],
        lambda operands, _: torch.softmax(operands[0], normalised),
        lambda axis: None if axis == normalised else [axis],
    )


def mean(func: Any, input: Tensor, dim: int, keepdim: bool = False) -> Value | None:
    """A mean or a sum along one axis that stays, of length 1."""
    if not isinstance(dim, int) or not keepdim:
        return None
    pooled = dim % input.dim()
    return Value(
        (*input.shape[:pooled], 1, *input.shape[pooled + 1 :]),
        input,
        operation_name(func),
        [value_of(input)],
        lambda operands, _: func(operands[0], pooled, keepdim=True),
        lambda axis: None if axis == pooled else [axis],
    )


def matmul(func: Any, input: Tensor, other: Tensor) -> Value | None:
    """A product of matrices; of attention weights and values, if a softmax wrote the weights out, fused attention."""
    if min(input.dim(), other.dim()) < 2 or not is_plain_number(other, input) or not input.is_floating_point():
        return None
    a, b = value_of(input), value_of(other)
    return fused_attention(a, b) or matrix_product(a, b)


def matrix_product(a: Value, b: Value) -> Value:
    """A batched product of matrices."""
    shape = (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    last = len(shape) - 1

    def axes(axis: int) -> list[int | None]:
        if axis >= last - 1:
            return [None, len(b.shape) - 1] if axis == last else [len(a.shape) - 2, None]
        return [aligned(a.shape, shape, axis), aligned(b.shape, shape, axis)]

    return Value(shape, a.like, "matmul", [a, b], lambda operands, _: torch.matmul(*operands), axes)


def fused_attention(weights: Value, values: Value) -> Value | None:
    """softmax(s·QKᵀ + mask) V, written out, as one operation; None if this product is something else."""
    if weights.name != "softmax" or not weights.operands:
        return None
    logits, mask, scale = weights.operands[0], None, 1.0
    if logits.name == "add" and len(logits.operands) == 2 and logits.operands[1].tensor is not None:
        logits, mask = logits.operands
        if mask.tensor is None or not mask.tensor.isfinite().all():
            return None  # a row that may attend to nothing: NaN if written out, 0 if fused
    if logits.name in ("mul", "div") and len(logits.operands) == 1 and logits.number_operand is not None:
        scale = logits.number_operand if logits.name == "mul" else 1 / logits.number_operand
        logits = logits.operands[0]
    if logits.name != "matmul" or not len(logits.shape) == len(values.shape) == 4 or not logits.operands:
        return None
    query, keys = logits.operands
    if keys.name != "transpose" or keys.order != (0, 1, 3, 2) or not keys.operands:
        return None
    key = keys.operands[0]
    if not query.shape[:2] == key.shape[:2] == values.shape[:2] or (mask is not None and len(mask.shape) != 4):
        return None
    return attention_value(query, key, values, mask, scale=scale)


def attention(
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Value | None:
    """Fused attention."""
    if dropout_p > 0 or isinstance(attn_mask, DeferredTensor) or not query.dim() == key.dim() == value.dim() == 4:
        return None
    mask = None if attn_mask is None else computed(attn_mask)
    return attention_value(value_of(query), value_of(key), value_of(value), mask, is_causal=is_causal, **options)


def attention_value(query: Value, key: Value, values: Value, mask: Value | None, **options: Any) -> Value:
    """Fused attention of queries ``(batch, heads, queries, width)``."""
    shape = (*query.shape[:-1], values.shape[-1])
    operands = [query, key, values] if mask is None else [query, key, values, mask]

    def axes(axis: int) -> list[int | None] | None:
        if axis == 3 or (axis == 2 and options.get("is_causal")) or (axis == 1 and options.get("enable_gqa")):
            return None
        of_keys = None if axis == 2 else axis
        lies = [axis, of_keys, of_keys]
        return lies if mask is None else [*lies, aligned(mask.shape, (*shape[:3], key.shape[2]), axis)]

    def compute(tensors: Sequence[Tensor], _: Sequence[int]) -> Tensor:
        return functional.scaled_dot_product_attention(*tensors, **options)

    return Value(shape, query.like, "scaled_dot_product_attention", operands, compute, axes)


def transposed(func: Any, x: Tensor, first: int, second: int) -> Value:
    """Two axes swapped."""
    order = list(range(x.dim()))
    order[first], order[second] = order[second], order[first]
    return permuted(func, x, order)


def permuted(func: Any, x: Tensor, *order: Any) -> Value:
    """Axes in another order."""
    order = tuple(axis % x.dim() for axis in sizes_of(order))
    return Value(
        tuple(x.shape[axis] for axis in order),
        x,
        "transpose",
        [value_of(x)],
        lambda operands, _: operands[0].permute(order),
        lambda axis: [order[axis]],
        order=order,
    )


def sizes_of(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Sizes or axes that were given one by one, or as one sequence."""
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else tuple(sizes)


def reshape(func: Any, x: Tensor, *sizes: Any) -> Value | None:
    """The same numbers in another shape."""
    wanted = sizes_of(sizes)
    if not all(type(size) is int for size in wanted):
        return None
    known = prod(size for size in wanted if size != -1)
    return reshaped(value_of(x), tuple(prod(x.shape) // known if size == -1 else size for size in wanted))


def flatten(func: Any, x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Value:
    """Neighbouring axes made one."""
    start, end = start_dim % x.dim(), end_dim % x.dim() + 1
    return reshaped(value_of(x), (*x.shape[:start], prod(x.shape[start:end]), *x.shape[end:]))


def unsqueeze(func: Any, x: Tensor, dim: int) -> Value:
    """A new axis of length 1."""
    at = dim % (x.dim() + 1)
    return reshaped(value_of(x), (*x.shape[:at], 1, *x.shape[at:]))


def reshaped(x: Value, shape: tuple[int, ...]) -> Value:
    """A value in another shape: an axis stays if its length, and the number of values before it, stay."""
    if x.name == "reshape" and x.operands:
        x = x.operands[0]
    if x.shape == shape:
        return x

    def axes(axis: int) -> list[int | None] | None:
        for own, size in enumerate(x.shape):
            if size == shape[axis] and prod(x.shape[:own]) == prod(shape[:axis]):
                return [own]
        return None

    return Value(shape, x.like, "reshape", [x], lambda operands, part: operands[0].reshape(tuple(part)), axes)


def expand(func: Any, x: Tensor, *sizes: Any) -> Value:
    """Axes of length 1 repeated."""
    wanted = sizes_of(sizes)
    new = len(wanted) - x.dim()
    shape = tuple(x.shape[axis - new] if size == -1 else size for axis, size in enumerate(wanted))
    own = tuple(x.shape)
    return Value(
        shape,
        x,
        "expand",
        [value_of(x)],
        lambda operands, part: operands[0].expand(tuple(part)),
        lambda axis: [aligned(own, shape, axis)],
    )


def concatenate(func: Any, tensors: Sequence[Tensor], dim: int = 0) -> Value | None:
    """Tensors joined along one axis."""
    first = tensors[0]
    if not all(x.dim() == first.dim() and is_plain_number(x, first) for x in tensors):
        return None
    joined = dim % first.dim()
    length = sum(x.shape[joined] for x in tensors)
    return Value(
        (*first.shape[:joined], length, *first.shape[joined + 1 :]),
        first,
        "cat",
        [value_of(x) for x in tensors],
        lambda operands, _: torch.cat(list(operands), joined),
        lambda axis: None if axis == joined else [axis] * len(tensors),
    )


def split(func: Any, x: Tensor, split_size_or_sections: Any, dim: int = 0) -> list[Value] | None:
    """Parts along one axis, of one size or of several."""
    axis, sizes = dim % x.dim(), split_size_or_sections
    if isinstance(sizes, int):
        if x.shape[axis] % sizes:
            return None
        sizes = [sizes] * (x.shape[axis] // sizes)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [narrowed(value_of(x), axis, start, size) for start, size in zip(starts, sizes, strict=True)]


def narrowed(x: Value, axis: int, start: int, length: int) -> Value:
    """A range along one axis."""
    return Value(
        (*x.shape[:axis], length, *x.shape[axis + 1 :]),
        x.like,
        "narrow",
        [x],
        lambda operands, _: operands[0].narrow(axis, start, length),
        lambda other: None if other == axis else [other],
    )


def select(func: Any, x: Tensor, dim: int, index: int) -> Value | None:
    """One position along an axis, which is removed."""
    return item(func, x, (*(slice(None),) * (dim % x.dim()), index))


def item(func: Any, x: Tensor, key: Any) -> Value | None:
    """Positions along one axis, not the first: ``x[:, 0]``, ``x[:, [0, 2]]``, ``x[..., :3]``."""
    key = key if isinstance(key, tuple) else (key,)
    if any(item is None or isinstance(item, bool) for item in key) or not isinstance(x, DeferredTensor):
        return None
    if Ellipsis in [item for item in key if not isinstance(item, Tensor)]:
        at = next(i for i, item in enumerate(key) if item is Ellipsis)
        key = (*key[:at], *(slice(None),) * (x.dim() - len(key) + 1), *key[at + 1 :])
    chosen = [
        axis for axis, item in enumerate(key) if not (isinstance(item, slice) and is_whole(item, x.shape[axis]))
    ]
    if not chosen:
        return x.value
    axis = chosen[0]
    if len(chosen) > 1 or axis == 0:
        return None
    if isinstance(key[axis], slice):
        start, stop, step = key[axis].indices(x.shape[axis])
        return narrowed(x.value, axis, start, max(0, stop - start)) if step == 1 else None
    return at_positions(x.value, axis, key[axis])


def is_whole(item: slice, length: int) -> bool:
    """Whether a slice is the whole axis."""
    return item.indices(length) == (0, length, 1)


def at_positions(x: Value, axis: int, index: Any) -> Value | None:
    """Positions along one axis; one position alone removes the axis."""
    if isinstance(index, Tensor):
        if index.dim() > 1 or index.dtype != torch.int64:
            return None
        index = index.tolist()
    one = isinstance(index, int)
    positions = tuple(i % x.shape[axis] for i in ([index] if one else index))
    shape = (*x.shape[:axis], *(() if one else (len(positions),)), *x.shape[axis + 1 :])

    def axes(other: int) -> list[int | None] | None:
        return [other] if other < axis else None  # axis 0 alone is asked for: what else is read is read in full

    return Value(
        shape,
        x.like,
        "select",
        [x],
        lambda operands, part: operands[0].reshape(tuple(part)),
        axes,
        reads=Positions(axis, positions),
    )


FUNCTIONS = (
    "relu gelu silu tanh sigmoid erf exp log sqrt rsqrt square abs neg add sub mul div pow rsub rdiv softplus mish "
    "hardswish leaky_relu elu maximum minimum"
)

OPERATIONS: dict[str, Recorder] = {
    **dict.fromkeys(FUNCTIONS.split(), element_by_element),
    **dict.fromkeys(("to", "type", "float", "double", "detach"), unchanged),
    "contiguous": unchanged,
    "dropout": dropout,
    "linear": linear,
    "addmm": addmm,
    "layer_norm": layer_norm,
    "softmax": softmax,
    "mean": mean,
    "matmul": matmul,
    "bmm": matmul,
    "scaled_dot_product_attention": attention,
    "transpose": transposed,
    "permute": permuted,
    "view": reshape,
    "reshape": reshape,
    "flatten": flatten,
    "unsqueeze": unsqueeze,
    "expand": expand,
    "cat": concatenate,
    "split": split,
    "select": select,
    "getitem": item,
}
"""The function that records an operation, by the operation's name."""
