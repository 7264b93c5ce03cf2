"""Products and quotients: the bilinear rule, and its relatives for constant factors.

The rule that is declared for a product is the ε-rule's: it refuses two operands that both carry relevance. AttnLRP and
CP-LRP replace it in their own tables by rules of this module.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from faithcheck.explainers.lrp.operation_call import OperationCall, Rule, RuleTrait, has
from faithcheck.explainers.lrp.operations import Trait, declare
from faithcheck.explainers.lrp.rules.activations import identity_rule
from faithcheck.explainers.lrp.rules.linear_maps import linear_rule, refuse_several_operands
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule


@has(RuleTrait.PLAIN_GRADIENT_OF_ONE_OPERAND)
def constant_factor_rule(call: OperationCall) -> Any:
    """An element-wise product with a constant: relevance is unchanged."""
    refuse_several_operands(call)
    return gradient_rule(call)


@has(RuleTrait.PLAIN_GRADIENT_OF_ONE_OPERAND, RuleTrait.HALVES)
def bilinear_rule(call: OperationCall) -> Tensor:
    """Eqs. 3–4 if both operands carry relevance; Eq. 1 if only one does, which then receives all of it."""
    operands = len(call.operands_with_relevance())
    if operands > 2:
        raise call.unsupported(
            f"no rule for a product of {operands} operands that carry relevance; multiply two by two"
        )
    return call.stabilised(call.value(), parts=operands)


@has(RuleTrait.PLAIN_GRADIENT_OF_ONE_OPERAND)
def product_rule(call: OperationCall) -> Any:
    """Eqs. 3–4 for an element-wise product; a constant factor leaves relevance unchanged."""
    return bilinear_rule(call) if len(call.operands_with_relevance()) > 1 else gradient_rule(call)


@has(RuleTrait.PLAIN_GRADIENT_OF_ONE_OPERAND)
def first_operand_constant_rule(call: OperationCall) -> Tensor:
    """CP-LRP: in a product of data, O = AV, the first operand (the attention weights) is a constant."""
    operands = len(call.operands_with_relevance())
    return bilinear_rule(call.with_first_constant() if operands == 2 else call)


def quotient_rule(call: OperationCall, product: Rule = product_rule) -> Any:
    """a/b as the product of a and 1/b: the rule for products, and the identity rule for the reciprocal."""
    numerator, denominator = call.argument(0, "input"), call.argument(1, "other")
    if call.name == "rdiv":
        numerator, denominator = denominator, numerator
    if call.kwargs.get("rounding_mode") is not None:
        raise call.unsupported("no rule for a rounded quotient")
    if not (isinstance(denominator, Tensor) and denominator.requires_grad):
        return gradient_rule(call)
    reciprocal = identity_rule(replace(call, operation=torch.reciprocal, args=(denominator,), kwargs={}))
    return product(replace(call, operation=torch.mul, args=(reciprocal, numerator), kwargs={}))


constant_factor_quotient_rule = partial(quotient_rule, product=constant_factor_rule)

declare("matmul mm bmm mv dot inner outer einsum", Trait.MATRIX_PRODUCT, rule=linear_rule)
declare("mul", Trait.ELEMENTWISE_PRODUCT, Trait.ELEMENTWISE_AFFINE, rule=constant_factor_rule)
declare("mul_", Trait.ELEMENTWISE_PRODUCT, Trait.ELEMENTWISE_AFFINE, Trait.IN_PLACE, rule=constant_factor_rule)
declare(
    "div",
    *(Trait.ELEMENTWISE_PRODUCT, Trait.QUOTIENT, Trait.ELEMENTWISE_AFFINE),
    rule=constant_factor_quotient_rule,
)
declare(
    "div_",
    *(Trait.ELEMENTWISE_PRODUCT, Trait.QUOTIENT, Trait.ELEMENTWISE_AFFINE, Trait.IN_PLACE),
    rule=constant_factor_rule,
)
declare("rdiv", Trait.QUOTIENT, rule=constant_factor_quotient_rule)
