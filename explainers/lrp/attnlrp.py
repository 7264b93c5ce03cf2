"""AttnLRP: its table of rules, and the explainer."""

from collections.abc import Mapping

from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.epsilon_lrp import EPSILON_LRP
from faithcheck.explainers.lrp.operation_call import Rule
from faithcheck.explainers.lrp.operation_table import operations_with
from faithcheck.explainers.lrp.operations import Trait
from faithcheck.explainers.lrp.rules.attention import attention_rule, softmax_rule
from faithcheck.explainers.lrp.rules.products import bilinear_rule, product_rule, quotient_rule

ATTNLRP: Mapping[str, Rule] = {
    **EPSILON_LRP,  # Eq. 1, and the operations that leave relevance unchanged
    **dict.fromkeys(operations_with(Trait.MATRIX_PRODUCT), bilinear_rule),  # Eqs. 3–4
    "mul": product_rule,
    "div": quotient_rule,
    "rdiv": quotient_rule,
    "softmax": softmax_rule,  # Eq. 5
    "logsumexp": softmax_rule,
    "scaled_dot_product_attention": attention_rule,
}
"""The table of AttnLRP's rules: arXiv 2510.18810, Eqs. 1–5."""


@builtin("lrp")
def AttnLRP(epsilon: float = 0.0) -> LRP:
    """AttnLRP (Achtibat et al. 2024, arXiv 2402.05602; arXiv 2510.18810, Eqs. 1–5).

    Args:
        epsilon: the stabiliser ε ≥ 0, which acts on every operation that a model runs. Eq. 4 has one ε for the logits
            QKᵀ/√d; here QKᵀ has it before it is scaled, so that it is √d times as large for the logits, and a mask that
            is added has another. By ε = 1e-6 this moves maps by 1e-5 on BERT and 6e-4 on a Llama; ε → 0 has neither.
    """
    summary = "LRP with rules for products and softmax; Achtibat et al. 2024"
    return LRP("attnlrp", ATTNLRP, epsilon, label="AttnLRP", summary=summary)
