"""Faults of Layer-wise Relevance Propagation: its rules, its tables, its engine."""

from __future__ import annotations

from faithcheck.explainers.lrp.rules.activations import identity_rule
from faithcheck.explainers.lrp.rules.attention import constant_rule
from faithcheck.explainers.lrp.rules.linear_maps import epsilon_rule
from faithcheck.explainers.lrp.rules.products import bilinear_rule, first_operand_constant_rule
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule
from faithcheck.tests.helpers.faults.fault import Fault, Rule, Settings


def second_operand_constant_rule(call):
    """In O = AV the values are constants: the transposed rule of CP-LRP."""
    operands = call.operands_with_relevance()
    if len(operands) < 2:
        return bilinear_rule(call)
    return bilinear_rule(call.with_operands([operands[0], operands[1].detach()]))


def all_to_both_rule(call):
    """All relevance to each operand of a product."""
    return call.stabilised(call.value())


def stopped_rule(call):
    """No relevance passes."""
    return call.value().detach()


def doubled_rule(call):
    """Twice the relevance passes."""
    value = call.value()
    value.register_hook(lambda gradient: 2 * gradient)
    return value


def one_percent_rule(call):
    """1 % more relevance passes."""
    value = epsilon_rule(call)
    value.register_hook(lambda gradient: 1.01 * gradient)
    return value


def positive_rule(call):
    """Negative relevance is cut off."""
    value = epsilon_rule(call)
    value.register_hook(lambda gradient: gradient * (gradient * value.detach() > 0))
    return value


def _rule(explainer: str, name: str, operations: str, rule, why: str, escapes: str = "") -> Fault:
    table = {
        "attnlrp": "lrp.attnlrp:ATTNLRP",
        "cplrp": "lrp.cplrp:CP_LRP",
        "epsilon_lrp": "lrp.epsilon_lrp:EPSILON_LRP",
    }
    return Fault(name, explainer, Rule(table[explainer], operations, rule), why, escapes)


MATRIX_PRODUCTS = "matmul mm bmm mv dot inner outer einsum"
ACTIVATIONS = "gelu silu tanh sigmoid NewGELUActivation GELUActivation"

EPSILON_LRP = [
    _rule("epsilon_lrp", "linear maps pass on 1 % more", "linear", one_percent_rule, "1.01 R"),
    _rule(
        "epsilon_lrp",
        "linear maps pass on positive relevance",
        "linear",
        positive_rule,
        "negative relevance is cut off",
    ),
    _rule("epsilon_lrp", "sums stop", "add", stopped_rule, "a residual or a bias stops relevance"),
    _rule("epsilon_lrp", "ReLU passes on twice", "relu", doubled_rule, "2 R"),
    Fault("a large ε", "epsilon_lrp", Settings({"epsilon": 0.1}), "z + 0.1 absorbs relevance"),
    Fault("a small ε", "epsilon_lrp", Settings({"epsilon": 1e-4}), "z + 1e-4 absorbs relevance"),
    Fault(
        "products allowed",
        "epsilon_lrp",
        Rule("lrp.epsilon_lrp:EPSILON_LRP", f"mul {MATRIX_PRODUCTS}", bilinear_rule),
        "ε-LRP has no rule for products of data: it must refuse",
    ),
]

