"""Block-wise LRP: the operations between two norms, activations or softmaxes are one block, and have one map.

arXiv 2510.18810 suggests, and leaves open, to "canonize larger attention blocks". Here, relevance in a block is the
Integrated Gradients (IG) from 0 at the block's inputs, by closed forms. They depend on the function of the block alone,
and not on the order in which a model computes it.

*Products, by degree.*

1. A product F of n factors is homogeneous: ∇F(αx) = αⁿ⁻¹ ∇F(x). So IG = x ⊙ ∇F(x)/n.
2. To compute this operation by operation, every tensor has a degree. A product of degrees a and b has degree a + b, and
   scales the gradients at its operands by a/(a + b) and b/(a + b); AttnLRP scales both by ½.
3. Along any tree of products these factors telescope to 1/n: (QKᵀ)V and Q(KᵀV) both have x ⊙ (g_q + g_k + g_v)/3.
4. Linear operations keep the degree (rearrangements, constant factors, linear maps without bias, sums of one degree),
   and so do positively homogeneous ones (max, abs, ReLU, leaky ReLU, a clamp at 0). A bias or an addend of zeros is
   none. xᵖ has |p| times the degree of x.
5. All other operations start again at degree 1: activations, softmaxes, norms, linear maps with bias, and sums with a
   constant or of different degrees, such as a residual. softmax(QKᵀ)V is a product of degrees 1 and 1: halves, as in
   AttnLRP.

*Functions of one value.*

1. IG of an element-wise φ(x) are φ(x) − φ(0): the gradient is (φ(x) − φ(0))/x.
2. φ(0) is a bias and keeps its share, wherever a formula has its constants.
3. If φ(0) is 0 (tanh, GELU, SiLU), or infinite (1/x, log x), this is AttnLRP's identity rule.

*Several operations as one.* A canoniser looks at the provenance of each tensor:

1. A function of a function of x, a sum and, in any association, a product of functions of x are one function of x. A
   sum with a constant starts anew: a linear map may add its bias itself, or the next operation may add it.
2. Exponentials over their sum are a softmax: Eq. 5, the plain gradient from the exponents on.
3. A tensor times a statistic of itself of opposite degree, such as 1/√(mean (x − mean x)² + eps), is a norm: the
   statistic is held constant (Ali et al. 2022, arXiv 2202.07304).

So block-wise LRP is invariant to the association of a product, and to the forms of activations, softmaxes and norms
above, but does not have one map for every implementation. The canoniser does not see that the following are equal:
exp(a + b) and exp(a)·exp(b); a(b + c) and ab + ac if c is a constant, or b and c have different degrees, as in
recurrences; (a + 1) − 1 and a; a clamp or hardtanh that limits nothing, and nothing, which depends on the values;
functions of a tensor and of a copy of it that is computed again, or of a tensor that an in-place operation has
overwritten; softmaxes and sums of exponentials by chunks or less their largest term. Pairs in `faithcheck.models.pairs`
have the closed forms. In a product with a gate, u·σ(g), the bias σ(0) = ½ keeps its share too, ¼u.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import isfinite
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.blockwise_expectations import EXPECTED
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.modified_gradient import modified, scale_gradient
from faithcheck.explainers.lrp.operation_call import OperationCall, Rule, RuleTrait, has, tensors_with_relevance
from faithcheck.explainers.lrp.operation_table import operations_with
from faithcheck.explainers.lrp.operations import Trait
from faithcheck.explainers.lrp.propagation import Propagation
from faithcheck.explainers.lrp.provenance import (
    ADDING_DEGREES,
    KEEPING_DEGREE,
    FunctionOfRoot,
    Provenance,
    ProvenanceTable,
    StorageKey,
    factors_of,
    function_of_one_root,
    homogeneity,
    product_call,
    storage_key,
)
from faithcheck.explainers.lrp.rules.activations import identity_rule
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule
from faithcheck.models.case import Case
from faithcheck.models.expectation import Expectations

FUNCTIONS_OF_ONE_VALUE = operations_with(Trait.ONE_VALUE, without=(Trait.MODULE, Trait.REARRANGEMENT))


class BlockRules:
    """Block-wise LRP's rules, and the provenance that they use of one forward pass's tensors."""

    def __init__(self) -> None:
        self.provenance = ProvenanceTable()

    def table(self) -> dict[str, Rule]:
        """AttnLRP's table, with other rules for products and for functions of one value."""
        keeping = {name: partial(self.recording_rule, rule) for name, rule in ATTNLRP.items() if name in KEEPING_DEGREE}
        return {
            **ATTNLRP,
            **keeping,
            **dict.fromkeys(FUNCTIONS_OF_ONE_VALUE, self.function_rule),
            **dict.fromkeys(ADDING_DEGREES, self.product_rule),
            "div": self.quotient_rule,
            "rdiv": self.quotient_rule,
        }

    def of_operands(self, call: OperationCall) -> list[Provenance]:
        """The provenances of the operands with relevance."""
        return [self.provenance.of(x) for x in call.operands_with_relevance()]

    def recording_rule(self, rule: Rule, call: OperationCall) -> Any:
        """Another rule, which also records the provenance of its results."""
        operands = self.of_operands(call)
        result = rule(call)
        written = call.args[0] if result is None else result  # setitem writes to its operand
        for x in [] if callable(result) else tensors_with_relevance(written):
            self.provenance.record(x, call, operands)
        return result

    @has(RuleTrait.FROM_ZERO)
    def function_rule(self, call: OperationCall) -> Any:
        """A function of one value: the gradient at its root is (φ(x) − φ(0))/x."""
        if len(call.operands_with_relevance()) != 1 or call.kwargs.get("inplace") or not torch.is_grad_enabled():
            return identity_rule(call)
        (operand,), value = self.of_operands(call), call.value()
        function = function_of_one_root(call, [operand.function])
        if function is None or value.shape != function.root.shape:
            raise call.unsupported("no rule for an activation that broadcasts an operand with relevance")
        result = from_zero(call, function, value)
        self.provenance.record(result, call, [operand], function)
        return result

    def quotient_rule(self, call: OperationCall) -> Any:
        """a/b as the product of a and 1/b."""
        a, b = call.argument(0, "input"), call.argument(1, "other")
        a, b = (b, a) if call.name == "rdiv" else (a, b)
        if not tensors_with_relevance(b) or call.kwargs.get("rounding_mode") is not None:
            return self.recording_rule(ATTNLRP[call.name], call)
        inverse = replace(call, name="reciprocal", operation=torch.reciprocal, args=(b,), kwargs={})
        return self.product_rule(product_call(call, self.function_rule(inverse), a))

    def product_rule(self, call: OperationCall) -> Any:
        """A norm or a softmax; or else a function of one value; or else a product by degree."""
        operands = self.of_operands(call)
        if len(operands) == 1 or not torch.is_grad_enabled():
            return self.recording_rule(ATTNLRP[call.name], call)
        for canonise in (self.norm, self.merged) if call.name == "mul" else ():
            if (result := canonise(call, operands)) is not None:
                return result
        return self.by_degree(call)

    def by_degree(self, call: OperationCall) -> Tensor:
        """Eqs. 3–4 with shares by degree: operands of degrees a and b receive a/(a + b) and b/(a + b), not ½ each."""
        operands = self.of_operands(call)
        mean = sum(operand.degree for operand in operands) / len(operands)
        scaled = [scale_gradient(operand.tensor, operand.degree / mean) for operand in operands]
        result = call.stabilised(call.with_operands(scaled).value(), parts=len(operands))
        self.provenance.record(result, call, operands)
        return result

    def norm(self, call: OperationCall, operands: list[Provenance]) -> Tensor | None:
        """A tensor times a statistic of itself of opposite degree, which is held constant; None for other products.

        If the tensor is an exponential, the product is a softmax, with the plain gradient from the exponent on.
        """
        first, second = (operand.statistic for operand in operands)
        if first.root_key != second.root_key or first.pooled == second.pooled:
            return None
        if homogeneity(call, [first.power, second.power]) != 0:
            return None
        factors = [o.tensor.detach() if o.statistic.pooled else o.tensor for o in operands]
        root = self.provenance.known.get(first.root_key)
        if root is not None and root.exponent is not None:
            if not root.exponent.valid:
                return None
            exponential = root.exponent.tensor.exp()
            factors = [first.of(exponential), second.of(exponential)]
        result: Tensor = call.with_operands(factors).value()
        return result

    def merged(self, call: OperationCall, operands: list[Provenance]) -> Tensor | None:
        """The product, with its factors that are functions of one root made one function; None if there are none."""
        factors = [factor for operand in operands for factor in factors_of(operand)]
        for factor in [f for f in factors if isinstance(f, Provenance) and f.function.power is None]:
            self.contract(factors, self.provenance.of(factor.function.root))
        groups: dict[StorageKey, list[Provenance]] = {}
        for factor in factors:
            if isinstance(factor, Provenance):
                groups.setdefault(factor.function.root_key, []).append(factor)
        results, any_merged = list[Tensor](), False
        for group in groups.values():
            function = product_of_functions([factor.function for factor in group])
            if len(group) == 1 or function.power is not None:
                results += [factor.tensor for factor in group]
                continue
            any_merged = True
            result = from_zero(call, function, reduce(mul, (factor.tensor.detach() for factor in group)))
            self.provenance.known[storage_key(result)] = replace(self.provenance.of(result), function=function)
            results.append(result)
        if not any_merged:
            return None
        whole = reduce(lambda a, b: self.by_degree(product_call(call, a, b)), results)
        constants = (factor for factor in factors if not isinstance(factor, Provenance))
        return reduce(lambda a, c: self.recording_rule(gradient_rule, product_call(call, a, c)), constants, whole)

    def contract(self, factors: list[Any], root: Provenance) -> None:
        """If all factors of a product are among these factors, replace them by the product."""

        def keys(of: Any) -> list[Any]:
            return [factor.storage_key if isinstance(factor, Provenance) else id(factor) for factor in of]

        if root.factors and not Counter(keys(root.factors)) - Counter(keys(factors)):
            for key in keys(root.factors):
                factors.pop(keys(factors).index(key))
            factors.append(root)


