"""The ε-rule: linear maps with constant weights, and sums."""

from __future__ import annotations

from torch import Tensor

from faithcheck.explainers.lrp.operation_call import ANY_NUMBER, OperationCall, plain_gradient
from faithcheck.explainers.lrp.operations import Trait, declare


@plain_gradient(operands=ANY_NUMBER)
def epsilon_rule(call: OperationCall) -> Tensor:
    """Eq. 1, for a map that is linear in one operand, or in all its operands together (a sum)."""
    return call.stabilised(call.value())


def refuse_several_operands(call: OperationCall) -> None:
    """Refuse a product of two operands that both carry relevance, in a rule for a product with a constant."""
    if len(call.operands_with_relevance()) > 1:
        raise call.unsupported("no rule for a product of operands that both carry relevance")


@plain_gradient(operands=1)
def linear_rule(call: OperationCall) -> Tensor:
    """Eq. 1 for an operation that is linear in each operand but not in several together."""
    refuse_several_operands(call)
    return epsilon_rule(call)


declare("linear conv1d conv2d conv3d", Trait.LINEAR_MAP, rule=linear_rule, bias=(2, "bias"))
declare("addmm baddbmm", Trait.LINEAR_MAP, rule=linear_rule, bias=(0, "input"))
declare("avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d", Trait.LINEAR_MAP, rule=linear_rule)

declare("add sub rsub", Trait.SUM, Trait.ELEMENTWISE_AFFINE, rule=epsilon_rule)
declare("add_ sub_", Trait.SUM, Trait.ELEMENTWISE_AFFINE, Trait.IN_PLACE, rule=epsilon_rule)
declare("sum mean", Trait.SUM, Trait.POOLING, rule=epsilon_rule)
declare("cumsum", Trait.SUM, rule=epsilon_rule)
