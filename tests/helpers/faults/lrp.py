"""Faults of Layer-wise Relevance Propagation: its rules, its tables, its engine."""

from __future__ import annotations

from faithcheck.explainers.lrp.rules.activations import identity_rule
from faithcheck.explainers.lrp.rules.attention import constant_rule
from faithcheck.explainers.lrp.rules.linear_maps import epsilon_rule
from faithcheck.explainers.lrp.rules.products import bilinear_rule, first_operand_constant_rule
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule
from faithcheck.tests.helpers.faults.fault import Fault, Line, Rule, Settings

PRODUCTS = "lrp.rules.products"
NORMS = "lrp.rules.norms"
IDENTITY = "lrp.rules.activations:identity_rule"
BLOCKS = "lrp.blockwise"
PAIRS = "lrp.position_pairs"


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


def _line(explainer: str, name: str, function: str, old: str, new: str, why: str, escapes: str = "") -> Fault:
    return Fault(name, explainer, Line(function, old, new), why, escapes)


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
    _line(
        "epsilon_lrp",
        "no relevance in place of the gradient",
        "lrp.engine:LRP.attribute",
        "case.inputs * gradient",
        "gradient",
        "the factor x",
    ),
    _line(
        "epsilon_lrp",
        "relevance from x − x′",
        "lrp.engine:LRP.attribute",
        "case.inputs * gradient",
        "(case.inputs - 1) * gradient",
        "not x",
    ),
    _line(
        "epsilon_lrp",
        "the identity rule with the slope",
        IDENTITY,
        "ratio = value.detach() / x.detach()",
        "ratio = torch.autograd.grad(value.sum(), x)[0]",
        "f′(x), not f(x)/x",
    ),
    _line("epsilon_lrp", "activations pass on half", IDENTITY, "gradient * ratio)", "gradient * ratio / 2)", "½ R"),
    _line(
        "epsilon_lrp",
        "activations pass on 1 % more",
        IDENTITY,
        "gradient * ratio)",
        "gradient * ratio * 1.01)",
        "1.01 R",
    ),
    _line("epsilon_lrp", "activations turn the sign", IDENTITY, "gradient * ratio)", "-gradient * ratio)", "−R"),
    _line(
        "epsilon_lrp",
        "zero at zero",
        IDENTITY,
        "torch.where(zero, slope, ratio)",
        "torch.where(zero, 0 * slope, ratio)",
        "f′(0) is the limit of f(x)/x",
    ),
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
    _line(
        "attnlrp", "products by thirds", f"{PRODUCTS}:bilinear_rule", "parts=operands", "parts=operands + 1", "⅓ each"
    ),
    _line(
        "attnlrp",
        "the mean left out of LayerNorm",
        f"{NORMS}:layer_norm_rule",
        "(scaled - scaled.mean(axes, keepdim=True))",
        "scaled.clone()",
        "x/σ, not (x − mean)/σ",
    ),
    _line(
        "attnlrp",
        "γ left out of LayerNorm",
        f"{NORMS}:layer_norm_rule",
        "at_value if gamma is None else at_value * gamma",
        "at_value",
        "the weight",
    ),
    _line(
        "attnlrp",
        "RMSNorm's σ not constant",
        f"{NORMS}:rms_norm_rule",
        "x.detach().square()",
        "x.square()",
        "the mean square carries relevance",
    ),
    _line(
        "attnlrp",
        "scores not scaled",
        "fast.propagation:fused_attention",
        "if name in options}",
        'if name in options} | {"scale": 1.0}',
        "1/√d",
    ),
    _line(
        "attnlrp",
        "causal mask forgotten",
        "fast.propagation:fused_attention",
        "if name in options}",
        'if name in options} | {"is_causal": False}',
        "later tokens are seen",
    ),
    _line(
        "attnlrp",
        "a mask of zeros",
        "fast.propagation:fused_attention",
        "if name in options}",
        'if name in options} | {"attn_mask": None}',
        "padding is attended to",
    ),
    _line(
        "attnlrp",
        "all targets",
        "lrp.engine:LRP.propagate",
        "select_target(output, case.target)",
        "output.sum(1)",
        "all outputs are explained",
    ),
    _line(
        "attnlrp",
        "the first class",
        "lrp.engine:LRP.propagate",
        "select_target(output, case.target)",
        "output[:, 0]",
        "class 0",
    ),
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
    _line(
        "blockwise_lrp",
        "halves in place of degrees",
        f"{BLOCKS}:BlockRules.by_degree",
        "operand.degree / mean",
        "1",
        "AttnLRP's ½ and ½",
    ),
    _line(
        "blockwise_lrp",
        "degrees upside down",
        f"{BLOCKS}:BlockRules.by_degree",
        "operand.degree / mean",
        "mean / operand.degree",
        "the shares",
    ),
    _line(
        "blockwise_lrp",
        "products not shared",
        f"{BLOCKS}:BlockRules.by_degree",
        "parts=len(operands)",
        "parts=1",
        "all to each operand",
    ),
    _line(
        "blockwise_lrp",
        "degrees forgotten",
        "lrp.provenance:ProvenanceTable.record",
        "abs(degree) == 1",
        "True",
        "every tensor has degree 1",
    ),
    _line(
        "blockwise_lrp",
        "φ(0) passed on",
        f"{BLOCKS}:from_zero",
        "torch.where(start.isfinite(), start, 0)",
        "0",
        "φ(x)/x: the bias passes on too",
    ),
    _line(
        "blockwise_lrp",
        "activations pass on half",
        f"{BLOCKS}:from_zero",
        "gradient * slope)",
        "gradient * slope / 2)",
        "½ R",
    ),
    _line(
        "blockwise_lrp",
        "activations 1 % more",
        f"{BLOCKS}:from_zero",
        "gradient * slope)",
        "gradient * slope * 1.01)",
        "1.01 R",
    ),
    _line(
        "blockwise_lrp",
        "norms not recognised",
        f"{BLOCKS}:BlockRules.norm",
        "first.root_key != second.root_key or",
        "True or",
        "σ carries relevance",
    ),
    _line(
        "blockwise_lrp",
        "functions not merged",
        f"{BLOCKS}:BlockRules.merged",
        "len(group) == 1 or",
        "True or",
        "x·σ(x) in halves",
    ),
    _line(
        "blockwise_lrp",
        "functions not contracted",
        f"{BLOCKS}:BlockRules.contract",
        "if root.factors and",
        "if False and",
        "a function of a product",
    ),
    _line(
        "blockwise_lrp",
        "quotients by AttnLRP",
        f"{BLOCKS}:BlockRules.quotient_rule",
        "if not tensors_with_relevance(b) or",
        "if True or",
        "the reciprocal has degree 1",
    ),
    _line(
        "blockwise_lrp",
        "constants keep the degree",
        "lrp.provenance:homogeneity",
        "or adds:",
        "or False:",
        "a sum with a constant is not homogeneous",
    ),
    Fault("a large ε", "blockwise_lrp", Settings({"epsilon": 1e-2}), "z + 0.01 absorbs relevance", escapes=""),
]

