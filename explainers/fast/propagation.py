"""LRP's forward pass with fewer and faster operations; `faithcheck.explainers.lrp.propagation` is its plain twin."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from faithcheck.explainers.fast.linear_map import computing_linear_maps
from faithcheck.explainers.lrp.modified_gradient import scale_gradient
from faithcheck.explainers.lrp.operation_call import OperationCall, Rule, RuleTrait, traits_of
from faithcheck.explainers.lrp.propagation import IN_PLACE, Propagation
from faithcheck.explainers.lrp.rules.attention import queries_keys_values


class FastPropagation(Propagation):
    """A `Propagation` for one backward pass that is not recorded.

    1. Linear maps with constant weights are those of `computing_linear_maps`.
    2. A rule that is the operation's plain gradient is not called.
    3. Attention that the model computes in one operation stays one, where that gives the same gradient.
    4. The gradient of a product that is larger than its operands is halved at these, which takes less memory.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.linear: Any = None  # in place of torch's

    def compute(self, call: OperationCall) -> Any:
        """As `Propagation` does."""
        if call.name == "linear" and self.linear is not None:
            call.operation = self.linear
        if self.epsilon == 0 and call.name not in IN_PLACE and is_plain_gradient(self.rules.get(call.name), call):
            result = call.value()
            self.make_visible(result)
            return result
        return super().compute(call)

    def apply_rule(self, rule: Rule, call: OperationCall) -> Any:
        """As `Propagation` does; attention in one operation, and a large product halved at its operands."""
        if self.epsilon == 0 and RuleTrait.HALVES in traits_of(rule) and is_larger_than_operands(call):
            # S Vᵀ and Aᵀ S are linear in S: ½ at A and V is ½ at O, which is larger for the logits of a long text.
            halved = [scale_gradient(x, 1 / 2) for x in call.operands_with_relevance()]
            value: Tensor = call.with_operands(halved).value()
            return value
        is_attention = RuleTrait.ATTENTION in traits_of(rule) and self.epsilon == 0
        result = fused_attention(call, self.rules) if is_attention else None
        return super().apply_rule(rule, call) if result is None else result

    @contextmanager
    def treating_modules_as_operations(self, model: nn.Module) -> Iterator[None]:
        """As `Propagation` does; also chooses the linear maps."""
        with (
            computing_linear_maps(model, partial(setattr, self, "linear")),
            super().treating_modules_as_operations(model),
        ):
            yield


def is_plain_gradient(rule: Rule | None, call: OperationCall) -> bool:
    """Whether a rule returns the operation's own value for this call, and refuses nothing, in the limit ε → 0."""
    traits = traits_of(rule)
    if RuleTrait.PLAIN_GRADIENT in traits:
        return True
    return RuleTrait.PLAIN_GRADIENT_OF_ONE_OPERAND in traits and len(call.operands_with_relevance()) == 1


def is_larger_than_operands(call: OperationCall) -> bool:
    """Whether the result of a matrix product is larger than its two operands together, as attention logits can be."""
    operands = call.operands_with_relevance()
    if call.name not in ("matmul", "bmm", "mm") or len(operands) != 2:
        return False
    a, b = operands
    return a.dim() > 1 and b.dim() > 1 and min(a.shape[-2], b.shape[-1]) > 2 * a.shape[-1]


def fused_attention(call: OperationCall, rules: Mapping[str, Rule]) -> Tensor | None:
    """Scaled dot-product attention in one operation, with the gradient that its steps have in the limit ε → 0.

    Eqs. 3–4 halve the gradient at O = AV and at Z = QKᵀ, and Eq. 5 leaves it: so the plain gradient counts ½ at V, and
    ¼ at Q and K. If the softmax is a constant, as in CP-LRP, it counts 1 at V alone. An operand that carries no
    relevance leaves its share to the other. No attention weights are kept, so that memory grows with the length alone.

    None if the method has other rules for its steps, or if the attention mask carries relevance.
    """
    query, key, value = queries_keys_values(call)
    mask = call.argument(3, "attn_mask")
    if mask is not None and mask.requires_grad:
        return None
    softmax, product = traits_of(rules.get("softmax")), traits_of(rules.get("matmul"))
    if RuleTrait.CONSTANT in softmax:
        query, key = query.detach(), key.detach()
    elif RuleTrait.PLAIN_GRADIENT not in softmax or RuleTrait.HALVES not in product:
        return None
    of_product = 1 / 2 if value.requires_grad and (query.requires_grad or key.requires_grad) else 1.0
    of_logits = 1 / 2 if query.requires_grad and key.requires_grad else 1.0
    query, key = (scale_gradient(x, of_product * of_logits) if x.requires_grad else x for x in (query, key))
    value = scale_gradient(value, of_product) if value.requires_grad else value
    names = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    options = {**dict(zip(names, call.args[3:], strict=False)), **call.kwargs}
    result: Tensor = call.operation(query, key, value, **{name: options[name] for name in names if name in options})
    return result
