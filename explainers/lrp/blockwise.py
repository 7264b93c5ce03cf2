"""Block-wise LRP: what lies between two norms, activations or softmaxes is one block, and gets one map.

arXiv 2510.18810 suggests, and leaves open, to "canonize larger attention blocks". Relevance in a block is here what
Integrated Gradients from 0 give to the block's inputs, by closed forms. These depend on the function that the block is,
and not on the order in which it is computed:

* *Products, by degree.* A product F of n factors is homogeneous, ∇F(αx) = αⁿ⁻¹ ∇F(x), so that IG = x ⊙ ∇F(x)/n. To
  have that operation by operation, every tensor has a degree; a product of degrees a and b has degree a + b and scales
  the gradients at its operands by a/(a + b) and b/(a + b), where AttnLRP has ½ and ½. Down any tree this telescopes to
  1/n, so that (QKᵀ)V and Q(KᵀV) both get x ⊙ (g_q + g_k + g_v)/3. A degree is kept by what is linear (rearrangements,
  constant factors, linear maps without bias, sums of one degree) or positively homogeneous (max, abs, ReLU), and xᵖ has
  |p| times that of x. All else starts again at 1: activations, softmaxes, norms, linear maps with bias, sums with a
  constant or of unlike degrees, as of a residual. softmax(QKᵀ)V is a product of degrees 1 and 1: AttnLRP's halves.
* *Functions of one value.* φ(x), element by element, gives x what IG do, φ(x) − φ(0): the gradient is (φ(x) − φ(0))/x.
  φ(0) is a bias and keeps its share, wherever a formula puts its constants. Where φ(0) is 0 (tanh, GELU, SiLU) this is
  AttnLRP's identity rule, and so it is where φ(0) is infinite (1/x, log x).

Several operations may be one. A canoniser looks at what each tensor was made of, and by what:

* a function of a function of x, a sum and, in any association, a product of functions of x are one function of x. A sum
  with a constant starts anew: it is no matter whether a linear map adds its bias or the next operation does;
* exponentials over their sum are a softmax: Eq. 5, the plain gradient from the exponents on;
* a tensor times a statistic of itself of opposite degree, such as 1/√(mean (x − mean x)² + eps), is a norm: the
  statistic is held constant (Ali et al. 2022, arXiv 2202.07304).

What it does not see as equal: exp(a + b) and exp(a)·exp(b); a(b + c) and ab + ac where c is a constant, or b and c are
of unlike degrees; (a + 1) − 1 and a; functions of a tensor and of a copy of it that is computed again, or of what an
in-place operation has overwritten. Of a product with a gate, u·σ(g), the bias σ(0) = ½ keeps its share too, ¼u.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.explainers.lrp.blockwise_expectations import EXPECTED
from faithcheck.explainers.lrp.engine import LRP, Propagation
from faithcheck.explainers.lrp.provenance import (
    KEEPING,
    PRODUCTS,
    Function,
    Key,
    Origin,
    Origins,
    computed,
    factors_of,
    homogeneity,
    joint,
    key,
    product,
)
from faithcheck.explainers.lrp.rules import (
    ACTIVATIONS,
    ATTNLRP,
    OperationCall,
    Rule,
    gradient_rule,
    identity_rule,
    modified,
    tensors_with_relevance,
)
from faithcheck.models.case import Case
from faithcheck.models.pair import Expectation


class Blocks:
    """The rules, and the origins of one forward pass's tensors, by which they go."""

    def __init__(self) -> None:
        self.origins = Origins()

    def rules(self) -> dict[str, Rule]:
        """AttnLRP's table, with rules of its own for products and functions of one value."""
        return {
            **{name: partial(self.kept, rule) if name in KEEPING else rule for name, rule in ATTNLRP.items()},
            **dict.fromkeys(ACTIVATIONS, self.function_rule),
            **dict.fromkeys(PRODUCTS, self.product_rule),
            **dict.fromkeys(("div", "rdiv"), self.quotient_rule),
        }

    def kept(self, rule: Rule, call: OperationCall) -> Any:
        """A rule whose results keep their operands' degree, if that is one."""
        origins = [self.origins.of(x) for x in call.operands_with_relevance()]
        result = rule(call)
        written = call.args[0] if result is None else result  # setitem writes to its operand
        for x in [] if callable(result) else tensors_with_relevance(written):
            self.origins.note(x, call, origins)
        return result

    def function_rule(self, call: OperationCall) -> Any:
        """A function of one value: from its root on, the gradient is (φ(x) − φ(0))/x."""
        if len(call.operands_with_relevance()) != 1 or call.kwargs.get("inplace") or not torch.is_grad_enabled():
            return identity_rule(call)
        origin, value = self.origins.of(call.operands_with_relevance()[0]), call.value()
        function = joint(call, [origin.function])
        if function is None or value.shape != function.root.shape:
            raise call.unsupported("no rule for an activation that broadcasts what carries relevance")
        result = from_zero(call, function, value)
        self.origins.note(result, call, [origin], function)
        return result

    def quotient_rule(self, call: OperationCall) -> Any:
        """a/b as the product of a and 1/b."""
        a, b = call.argument(0, "input"), call.argument(1, "other")
        a, b = (b, a) if call.name == "rdiv" else (a, b)
        if not tensors_with_relevance(b) or call.kwargs.get("rounding_mode") is not None:
            return self.kept(ATTNLRP[call.name], call)
        inverse = replace(call, name="reciprocal", operation=torch.reciprocal, args=(b,), kwargs={})
        return self.product_rule(product(call, self.function_rule(inverse), a))

    def product_rule(self, call: OperationCall) -> Any:
        """A norm or a softmax, a function of one value, or else a product by degree."""
        origins = [self.origins.of(x) for x in call.operands_with_relevance()]
        if len(origins) == 1 or not torch.is_grad_enabled():
            return self.kept(ATTNLRP[call.name], call)
        for whole in (self.norm, self.merged) if call.name == "mul" else ():
            if (result := whole(call, origins)) is not None:
                return result
        return self.by_degree(call)

    def by_degree(self, call: OperationCall) -> Tensor:
        """Eqs. 3–4 with shares by degree: operands of degrees a and b get a/(a + b) and b/(a + b) in place of ½."""
        origins = [self.origins.of(x) for x in call.operands_with_relevance()]
        mean = sum(origin.degree for origin in origins) / len(origins)
        operands = [scaled(origin.tensor, origin.degree / mean) for origin in origins]
        result = call.stabilised(computed(call, operands), parts=len(origins))
        self.origins.note(result, call, origins)
        return result

    def norm(self, call: OperationCall, origins: list[Origin]) -> Tensor | None:
        """A tensor times a statistic of itself of opposite degree, which is held; None if the product is not that.

        Of an exponential it is a softmax, with the plain gradient from the exponent on.
        """
        one, other = (origin.statistic for origin in origins)
        if one.key != other.key or one.pooled == other.pooled or homogeneity(call, [one.power, other.power]) != 0:
            return None
        operands = [o.tensor.detach() if o.statistic.pooled else o.tensor for o in origins]
        source = self.origins.known.get(one.key)
        if source is not None and source.exponent is not None:
            if not source.exponent.valid:
                return None
            exponential = source.exponent.tensor.exp()
            operands = [one.of(exponential), other.of(exponential)]
        result: Tensor = computed(call, operands)
        return result

    def merged(self, call: OperationCall, origins: list[Origin]) -> Tensor | None:
        """The product with its factors that are functions of one root made one function; None if there are none."""
        factors = [factor for origin in origins for factor in factors_of(origin)]
        for factor in [f for f in factors if isinstance(f, Origin) and f.function.power is None]:
            self.contract(factors, self.origins.of(factor.function.root))
        groups: dict[Key, list[Origin]] = {}
        for factor in factors:
            if isinstance(factor, Origin):
                groups.setdefault(factor.function.key, []).append(factor)
        results, found = list[Tensor](), False
        for group in groups.values():
            function = multiplied([factor.function for factor in group])
            if len(group) == 1 or function.power is not None:
                results += [factor.tensor for factor in group]
                continue
            found = True
            results.append(from_zero(call, function, reduce(mul, (factor.tensor.detach() for factor in group))))
            self.origins.known[key(results[-1])] = replace(self.origins.of(results[-1]), function=function)
        if not found:
            return None
        whole = reduce(lambda a, b: self.by_degree(product(call, a, b)), results)
        constants = (factor for factor in factors if not isinstance(factor, Origin))
        return reduce(lambda a, c: self.kept(gradient_rule, product(call, a, c)), constants, whole)

    def contract(self, factors: list[Any], root: Origin) -> None:
        """Where the factors of a product are all among these factors, put the product in their place."""

        def names(of: Any) -> list[Any]:
            return [factor.key if isinstance(factor, Origin) else id(factor) for factor in of]

        if root.factors and not Counter(names(root.factors)) - Counter(names(factors)):
            for name in names(root.factors):
                factors.pop(names(factors).index(name))
            factors.append(root)


