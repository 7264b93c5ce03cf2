"""The operations that a `DeferredTensor` records, and how the axes of their results lie in their operands.

Each function takes a call of an operation and returns its result as a value to be computed later, or None if this call
must be computed at once: with an operand of another kind of number, with an option that is not known here, or with
shapes or positions that do not fit, so that torch says so where the model's own code expects it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from faithcheck.explainers.fast.linear_map import ACTIVATIONS, linear_without_gradient
from faithcheck.explainers.loo.deferred import DeferredTensor, value_of
from faithcheck.explainers.loo.deferred_attention import (
    attention_to_seen_keys,
    attention_value,
    fused_attention,
    scaled_dot_product_attention,
)
from faithcheck.explainers.loo.deferred_values import Positions, Value, computed, constant, of_one_kind, value_like
from faithcheck.explainers.loo.shapes import aligned, broadcast_shape
from faithcheck.explainers.lrp.operations import operation_name

Recorder = Callable[..., "Value | Sequence[Value] | None"]


def element_by_element(func: Callable[..., Any], *args: Any, **options: Any) -> Value | None:
    """A function of one or two values, applied element by element and broadcast."""
    numbers = [x for x in args if isinstance(x, int | float)]
    operands = [value_of(x) for x in args if isinstance(x, Tensor)]
    if len(numbers) + len(operands) != len(args) or options.pop("inplace", False) or set(options) - {"approximate"}:
        return None
    if not operands or not of_one_kind(operands):
        return None
    shapes = [operand.shape for operand in operands]
    shape = broadcast_shape(*shapes)
    if shape is None:
        return None

    def compute(tensors: Sequence[Tensor], _: Sequence[int]) -> Any:
        remaining = iter(tensors)
        return func(*(next(remaining) if isinstance(x, Tensor) else x for x in args), **options)

    return value_like(
        operands[0],
        shape,
        operation_name(func),
        operands,
        compute,
        lambda axis: [aligned(each, shape, axis) for each in shapes],
        number_operand=numbers[0] if numbers else None,
        options=(tuple(None if isinstance(x, Tensor) else x for x in args), tuple(sorted(options.items()))),
    )


def position_in(index: int, length: int) -> int:
    """An axis, or a position along one, counted from the start.

    Raises:
        IndexError: there is no such axis or position.
    """
    if not -length <= index < length:
        raise IndexError(f"{index} is not among {length}")
    return index % length


def unchanged(func: Any, input: Tensor, *args: Any, **options: Any) -> Value | None:
    """A conversion to the kind of number or to the device that a tensor has already."""
    x = value_of(input)
    named = {"float": [torch.float32], "double": [torch.float64]}.get(operation_name(func), [])
    wanted = [*named, *args, *options.values()]
    is_known = bool(wanted) or operation_name(func) in ("contiguous", "detach")
    return x if is_known and all(each in (x.dtype, x.device) for each in wanted) else None


def activation(func: Any, input: Tensor, *args: Any, **options: Any) -> Value | None:
    """An activation; together with the linear map that its operand is, if it is one."""
    name, x = operation_name(func), value_of(input)
    key = (name, options.get("approximate", "none" if name == "gelu" else ""))
    if x.name != "linear" or not x.operands or key not in ACTIVATIONS or args or options.get("inplace"):
        return element_by_element(func, input, *args, **options)
    return linear_value(x.operands[0], x.operands[1:], key)


def dropout(func: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value | None:
    """Dropout in eval mode, which changes nothing."""
    return None if (training and p > 0) or inplace else value_of(input)


def linear(func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Value | None:
    """A linear map of the last axis."""
    weights = [weight] if bias is None else [weight, bias]
    if not all(type(each) in (Tensor, nn.Parameter) for each in weights) or weight.dim() != 2:
        return None
    x, constants = value_of(input), [constant(each) for each in weights]
    fits = len(x.shape) > 1 and x.shape[-1] == weight.shape[1] and (bias is None or bias.shape == weight.shape[:1])
    return linear_value(x, constants) if fits and of_one_kind([x, *constants]) else None


def addmm(func: Any, input: Tensor, mat1: Tensor, mat2: Tensor) -> Value | None:
    """A linear map of rows that were flattened, as in GPT-2: the map of the tensor before, flattened afterwards."""
    rows = value_of(mat1)
    if rows.name != "reshape" or not rows.operands or rows.operands[0].shape[-1] != rows.shape[-1]:
        return None
    if input.dim() != 1 or len(rows.shape) != 2:
        return None
    result = linear(func, DeferredTensor(rows.operands[0]), mat2.t(), input)
    return None if result is None else reshaped(result, (rows.shape[0], mat2.shape[1]))


def linear_value(x: Value, weights: Sequence[Value], activation: tuple[str, str] = ("none", "")) -> Value:
    """An activation of x Wᵀ + b, for the values of W and, perhaps, b."""
    shape = (*x.shape[:-1], weights[0].shape[0])
    return value_like(
        x,
        shape,
        "linear" if activation == ("none", "") else "linear, then an activation",
        [x, *weights],
        lambda operands, _: linear_without_gradient(*operands, activation=activation),
        lambda axis: None if axis == len(shape) - 1 else [axis, *(None for _ in weights)],
        options=activation,
    )


def layer_norm(
    func: Any,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Value | None:
    """A norm over the last axes."""
    given = [each for each in (weight, bias) if each is not None]
    if not all(type(each) in (Tensor, nn.Parameter) for each in given) or (weight is None and bias is not None):
        return None
    x, norm, axes = value_of(input), cast("Callable[..., Tensor]", functional.layer_norm), tuple(normalized_shape)
    constants, first = [constant(each) for each in given], len(x.shape) - len(axes)
    if first < 0 or x.shape[first:] != axes or any(each.shape != axes for each in given):
        return None
    if not of_one_kind([x, *constants]):
        return None
    return value_like(
        x,
        x.shape,
        "layer_norm",
        [x, *constants],
        lambda operands, _: norm(operands[0], axes, *operands[1:], eps=eps),
        lambda axis: [axis, *(None for _ in given)] if axis < first else None,
        options=(axes, weight is not None, bias is not None, eps),
    )


def softmax(func: Any, input: Tensor, dim: int, dtype: Any = None, **options: Any) -> Value | None:
    """A softmax along one axis."""
    x = value_of(input)
    if not isinstance(dim, int) or dtype not in (None, x.dtype) or set(options) - {"_stacklevel"}:
        return None
    normalised = position_in(dim, len(x.shape))
    return value_like(
        x,
        x.shape,
        "softmax" if normalised == len(x.shape) - 1 else "softmax along another axis",
        [x],
        lambda operands, _: torch.softmax(operands[0], normalised),
        lambda axis: None if axis == normalised else [axis],
        options=normalised,
    )


def mean(func: Any, input: Tensor, dim: int, keepdim: bool = False) -> Value | None:
    """A mean or a sum along one axis that stays, of length 1."""
    if not isinstance(dim, int) or not keepdim:
        return None
    x = value_of(input)
    pooled = position_in(dim, len(x.shape))
    return value_like(
        x,
        (*x.shape[:pooled], 1, *x.shape[pooled + 1 :]),
        operation_name(func),
        [x],
        lambda operands, _: func(operands[0], pooled, keepdim=True),
        lambda axis: None if axis == pooled else [axis],
        options=pooled,
    )


def matmul(func: Any, input: Tensor, other: Tensor) -> Value | None:
    """A product of matrices; of attention weights and values, if a softmax wrote the weights out, fused attention."""
    a, b = value_of(input), value_of(other)
    if min(len(a.shape), len(b.shape)) < 2 or not of_one_kind([a, b]) or a.shape[-1] != b.shape[-2]:
        return None
    if operation_name(func) == "bmm" and not len(a.shape) == len(b.shape) == 3:
        return None
    return fused_attention(a, b) or matrix_product(a, b)


def matrix_product(a: Value, b: Value) -> Value | None:
    """A batched product of matrices."""
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    if batch is None:
        return None
    shape = (*batch, a.shape[-2], b.shape[-1])
    last = len(shape) - 1

    def axes(axis: int) -> list[int | None]:
        if axis >= last - 1:
            return [None, len(b.shape) - 1] if axis == last else [len(a.shape) - 2, None]
        return [aligned(a.shape, shape, axis), aligned(b.shape, shape, axis)]

    return value_like(a, shape, "matmul", [a, b], lambda operands, _: torch.matmul(*operands), axes)


def attention(
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value | None:
    """Fused attention."""
    queries, keys, values = operands = [value_of(x) for x in (query, key, value)]
    mask = None if attn_mask is None else with_four_axes(value_of(attn_mask))
    is_square = is_causal and mask is None and queries.shape[-2] == keys.shape[-2]
    if is_square:  # as a mask, of which the rows of some queries can be taken
        n = keys.shape[-2]
        mask = computed(torch.ones(1, 1, n, n, dtype=torch.bool, device=keys.device).tril())
        mask.name = "causal mask"
    if dropout_p > 0 or not of_one_kind(operands) or any(len(x.shape) != 4 for x in operands):
        return None
    if keys.shape[:2] != values.shape[:2] or keys.shape[0] != queries.shape[0]:
        return None
    if queries.shape[1] != keys.shape[1] and not enable_gqa:
        return None
    if queries.shape[3] != keys.shape[3] or keys.shape[2] != values.shape[2]:
        return None

    def attend(tensors: Sequence[Tensor], _: Sequence[int]) -> Tensor:
        q, k, v = tensors[:3]
        if mask is None or (is_square and q.shape[2] == k.shape[2]):
            return scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
        return attention_to_seen_keys(q, k, v, mask=tensors[3], scale=scale, enable_gqa=enable_gqa)

    return attention_value(queries, keys, values, mask, attend, is_causal and not is_square, scale)


def with_four_axes(mask: Value) -> Value:
    """A mask with the axes ``(rows, heads, queries, keys)``, of which the first ones may be missing."""
    return reshaped(mask, (*(1,) * (4 - len(mask.shape)), *mask.shape))


def transposed(func: Any, input: Tensor, dim0: int, dim1: int) -> Value:
    """Two axes swapped."""
    x = value_of(input)
    order = list(range(len(x.shape)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permuted(x, tuple(order))


def permute(func: Any, input: Tensor, *dims: Any) -> Value | None:
    """Axes in another order."""
    x = value_of(input)
    order = tuple(position_in(axis, len(x.shape)) for axis in sizes_of(dims))
    return permuted(x, order) if sorted(order) == list(range(len(x.shape))) else None


def permuted(x: Value, order: tuple[int, ...]) -> Value:
    """Axes in this order."""
    return value_like(
        x,
        [x.shape[axis] for axis in order],
        "permute",
        [x],
        lambda operands, _: operands[0].permute(order),
        lambda axis: [order[axis]],
        order=order,
    )


def sizes_of(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Sizes or axes that were given one by one, or as one sequence."""
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else tuple(sizes)


