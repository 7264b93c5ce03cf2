"""CP-LRP: its table of rules, and the explainer."""

from collections.abc import Mapping

from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.operation_call import Rule
from faithcheck.explainers.lrp.operation_table import operations_with
from faithcheck.explainers.lrp.operations import Trait
from faithcheck.explainers.lrp.rules.attention import constant_rule
from faithcheck.explainers.lrp.rules.products import first_operand_constant_rule

CP_LRP: Mapping[str, Rule] = {
    **ATTNLRP,
    **dict.fromkeys(operations_with(Trait.MATRIX_PRODUCT), first_operand_constant_rule),
    "softmax": constant_rule,
    "logsumexp": constant_rule,
}
"""The table of CP-LRP's rules. The softmax passes on no relevance, so that queries and keys receive none.

A model without a softmax (linear attention): the first operand of a matrix product of data counts as the attention
weights. CP-LRP defines nothing for element-wise products of data: they keep AttnLRP's rule, half to each operand."""


@builtin("lrp")
def CPLRP(epsilon: float = 0.0) -> LRP:
    """CP-LRP (Ali et al. 2022, arXiv 2202.07304): attention weights are constants, values receive all relevance."""
    summary = "LRP in which attention weights are constants; Ali et al. 2022"
    return LRP("cplrp", CP_LRP, epsilon, label="CP-LRP", summary=summary)
