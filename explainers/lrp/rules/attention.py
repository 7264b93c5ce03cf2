"""Attention: the softmax rule (Eq. 5), and scaled dot-product attention.

ε-LRP has no rule for these operations, so that no rule is declared for all methods: AttnLRP and CP-LRP name theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from faithcheck.explainers.lrp.modified_gradient import scale_gradient
from faithcheck.explainers.lrp.operation_call import ANY_NUMBER, OperationCall, Rule, plain_gradient
from faithcheck.explainers.lrp.operations import Trait, declare
from faithcheck.explainers.lrp.rules.products import bilinear_rule


@plain_gradient(operands=ANY_NUMBER)
def softmax_rule(call: OperationCall) -> Any:
    """Eq. 5, R_Z = Z ⊙ (R_A − A Σ R_A): the plain gradient of the softmax. It does not conserve relevance.

    A softmax's normaliser log Σ exp Z, which attention with a sink reads, has the softmax as its gradient: by the same
    expansion of first order at Z, R_Z = Z ⊙ softmax(Z) · R / log Σ exp Z.
    """
    return call.value()


def constant_rule(call: OperationCall) -> Tensor:
    """No relevance goes through: CP-LRP's softmax, whose attention weights are constants."""
    result: Tensor = call.value()
    return result.detach()


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
    """The operands of scaled dot-product attention.

    Raises:
        Unsupported: dropout in train mode.
    """
    if call.argument(4, "dropout_p", 0.0) > 0:
        raise call.unsupported("no rule for dropout in train mode: call model.eval()")
    return [call.argument(i, name) for i, name in enumerate(("query", "key", "value"))]


def fused_attention(call: OperationCall, rules: Mapping[str, Rule]) -> Tensor | None:
    """Scaled dot-product attention in one operation, with the gradient that its steps have in the limit ε → 0.

    Eqs. 3–4 halve the gradient at O = AV and at Z = QKᵀ, and Eq. 5 leaves it: so the plain gradient counts ½ at V, and
    ¼ at Q and K. If the softmax is a constant, as in CP-LRP, it counts 1 at V alone. An operand that carries no
    relevance leaves its share to the other. No attention weights are kept, so that memory grows with the length alone.

    Args:
        call: the attention.
        rules: the method's table.

    Returns:
        None if the rules of its steps are others, or the attention mask carries relevance.

    Raises:
        Unsupported: see `queries_keys_values`.
    """
    query, key, value = queries_keys_values(call)
    mask = call.argument(3, "attn_mask")
    if mask is not None and mask.requires_grad:
        return None
    if rules.get("softmax") is constant_rule:
        query, key = query.detach(), key.detach()
    elif rules.get("softmax") is not softmax_rule or rules.get("matmul") is not bilinear_rule:
        return None
    of_product = 1 / 2 if value.requires_grad and (query.requires_grad or key.requires_grad) else 1.0
    of_logits = 1 / 2 if query.requires_grad and key.requires_grad else 1.0
    query, key = (scale_gradient(x, of_product * of_logits) if x.requires_grad else x for x in (query, key))
    value = scale_gradient(value, of_product) if value.requires_grad else value
    names = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    options = {**dict(zip(names, call.args[3:], strict=False)), **call.kwargs}
    result: Tensor = call.operation(query, key, value, **{name: options[name] for name in names if name in options})
    return result


declare("softmax logsumexp", Trait.ABSORBS, rule=None)
declare("scaled_dot_product_attention", rule=None)