def reshape(func: Any, input: Tensor, *shape: Any) -> Value | None:
    """The same numbers in another shape."""
    x, sizes = value_of(input), sizes_of(shape)
    known = prod(size for size in sizes if size != -1)
    if not all(type(size) is int for size in sizes) or known < 1:
        return None
    wanted = tuple(prod(x.shape) // known if size == -1 else size for size in sizes)
    return reshaped(x, wanted) if prod(wanted) == prod(x.shape) and sizes.count(-1) < 2 else None


def flatten(func: Any, input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Value | None:
    """Neighbouring axes made one."""
    x = value_of(input)
    start, end = position_in(start_dim, len(x.shape)), position_in(end_dim, len(x.shape)) + 1
    return reshaped(x, (*x.shape[:start], prod(x.shape[start:end]), *x.shape[end:])) if start < end else None


def unsqueeze(func: Any, input: Tensor, dim: int) -> Value:
    """A new axis of length 1."""
    x = value_of(input)
    at = position_in(dim, len(x.shape) + 1)
    return reshaped(x, (*x.shape[:at], 1, *x.shape[at:]))


def reshaped(x: Value, shape: tuple[int, ...]) -> Value:
    """A value in another shape: an axis stays if its length, and the number of values before it, stay."""
    if x.name == "reshape" and x.operands and x.operands[0].shape == shape:
        return x.operands[0]
    if x.shape == shape:
        return x

    def axes(axis: int) -> list[int | None] | None:
        for own, size in enumerate(x.shape):
            if size == shape[axis] and prod(x.shape[:own]) == prod(shape[:axis]):
                return [own]
        return None

    return value_like(x, shape, "reshape", [x], lambda operands, part: operands[0].reshape(tuple(part)), axes)


def expand(func: Any, input: Tensor, *sizes: Any) -> Value | None:
    """Axes of length 1 repeated."""
    x, wanted = value_of(input), sizes_of(sizes)
    new = len(wanted) - len(x.shape)
    if new < 0 or not all(type(size) is int for size in wanted):
        return None
    shape = tuple(x.shape[axis - new] if size == -1 and axis >= new else size for axis, size in enumerate(wanted))
    if broadcast_shape(x.shape, shape) != shape:
        return None
    return value_like(
        x,
        shape,
        "expand",
        [x],
        lambda operands, part: operands[0].expand(tuple(part)),
        lambda axis: [aligned(x.shape, shape, axis)],
    )


def concatenate(func: Any, tensors: Sequence[Tensor], dim: int = 0) -> Value | None:
    """Tensors joined along one axis; torch skips empty ones of one axis, such as a new cache of keys."""
    values = [value_of(x) for x in tensors]
    if not of_one_kind(values):
        return None
    values = [value for value in values if value.shape != (0,)] or values
    first = values[0].shape
    joined = position_in(dim, len(first))
    before, after = first[:joined], first[joined + 1 :]
    if any((*before, *value.shape[joined : joined + 1], *after) != value.shape for value in values):
        return None
    if len(values) == 1:
        return values[0]
    return value_like(
        values[0],
        (*before, sum(value.shape[joined] for value in values), *after),
        "cat",
        values,
        lambda operands, _: torch.cat(list(operands), joined),
        lambda axis: None if axis == joined else [axis] * len(values),
        options=joined,
    )


def split(func: Any, tensor: Tensor, split_size_or_sections: Any, dim: int = 0) -> list[Value] | None:
    """Parts along one axis, of one size or of several."""
    x = value_of(tensor)
    axis, sizes = position_in(dim, len(x.shape)), split_size_or_sections
    if isinstance(sizes, int):
        if x.shape[axis] % sizes:
            return None
        sizes = [sizes] * (x.shape[axis] // sizes)
    if sum(sizes) != x.shape[axis] or min(sizes) < 0:
        return None
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [narrowed(x, axis, start, size) for start, size in zip(starts, sizes, strict=True)]


def narrowed(x: Value, axis: int, start: int, length: int) -> Value:
    """A range along one axis."""
    return value_like(
        x,
        (*x.shape[:axis], length, *x.shape[axis + 1 :]),
        "narrow",
        [x],
        lambda operands, _: operands[0].narrow(axis, start, length),
        lambda other: None if other == axis else [other],
        options=(axis, start),
    )


def select(func: Any, input: Tensor, dim: int, index: int) -> Value | None:
    """One position along an axis, which is removed."""
    x = value_of(input)
    axis = position_in(dim, len(x.shape))
    return at_positions(x, axis, index) if axis else None


def item(func: Any, input: Tensor, key: Any) -> Value | None:
    """Positions along one axis, not the first, such as ``x[:, 0]``, ``x[:, [0, 2]]`` and ``x[..., :3]``; new axes."""
    if not isinstance(input, DeferredTensor):
        return None
    x, key = input.value, key if isinstance(key, tuple) else (key,)
    if any(item is Ellipsis for item in key):
        at = next(i for i, item in enumerate(key) if item is Ellipsis)
        given = sum(item is not None for item in key) - 1
        key = (*key[:at], *(slice(None),) * (len(x.shape) - given), *key[at + 1 :])
    if any(item is None for item in key):
        return with_new_axes(x, key)
    if len(key) == 2 and all(isinstance(item, Tensor) for item in key):
        return one_position_a_row(x, *key)
    chosen = [axis for axis, item in enumerate(key) if not is_whole(item, x.shape, axis)]
    if len(chosen) != 1 or chosen == [0]:
        return None if chosen else x
    axis, positions = chosen[0], key[chosen[0]]
    if isinstance(positions, slice):
        start, stop, step = positions.indices(x.shape[axis])
        if step != 1:
            return None
        if axis != 1 or len(x.shape) != 3 or start >= stop:
            return narrowed(x, axis, start, max(0, stop - start))
        positions = list(range(start, stop))  # of tokens: the others need not be computed
    return at_positions(x, axis, positions)


def with_new_axes(x: Value, key: Sequence[Any]) -> Value | None:
    """New axes of length 1 and nothing else, as in ``x[:, :, None]``."""
    sizes = iter(x.shape)
    if not all(item is None or (isinstance(item, slice) and item == slice(None)) for item in key):
        return None
    return reshaped(x, (*(1 if item is None else next(sizes) for item in key), *sizes))


def one_position_a_row(x: Value, rows: Tensor, index: Tensor) -> Value | None:
    """One position along axis 1 of each row, as a decoder is read at the last token: ``x[arange(rows), last]``."""
    if not rows.shape == index.shape == (x.shape[0],) or not rows.dtype == index.dtype == torch.int64:
        return None
    if not torch.equal(rows, torch.arange(len(rows), device=rows.device)):
        return None
    if bool(((index < -x.shape[1]) | (index >= x.shape[1])).any()):
        return None
    read, place = (index % x.shape[1]).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    each_row = torch.arange(len(place), device=place.device)
    return value_like(
        x,
        (x.shape[0], *x.shape[2:]),
        "select",
        [x],
        lambda operands, _: operands[0][each_row, place],
        lambda axis: None,
        reads=Positions(1, tuple(read.tolist())),
    )


def is_whole(item: Any, shape: Sequence[int], axis: int) -> bool:
    """Whether an entry of a key is a slice of the whole axis."""
    return isinstance(item, slice) and axis < len(shape) and item.indices(shape[axis]) == (0, shape[axis], 1)


def at_positions(x: Value, axis: int, index: Any) -> Value | None:
    """Positions along one axis; one position alone removes the axis."""
    if isinstance(index, Tensor) and index.dtype == torch.int64 and not isinstance(index, DeferredTensor):
        index = index.tolist()
    one = type(index) is int
    numbers = [index] if one else index
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        return None
    positions = tuple(position_in(number, x.shape[axis]) for number in numbers)
    return value_like(
        x,
        (*x.shape[:axis], *(() if one else (len(positions),)), *x.shape[axis + 1 :]),
        "select",
        [x],
        lambda operands, part: operands[0].reshape(tuple(part)),
        lambda other: [other] if other < axis else None,
        reads=Positions(axis, positions),
    )


FUNCTIONS = (
    "relu silu tanh sigmoid erf exp log sqrt rsqrt square abs neg add sub mul div pow rsub rdiv softplus mish "
    "hardswish leaky_relu elu maximum minimum"
)

OPERATIONS: dict[str, Recorder] = {
    **dict.fromkeys(FUNCTIONS.split(), element_by_element),
    **dict.fromkeys(("to", "type", "float", "double", "detach"), unchanged),
    "contiguous": unchanged,
    "gelu": activation,
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
    "permute": permute,
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