def product_of_functions(functions: list[FunctionOfRoot]) -> FunctionOfRoot:
    """The product of functions of one root."""
    powers = [function.power for function in functions if function.power is not None]
    power = sum(powers) if len(powers) == len(functions) else None
    return replace(functions[0], of=lambda x: reduce(mul, (function.of(x) for function in functions)), power=power)


def from_zero(call: OperationCall, function: FunctionOfRoot, value: Tensor) -> Tensor:
    """The value, with the gradient (φ(x) − φ(0))/x at its root; φ′(0) at x = 0; φ(x)/x if φ(0) is infinite."""
    root = function.root.detach()
    start = torch.as_tensor(function.of(root.new_zeros(())))
    slope = (value.detach() - torch.where(start.isfinite(), start, 0)) / root
    if not isfinite(slope.sum()) and (zero := root == 0).any():
        point = root.clone().requires_grad_()
        (derivative,) = torch.autograd.grad(function.of(point).sum(), point)
        if not derivative[zero].isfinite().all():
            raise call.unsupported("no rule for a function whose slope at 0 is infinite")
        slope = torch.where(zero, derivative, slope)
    return modified(function.root, value, lambda gradient: gradient * slope)


@dataclass(frozen=True)
class Blockwise(LRP):
    """LRP by the rules of `BlockRules`, with a new provenance table for every forward pass."""

    @property
    def expected(self) -> Expectations:
        """What theory expects on the suite's models."""
        return {**EXPECTED, **super().expected}

    def propagate(
        self, model: nn.Module, case: Case, mode: type[Propagation] = Propagation
    ) -> tuple[Propagation, Tensor]:
        """See `LRP.propagate`."""
        block_rules = BlockRules()
        method = LRP(self.name, {**self.rules, **block_rules.table()}, self.epsilon, self.claims, self.signed)
        try:
            return method.propagate(model, case, mode)
        finally:
            block_rules.provenance.known.clear()  # it holds tensors, whose graphs hold the rules: a reference cycle


@builtin("lrp")
def BlockwiseLRP(epsilon: float = 0.0) -> LRP:
    """Block-wise LRP: Integrated Gradients from 0 in every block, by closed forms; one backward pass."""
    summary = "LRP whose products are shared by degree: every association of a product gets one map; ours"
    return Blockwise("blockwise_lrp", ATTNLRP, epsilon, label="Block-wise LRP", summary=summary)
