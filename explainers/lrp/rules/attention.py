"""Attention: the softmax rule (Eq. 5), and scaled dot-product attention.

ε-LRP has no rule for these operations, so that no rule is declared for all methods: AttnLRP and CP-LRP name theirs.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from faithcheck.explainers.lrp.operation_call import OperationCall, RuleTrait, has
from faithcheck.explainers.lrp.operations import Trait, declare


@has(RuleTrait.PLAIN_GRADIENT)
def softmax_rule(call: OperationCall) -> Any:
    """Eq. 5, R_Z = Z ⊙ (R_A − A Σ R_A): the plain gradient of the softmax. It does not conserve relevance.

    A softmax's normaliser log Σ exp Z, which attention with a sink reads, has the softmax as its gradient: by the same
    expansion of first order at Z, R_Z = Z ⊙ softmax(Z) · R / log Σ exp Z.
    """
    return call.value()


@has(RuleTrait.CONSTANT)
def constant_rule(call: OperationCall) -> Tensor:
    """No relevance goes through: CP-LRP's softmax, whose attention weights are constants."""
    result: Tensor = call.value()
    return result.detach()


@has(RuleTrait.ATTENTION)
def attention_rule(call: OperationCall) -> Callable[[], Tensor]:
    """Scaled dot-product attention, computed step by step, so that products and softmax have their own rules."""
    query, key, value = queries_keys_values(call)
    mask, causal = call.argument(3, "attn_mask"), call.argument(5, "is_causal", False)
    scale = call.argument(6, "scale")
    if causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()

    def steps() -> Tensor:
        k, v = key, value
        if call.argument(7, "enable_gqa", False):
            k, v = (x.repeat_interleave(query.shape[-3] // x.shape[-3], dim=-3) for x in (key, value))
        logits = torch.matmul(query, k.transpose(-2, -1)) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if mask is not None and mask.dtype == torch.bool:
            logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
        elif mask is not None:
            logits = logits + mask
        return torch.matmul(torch.softmax(logits, -1), v)

    return steps


def queries_keys_values(call: OperationCall) -> list[Tensor]:
    """The operands of scaled dot-product attention; Unsupported if it has dropout in train mode."""
    if call.argument(4, "dropout_p", 0.0) > 0:
        raise call.unsupported("no rule for dropout in train mode: call model.eval()")
    return [call.argument(i, name) for i, name in enumerate(("query", "key", "value"))]


declare("softmax logsumexp", Trait.ABSORBS, rule=None)
declare("scaled_dot_product_attention", rule=None)
