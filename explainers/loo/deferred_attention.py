"""Attention on rows that share values: which tokens of its result differ, and what it need not read.

What belongs here: attention, written out or fused, as a value to be computed later. Not here: the calls of torch that
are recorded as attention (`faithcheck.explainers.loo.deferred_operations`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from faithcheck.explainers.fast.linear_map import linear_without_gradient
from faithcheck.explainers.loo.deferred_values import (
    WORTHWHILE,
    Axes,
    Compute,
    Positions,
    Value,
    known_tokens,
    reference_row,
    value_like,
)
from faithcheck.explainers.loo.shapes import aligned, broadcast_shape


def fused_attention(weights: Value, values: Value) -> Value | None:
    """softmax(s·QKᵀ + mask) V, written out, as one operation; None if this product is something else."""
    if weights.name != "softmax" or not weights.operands:
        return None
    logits, mask, scale = weights.operands[0], None, 1.0
    if logits.name == "add" and len(logits.operands) == 2 and logits.operands[1].tensor is not None:
        logits, mask = logits.operands
    if logits.name in ("mul", "div") and len(logits.operands) == 1 and logits.number_operand:
        scale = logits.number_operand if logits.name == "mul" else 1 / logits.number_operand
        logits = logits.operands[0]
    if logits.name != "matmul" or not len(logits.shape) == len(values.shape) == 4 or not logits.operands:
        return None
    query, keys = logits.operands
    if keys.name != "permute" or keys.order != (0, 1, 3, 2) or not keys.operands:
        return None
    key = keys.operands[0]
    if not query.shape[:2] == key.shape[:2] == values.shape[:2] or (mask is not None and len(mask.shape) != 4):
        return None
    if mask is not None and (mask.operands or not mask.is_finite):
        return None  # a row that may attend to nothing: NaN if written out, 0 if fused

    def attend(operands: Sequence[Tensor], _: Sequence[int]) -> Tensor:
        q, k, v = operands[:3]
        if are_logits_finite([q], [k], scale):
            return attention_to_seen_keys(q, k, v, mask=operands[3] if mask is not None else None, scale=scale)
        product = q @ k.transpose(2, 3) * scale  # as the model writes it, where both ways may differ in NaN
        return torch.softmax(product if mask is None else product + operands[3], -1) @ v

    return attention_value(query, key, values, mask, attend, scale=scale)


scaled_dot_product_attention = cast("Callable[..., Tensor]", functional.scaled_dot_product_attention)

BLOCK = 128
"""Queries that attend together: with fewer, fewer keys that a causal mask hides are read, in more calls."""


def attention_to_seen_keys(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None, enable_gqa: bool = False
) -> Tensor:
    """Fused attention, in blocks of queries if a mask hides the last keys from all queries of the first block.

    Keys behind the last one that a block sees have weights of exactly 0, and are left out.
    """
    attend = partial(scaled_dot_product_attention, scale=scale, enable_gqa=enable_gqa)
    n = key.shape[2]
    if mask is None or mask.shape[2] != query.shape[2] or mask.shape[3] != n or keys_seen(mask[:, :, :BLOCK]) == n:
        return attend(query, key, value, attn_mask=mask)
    if not are_logits_finite([query], [key], 1.0 if scale is None else scale) or not largest([value]) < torch.inf:
        return attend(query, key, value, attn_mask=mask)  # a weight of 0 times a hidden number may be NaN
    parts = []
    for queries, rows in zip(torch.split(query, BLOCK, 2), torch.split(mask, BLOCK, 2), strict=True):
        seen = keys_seen(rows)
        parts.append(attend(queries, key[:, :, :seen], value[:, :, :seen], attn_mask=rows[..., :seen]))
    return torch.cat(parts, 2)


def keys_seen(mask: Tensor) -> int:
    """How many of the first keys of a mask ``(rows, heads, queries, keys)`` hold all that its queries see.

    All keys if a query sees none.
    """
    numbers = mask.to(torch.uint8) if mask.dtype == torch.bool else mask
    hidden = 0 if mask.dtype == torch.bool else lowest_seen(mask)
    if not bool((numbers.amax(-1) > hidden).all()):
        return mask.shape[-1]
    return int((numbers.amax((0, 1, 2)) > hidden).nonzero().max()) + 1


def attention_value(
    query: Value,
    key: Value,
    values: Value,
    mask: Value | None,
    attend: Compute,
    is_causal: bool = False,
    scale: float | None = None,
) -> Value | None:
    """Fused attention of queries ``(batch, heads, queries, width)``, which ``attend`` computes."""
    shape = (*query.shape[:-1], values.shape[-1])
    operands = [query, key, values] if mask is None else [query, key, values, mask]
    of_logits = (*shape[:3], key.shape[2])
    if mask is not None and broadcast_shape(mask.shape, of_logits) != of_logits:
        return None

    def axes(axis: int) -> list[int | None] | None:
        if axis == 3 or (axis == 2 and is_causal) or (axis == 1 and query.shape[1] != key.shape[1]):
            return None
        of_keys = None if axis == 2 else axis
        lies = [axis, of_keys, of_keys]
        return lies if mask is None else [*lies, aligned(mask.shape, of_logits, axis)]

    return value_like(
        query,
        shape,
        "attention",
        operands,
        attend,
        axes,
        differing=partial(differing_tokens, query, key, values, mask, is_causal, scale),
        for_few=partial(attention_without_maps, operands, attend, scale),
        options=(is_causal, scale),
    )


def attention_without_maps(
    operands: Sequence[Value], attend: Compute, scale: float | None, positions: Positions
) -> tuple[Sequence[Value], Compute, Axes] | None:
    """Attention of few queries to keys W x + b and values V y + c, whose linear maps need not be computed.

    A query q and a key have the logit qᵀ(W x + b) = (Wᵀq)ᵀ x + qᵀ b, of which the softmax does not see the last term:
    it is the same for all keys. With the weights p, the result is Σ p (V y + c) = V (Σ p y) + c.

    Args:
        operands: the queries, keys and values ``(rows, heads, tokens, width of a head)``, and perhaps a mask.
        attend: computes attention from them.
        scale: of the logits; None for one over the root of a head's width.
        positions: the queries that are read.

    Returns:
        The operands, the computation and the axes; None if keys or values are something else, or this takes longer.
    """
    (query, key, values), masks = operands[:3], operands[3:]
    of_keys, of_values = mapped_by_head(key), mapped_by_head(values)
    if positions.axis != 2 or of_keys is None or of_values is None or query.shape[1] != key.shape[1]:
        return None
    n, width = key.shape[2:]
    if of_keys[0].shared or of_values[0].shared or 2 * len(positions.index) * (n + width) > n * width:
        return None
    first_of_values, first_of_masks = 1 + len(of_keys), 1 + len(of_keys) + len(of_values)

    def compute(tensors: Sequence[Tensor], part: Sequence[int]) -> Tensor:
        maps = tensors[1:first_of_values], tensors[first_of_values:first_of_masks]
        result = attention_before_maps(tensors[0], *maps, *tensors[first_of_masks:], scale=scale)
        if result is None:  # both ways may differ in NaN
            mapped = [linear_without_gradient(*each).reshape(part[0], n, part[1], -1).transpose(1, 2) for each in maps]
            result = attend([tensors[0], *mapped, *tensors[first_of_masks:]], part)
        return result

    def axes(axis: int) -> list[int | None] | None:
        if axis not in (0, 2):
            return None
        rows = 0 if axis == 0 else None
        of_maps = [rows if i == 0 else None for each in (of_keys, of_values) for i in range(len(each))]
        return [axis, *of_maps, *(aligned(mask.shape, (*query.shape[:3], n), axis) for mask in masks)]

    return [query, *of_keys, *of_values, *masks], compute, axes


def mapped_by_head(x: Value) -> Sequence[Value] | None:
    """What a linear map took whose result was split into heads: tokens ``(rows, tokens, width)``, weight, perhaps bias.

    None if a value ``(rows, heads, tokens, width of a head)`` is something else.
    """
    split = x.operands[0] if x.name == "permute" and x.order == (0, 2, 1, 3) and x.operands else None
    mapped = split.operands[0] if split is not None and split.name == "reshape" and split.operands else None
    if split is None or mapped is None or mapped.name != "linear" or mapped.shape[:2] != split.shape[:2]:
        return None
    return mapped.operands or None


def attention_before_maps(
    query: Tensor,
    of_keys: Sequence[Tensor],
    of_values: Sequence[Tensor],
    mask: Tensor | None = None,
    *,
    scale: float | None,
) -> Tensor | None:
    """Attention ``(rows, heads, queries, width of a head)`` as `attention_without_maps` says.

    The Wᵀq of all heads attend together, as queries of one head as wide as x. None if a number that the model computes
    might not be finite, or if a query sees no key: its weights do not sum to 1.
    """
    (rows, heads, queries, width), (x, weight, *_), (y, weight_of_values, *bias) = query.shape, of_keys, of_values
    scale = width**-0.5 if scale is None else scale
    bounds = (bound_of_logits(largest([query]), bound_of_map(*of_keys), width, scale), bound_of_map(*of_values))
    if not all(is_far_below_hidden(bound, query.dtype) for bound in bounds):
        return None
    if mask is not None:
        if not bool((mask if mask.dtype == torch.bool else mask > -torch.inf).any(-1).all()):
            return None
        mask = mask.expand(rows, heads, queries, -1).flatten(1, 2).unsqueeze(1)
    by_head, of_values_by_head = (each.reshape(heads, -1, each.shape[1]) for each in (weight, weight_of_values))
    wide = torch.einsum("rhqd,hdw->rhqw", query, by_head).flatten(1, 2)
    tokens = (each.unsqueeze(1) for each in (wide, x, y))
    mixed = scaled_dot_product_attention(*tokens, attn_mask=mask, scale=scale).view(rows, heads, queries, -1)
    result = torch.einsum("rhqw,hdw->rhqd", mixed, of_values_by_head)
    return result + bias[0].view(heads, 1, -1) if bias else result


def bound_of_map(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> float:
    """A bound of the numbers of x Wᵀ + b, whatever their order of summation; NaN or ∞ if there may be none."""
    largest_bias = 0.0 if bias is None else float(bias.abs().max())
    return largest([x.unsqueeze(1)]) * float(weight.abs().max()) * weight.shape[1] + largest_bias


def differing_tokens(
    query: Value, key: Value, values: Value, mask: Value | None, is_causal: bool, scale: float | None
) -> Tensor | None:
    """Which tokens of attention differ from the reference row's, ``(rows, queries)`` bool; None if any may.

    A token is that row's if its query is, if its keys are hidden by the same mask, and if the keys and values that it
    sees are that row's. Hidden ones do not matter, if all are finite: their weights are exactly 0.
    """
    queries, keys, of_values = (differs_of(operand) for operand in (query, key, values))
    if queries is None or keys is None or of_values is None or query.shape[2] != key.shape[2]:
        return None
    seen, changed = seen_keys(query, mask, is_causal)
    differing_keys = (keys | of_values).to(torch.float32) @ seen.T.to(torch.float32)  # how many a query sees
    differs = queries | changed | (differing_keys > 0)
    if float((differs if query.is_later else differs[:-1]).float().mean()) > WORTHWHILE:
        return None
    q, k, v = (known_tokens(operand) for operand in (query, key, values))
    are_finite = are_logits_finite(q, k, 1.0 if scale is None else scale) and largest(v) <= torch.finfo(v[0].dtype).max
    return differs if are_finite else None


def differs_of(operand: Value) -> Tensor | None:
    """Which tokens, along axis 2, differ from the reference row's, ``(rows, tokens)`` bool; None if any may."""
    if operand.shared:
        return torch.zeros(operand.shape[0], operand.shape[2], dtype=torch.bool, device=operand.device)
    return operand.tokens.differs if operand.tokens is not None and operand.token_axis == 2 else None


