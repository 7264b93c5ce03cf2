"""Attention by one fused operation in place of the five of ``eager`` attention, its plain twin.

`transformers` looks each attention function up by name. Within the block, the name "eager" finds a function that calls
`torch.nn.functional.scaled_dot_product_attention` with the mask that eager attention adds to its logits. A large
negative number hides a key in both, so a query that may see no key gets the same uniform weights.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

Attention = Callable[..., tuple[Tensor, Tensor | None]]


class NotFused(Exception):
    """This attention is more than a softmax over masked logits."""


@contextmanager
def fused_attention(attended: Callable[[], None]) -> Iterator[None]:
    """Within the block, eager attention is fused, and ``attended`` is called after each attention, sdpa's as well."""
    from transformers import AttentionInterface  # transformers takes seconds: this runs where a model has loaded it
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def told(attention: Attention) -> Attention:
        def run(*arguments: Any, **named: Any) -> tuple[Tensor, Tensor | None]:
            result = attention(*arguments, **named)
            attended()
            return result

        return run

    functions: AttentionInterface = ALL_ATTENTION_FUNCTIONS
    own = {name: functions._local_mapping.get(name) for name in ("eager", "sdpa")}
    functions["eager"], functions["sdpa"] = told(own["eager"] or attend), told(functions["sdpa"])
    try:
        yield
    finally:
        for name, function in own.items():
            if function is None:
                del functions[name]  # type: ignore[no-untyped-call]
            else:
                functions[name] = function


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention of each query, ``(rows, queries, heads, width)``, without the weights.

    Queries are ``(rows, heads, queries, width)``, keys and values ``(rows, shared heads, keys, width)``; the mask has
    at least as many columns as there are keys. Raises NotFused if the model caps its logits, or has dropout.
    """
    if dropout or others.get("softcap") is not None:
        raise NotFused
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    mask = None if attention_mask is None else attention_mask[..., : key.shape[2]]
    attended = scaled_dot_product_attention(query, key, value, mask, scale=scaling)
    return attended.transpose(1, 2).contiguous(), None