ATTNLRP = [
    _rule(
        "attnlrp",
        "matrix products not halved",
        MATRIX_PRODUCTS,
        all_to_both_rule,
        "all relevance goes to both operands",
    ),
    _rule("attnlrp", "matmul alone not halved", "matmul", all_to_both_rule, "all relevance goes to both operands"),
    _rule("attnlrp", "einsum not halved", "einsum", all_to_both_rule, "all relevance goes to both operands"),
    _rule("attnlrp", "bmm not halved", "bmm", all_to_both_rule, "all relevance goes to both operands"),
    _rule(
        "attnlrp", "element-wise products not halved", "mul", all_to_both_rule, "all relevance goes to both operands"
    ),
    _rule(
        "attnlrp",
        "attention weights constant",
        MATRIX_PRODUCTS,
        first_operand_constant_rule,
        "CP-LRP's rule for products",
    ),
    _rule("attnlrp", "values constant", MATRIX_PRODUCTS, second_operand_constant_rule, "all relevance to the weights"),
    _rule("attnlrp", "softmax constant", "softmax", constant_rule, "CP-LRP's rule for the softmax"),
    _rule("attnlrp", "softmax by the identity rule", "softmax", identity_rule, "A/Z in place of Eq. 5"),
    _rule("attnlrp", "softmax doubled", "softmax", doubled_rule, "2 R"),
    _rule("attnlrp", "LayerNorm by its gradient", "layer_norm", gradient_rule, "σ is not held constant"),
    _rule(
        "attnlrp", "LayerNorm by the identity rule", "layer_norm", identity_rule, "β and the mean count as relevance"
    ),
    _rule("attnlrp", "activations by their gradient", ACTIVATIONS, gradient_rule, "f′(x), not f(x)/x"),
    _rule("attnlrp", "BERT's GELU 1 % more", "GELUActivation", one_percent_rule, "1.01 R"),
    _rule("attnlrp", "tanh stopped", "tanh", stopped_rule, "no relevance passes"),
    _rule(
        "attnlrp",
        "the residual stopped",
        "add",
        lambda call: call.args[0] + (call.args[1].detach() if hasattr(call.args[1], "detach") else call.args[1]),
        "the second term of a sum is detached",
    ),
    _rule("attnlrp", "sums 1 % more", "add", one_percent_rule, "1.01 R"),
    _rule("attnlrp", "quotients by their gradient", "div rdiv", gradient_rule, "the denominator is not halved"),
    _rule("attnlrp", "max stopped", "max amax maximum", stopped_rule, "no relevance passes"),
    _rule("attnlrp", "permute doubled", "permute", doubled_rule, "2 R"),
    _rule("attnlrp", "reshape doubled", "reshape view", doubled_rule, "2 R"),
    _rule("attnlrp", "a convolution 1 % more", "conv2d", one_percent_rule, "1.01 R"),
    _rule("attnlrp", "split doubled", "split chunk", doubled_rule, "2 R"),
    _rule("attnlrp", "a linear map 1 % more", "linear", one_percent_rule, "1.01 R"),
    _rule("attnlrp", "concatenation stopped", "cat", stopped_rule, "no relevance passes"),
    Fault("a small ε", "attnlrp", Settings({"epsilon": 1e-4}), "z + 1e-4 absorbs relevance"),
    Fault("an ε without sign", "attnlrp", Settings({"epsilon": 1e-2, "signed": False}), "a pole at z = −ε"),
]

CPLRP = [
    _rule("cplrp", "softmax not constant", "softmax", gradient_rule, "AttnLRP's rule for the softmax"),
    _rule("cplrp", "the transposed product rule", MATRIX_PRODUCTS, second_operand_constant_rule, "values constant"),
    _rule("cplrp", "products halved", MATRIX_PRODUCTS, bilinear_rule, "AttnLRP's rule for products"),
    _rule("cplrp", "LayerNorm by its gradient", "layer_norm", gradient_rule, "σ is not held constant"),
    _rule("cplrp", "activations by their gradient", ACTIVATIONS, gradient_rule, "f′(x), not f(x)/x"),
    _rule(
        "cplrp",
        "element-wise products: the first constant",
        "mul",
        first_operand_constant_rule,
        "halves are CP-LRP's rule here",
    ),
    _rule("cplrp", "a linear map 1 % more", "linear", one_percent_rule, "1.01 R"),
    _rule("cplrp", "a linear map stopped", "linear", positive_rule, "negative relevance is cut off"),
    _rule("cplrp", "sums doubled", "add", doubled_rule, "2 R"),
    Fault("a large ε", "cplrp", Settings({"epsilon": 1e-2}), "z + 0.01 absorbs relevance"),
]

BLOCKWISE_LRP = [
    Fault("a large ε", "blockwise_lrp", Settings({"epsilon": 1e-2}), "z + 0.01 absorbs relevance"),
]

PA_LRP = [
    Fault("a large ε", "pa_lrp", Settings({"epsilon": 1e-2}), "z + 0.01 absorbs relevance"),
]

FAULTS = [*EPSILON_LRP, *ATTNLRP, *CPLRP, *BLOCKWISE_LRP, *PA_LRP]