def seen_keys(query: Value, mask: Value | None, is_causal: bool) -> tuple[Tensor, Tensor]:
    """Which keys a query of the reference row sees ``(n, n)``, and which have another mask there ``(1 or rows, n)``.

    A key is seen if a head sees it. A mask is another one if that of a head is another number, unless both hide the
    key, or if a head sees no key at all: such a head attends to hidden ones.
    """
    n = query.shape[2]
    everything = torch.ones(n, n, dtype=torch.bool, device=query.device)
    seen = everything.tril() if is_causal else everything
    if mask is None:
        return seen, torch.zeros_like(seen[:1])
    whole = mask.full()
    numbers, reference = (
        one_number_where_hidden(rows).expand(-1, -1, n, -1) for rows in (whole, reference_row(mask, whole))
    )
    changed = (numbers != reference).any(3).any(1)
    of_heads = seen & (reference[0] if numbers.dtype == torch.bool else reference[0] > lowest_seen(numbers))
    return of_heads.any(0), changed | ~of_heads.any(2).all(0)


def one_number_where_hidden(mask: Tensor) -> Tensor:
    """A mask of which all numbers that hide a key are the same."""
    return mask if mask.dtype == torch.bool else mask.clamp(min=lowest_seen(mask))


def lowest_seen(mask: Tensor) -> float:
    """The number of a floating-point mask up to which a key is hidden."""
    return torch.finfo(mask.dtype).min / 2


def are_logits_finite(query: Sequence[Tensor], key: Sequence[Tensor], scale: float) -> bool:
    """Whether all logits are far below the number that hides a key, whatever their order of summation."""
    bound = bound_of_logits(largest(query), largest(key), query[0].shape[-1], scale)
    return is_far_below_hidden(bound, query[0].dtype)


def bound_of_logits(query: float, key: float, width: int, scale: float) -> float:
    """A bound of the logits, scaled or not, of queries and keys up to these absolute values."""
    return query * key * width * max(1.0, abs(scale))


def is_far_below_hidden(bound: float, dtype: torch.dtype) -> bool:
    """Whether numbers up to this bound are far below the one that hides a key; False for a bound that is NaN."""
    return bound < torch.finfo(dtype).max / 8


def largest(parts: Sequence[Tensor]) -> float:
    """The largest absolute value of tensors ``(batch, heads, tokens, width)``; NaN if a value is."""
    ranges = [torch.aminmax(x.transpose(1, 2)) for x in parts]  # as it lies in memory
    return float(torch.stack([bound for low, high in ranges for bound in (-low, high)]).max())
