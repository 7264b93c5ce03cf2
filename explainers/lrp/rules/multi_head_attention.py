"""`torch.nn.MultiheadAttention`: projections, attention and a projection, each by its own rule."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from faithcheck.explainers.lrp.operation_call import OperationCall
from faithcheck.explainers.lrp.operations import declare

ARGUMENTS = signature(functional.multi_head_attention_forward).parameters
WITHOUT_RULE = ("bias_k", "bias_v", "static_k", "static_v", "add_zero_attn", "use_separate_proj_weight")


def multi_head_attention_rule(call: OperationCall) -> Callable[[], tuple[Tensor, Tensor | None]]:
    """softmax(QKᵀ/√d + mask) V of each head, by single operations."""
    defaults = {name: parameter.default for name, parameter in ARGUMENTS.items()}
    given: dict[str, Any] = {**defaults, **dict(zip(ARGUMENTS, call.args, strict=False)), **call.kwargs}
    if named := [name for name in WITHOUT_RULE if given[name] is not None and given[name] is not False]:
        raise call.unsupported(f"no rule for {', '.join(named)}: write the attention by scaled_dot_product_attention")
    if given["query"].dim() != 3:
        raise call.unsupported("no rule for inputs without a batch: add an axis of one example")
    if given["training"] and given["dropout_p"] > 0:
        raise call.unsupported("no rule for dropout in train mode: call model.eval()")
    return lambda: attended(given)


def attended(given: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """The outputs ``(tokens, batch, width)``, and the attention weights if they are asked for."""
    heads, biases = given["num_heads"], given["in_proj_bias"]
    layers = zip(given["in_proj_weight"].chunk(3), (None,) * 3 if biases is None else biases.chunk(3), strict=True)
    inputs = (given["query"], given["key"], given["value"])
    projected = (functional.linear(x, *layer) for x, layer in zip(inputs, layers, strict=True))
    query, key, value = (x.view(*x.shape[:2], heads, -1).permute(1, 2, 0, 3) for x in projected)
    logits = torch.matmul(query, key.transpose(-2, -1)) * query.shape[-1] ** -0.5
    for mask in added_masks(given, logits):
        logits = logits + mask
    weights = torch.softmax(logits, -1)
    mixed = torch.matmul(weights, value).permute(2, 0, 1, 3).flatten(-2)
    outputs = functional.linear(mixed, given["out_proj_weight"], given["out_proj_bias"])
    if not given["need_weights"]:
        return outputs, None
    return outputs, weights.mean(1) if given["average_attn_weights"] else weights


def added_masks(given: dict[str, Any], logits: Tensor) -> list[Tensor]:
    """What the masks add to the logits ``(batch, heads, queries, keys)``: −∞ where a Boolean mask is true."""
    masks, padding = [], given["key_padding_mask"]
    if given["attn_mask"] is not None:  # (queries, keys) or (batch · heads, queries, keys)
        masks.append(given["attn_mask"] if given["attn_mask"].dim() == 2 else given["attn_mask"].view(logits.shape))
    if padding is not None:
        masks.append(padding[:, None, None])
    return [
        logits.new_zeros(mask.shape).masked_fill(mask, float("-inf")) if mask.dtype == torch.bool else mask
        for mask in masks
    ]


declare("multi_head_attention_forward", rule=multi_head_attention_rule)
