"""The ε-rule: linear maps with constant weights, and sums."""

from typing import Any

import torch
from torch import Tensor

from faithcheck.explainers.lrp.operation_call import OperationCall, RuleTrait, has
from faithcheck.explainers.lrp.operations import Trait, declare
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule


@has(RuleTrait.PLAIN_GRADIENT)
def epsilon_rule(call: OperationCall) -> Tensor:
    """Eq. 1, for a map that is linear in one operand, or in all its operands together (a sum)."""
    return call.stabilised(call.value())


def refuse_several_operands(call: OperationCall) -> None:
    """Refuse a product of two operands that both carry relevance, in a rule for a product with a constant."""
    if len(call.operands_with_relevance()) > 1:
        raise call.unsupported("no rule for a product of operands that both carry relevance")


@has(RuleTrait.PLAIN_GRADIENT_OF_ONE_OPERAND)
def linear_rule(call: OperationCall) -> Tensor:
    """Eq. 1 for an operation that is linear in each operand but not in several together."""
    refuse_several_operands(call)
    return epsilon_rule(call)


@has(RuleTrait.PLAIN_GRADIENT_OF_ONE_OPERAND)
def sum_with_product_rule(call: OperationCall) -> Any:
    """β·C + α·AB. With one operand of relevance it is a linear map; else a product and a sum, each by its own rule.

    Attention whose logits have a bias, C + αQKᵀ, is of this form: Q and K share the product's part by Eqs. 3–4, and the
    bias keeps its own part by Eq. 1.
    """
    if len(call.operands_with_relevance()) == 1:
        return linear_rule(call)
    names = ("input", "mat1", "mat2") if call.name == "addmm" else ("input", "batch1", "batch2")
    added, a, b = (call.argument(i, name) for i, name in enumerate(names))
    beta, alpha = call.kwargs.get("beta", 1), call.kwargs.get("alpha", 1)

    def steps() -> Tensor:
        product: Tensor = torch.matmul(a, b)
        product = product if alpha == 1 else product * alpha
        return torch.add(product, added if beta == 1 else added * beta)

    return steps


def scatter_reduce_rule(call: OperationCall) -> Any:
    """Values that share an index become their sum or mean, by Eq. 1; or the largest or smallest of them is chosen."""
    reduction = call.argument(4, "reduce")
    if reduction == "prod":
        raise call.unsupported("no rule for a product of values that share an index: multiply two by two")
    return epsilon_rule(call) if reduction in ("sum", "mean") else gradient_rule(call)


declare("linear conv1d conv2d conv3d", Trait.LINEAR_MAP, rule=linear_rule, bias=(2, "bias"))
declare("addmm baddbmm", Trait.LINEAR_MAP, rule=sum_with_product_rule, bias=(0, "input"))
declare("fft_fft fft_fftn", Trait.LINEAR_MAP, rule=linear_rule)
declare("avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d", Trait.LINEAR_MAP, rule=linear_rule)
declare("interpolate fold", Trait.LINEAR_MAP, rule=linear_rule)  # their weights depend on the sizes alone

declare("add sub rsub", Trait.SUM, Trait.ELEMENTWISE_AFFINE, rule=epsilon_rule)
declare("index_add", Trait.SUM, rule=epsilon_rule)
declare("index_add_", Trait.SUM, Trait.IN_PLACE, rule=epsilon_rule)
declare("add_ sub_", Trait.SUM, Trait.ELEMENTWISE_AFFINE, Trait.IN_PLACE, rule=epsilon_rule)
declare("sum mean", Trait.SUM, Trait.POOLING, rule=epsilon_rule)
declare("cumsum", Trait.SUM, rule=epsilon_rule)
declare("scatter_reduce", Trait.ABSORBS, rule=scatter_reduce_rule)