def multiplied(functions: list[Function]) -> Function:
    """The product of functions of one root."""
    powers = [function.power for function in functions if function.power is not None]
    power = sum(powers) if len(powers) == len(functions) else None
    return replace(functions[0], of=lambda x: reduce(mul, (function.of(x) for function in functions)), power=power)


def scaled(x: Tensor, share: float) -> Tensor:
    """The same tensor, its gradient multiplied by a number."""
    if share == 1:
        return x
    alias = x.view_as(x)
    alias.register_hook(lambda gradient: gradient * share)  # type: ignore[no-untyped-call]
    return alias


def from_zero(call: OperationCall, function: Function, value: Tensor) -> Tensor:
    """The value, with the gradient (φ(x) − φ(0))/x at the function's root; φ′(0) at 0; φ(x)/x if φ(0) is infinite."""
    root = function.root.detach()
    start = torch.as_tensor(function.of(root.new_zeros(())))
    slope = (value.detach() - torch.where(start.isfinite(), start, 0)) / root
    if not slope.sum().isfinite() and (zero := root == 0).any():
        point = root.clone().requires_grad_()
        (derivative,) = torch.autograd.grad(function.of(point).sum(), point)
        if not derivative[zero].isfinite().all():
            raise call.unsupported("no rule where its slope at 0 is infinite")
        slope = torch.where(zero, derivative, slope)
    return modified(function.root, value, lambda gradient: gradient * slope)


@dataclass(frozen=True)
class Blockwise(LRP):
    """LRP by the rules of `Blocks`, made anew for every forward pass."""

    expected: Mapping[tuple[str, str], Expectation] = field(default_factory=lambda: EXPECTED)

    def propagate(
        self, model: nn.Module, case: Case, kind: type[Propagation] = Propagation
    ) -> tuple[Propagation, Tensor]:
        """See `LRP.propagate`."""
        blocks = Blocks()
        method = LRP(self.name, {**self.rules, **blocks.rules()}, self.epsilon, self.claims, self.signed)
        try:
            return method.propagate(model, case, kind)
        finally:
            blocks.origins.known.clear()  # tensors lead to the rules' gradients, and these to the rules


def BlockwiseLRP(epsilon: float = 0.0) -> LRP:
    """Block-wise LRP: Integrated Gradients from 0 in every block, by closed forms; one backward pass."""
    return Blockwise("blockwise_lrp", ATTNLRP, epsilon)
