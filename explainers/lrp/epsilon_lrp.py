"""ε-LRP: its table of rules, and the explainer."""

from collections.abc import Mapping

from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.operation_call import Rule
from faithcheck.explainers.lrp.operation_table import default_rules

EPSILON_LRP: Mapping[str, Rule] = default_rules()
"""The table of ε-LRP's rules: the rule that each operation is declared with, in `faithcheck.explainers.lrp.rules`.

It has no rule for a softmax, and its rules for products refuse two operands that both carry relevance."""


@builtin("lrp")
def EpsilonLRP(epsilon: float = 0.0) -> LRP:
    """ε-LRP (Bach et al. 2015): the ε-rule on linear maps and sums; element-wise activations leave relevance unchanged.

    It has no rule for a product of data or a softmax, so it refuses attention.
    """
    summary = "LRP's ε-rule; refuses products of data; Bach et al. 2015"
    return LRP("epsilon_lrp", EPSILON_LRP, epsilon, label="ε-LRP", summary=summary)