PA_LRP = [
    _line(
        "pa_lrp",
        "positions left out",
        "lrp.positional:PositionalLRP.attribute",
        "+ of_tokens.to(",
        "+ 0 * of_tokens.to(",
        "AttnLRP's map",
    ),
    _line(
        "pa_lrp",
        "positions twice",
        "lrp.positional:PositionalLRP.attribute",
        "+ of_tokens.to(",
        "+ 2 * of_tokens.to(",
        "relevance of positions is counted twice",
    ),
    _line(
        "pa_lrp",
        "the size of the relevance of positions",
        "lrp.positional:PositionalLRP.attribute",
        ".sum(0)",
        ".sum(0).abs()",
        "positions keep their signs here",
    ),
    _line(
        "pa_lrp",
        "positions in reverse",
        f"{PAIRS}:PositionPairs.of_tokens",
        ".view(shape)",
        ".view(shape).flip(1)",
        "the first token has the last position",
    ),
    _line(
        "pa_lrp",
        "the first rows",
        f"{PAIRS}:PositionPairs.join",
        "row_of_token(position, operand, self.point)",
        "torch.arange(math.prod(in_order)) % math.prod(shape)",
        "padding or a class token may be in them",
    ),
    _line(
        "pa_lrp",
        "the rows of another pass",
        f"{PAIRS}:PositionPairs.join",
        "depends(operand.grad_fn, known[1])",
        "True",
        "the model runs one example after the other",
    ),
    _line(
        "pa_lrp",
        "rotations have no part",
        f"{PAIRS}:AddedPositions.__torch_function__",
        "self.joining.get(name)",
        "AddedPositions.joining.get(name)",
        "cosines and sines are constants",
    ),
    _line(
        "pa_lrp",
        "additions have no part",
        f"{PAIRS}:AddedPositions.__torch_function__",
        "self.joining.get(name)",
        'self.joining.get(name if "mul" in name else "")',
        "added positions are constants",
    ),
    Fault("a large ε", "pa_lrp", Settings({"epsilon": 1e-2}), "z + 0.01 absorbs relevance"),
]

FAULTS = [*EPSILON_LRP, *ATTNLRP, *CPLRP, *BLOCKWISE_LRP, *PA_LRP]
