"""The symbolic proof: relevance is derived in SymPy, and the running explainer is compared with the derivation.

Two kinds of models have a symbolic form. Both are a chain of factors that are multiplied in the order of a tree and
read out by a head, y = Σ H ⊙ (F₁F₂…Fₙ):

* a scalar product: the factors are the features, 1 × 1 matrices, and H = 1;
* linear attention: the factors are Q = XW_Q, Kᵀ = (XW_K)ᵀ and V = XW_V. The weights are symbols like the features, so
  the proof is for all weights. Then the model's numbers are substituted, and the running explainer is compared.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import TypeAlias

import sympy
import torch
from torch import nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Measurement, relative_gap
from faithcheck.explainers.protocol import Explainer, Unsupported, attribution_of, expected_like
from faithcheck.models.case import Case
from faithcheck.models.networks.scalar_product import Leaf, ScalarProduct, SmallAttention, Tree, depths, evaluate

# The explainers do a handful of multiplications: 1e-12 is thousands of times their round-off.
TOLERANCE = 1e-12
# Rational points k/16 with |k| ≤ 64. Products of five such numbers, or of three of them and four weights k/4, and sums
# of a few products have at most 50 bits. So float64 computes them and their halves exactly: rationals can be compared.
POINTS, DENOMINATOR = 8, 16

Map: TypeAlias = list[sympy.Expr]
Evaluation: TypeAlias = Callable[[Sequence[float]], list[Fraction]]
Numbers: TypeAlias = tuple[tuple[sympy.Symbol, sympy.Rational], ...]
"""The numbers of a model's weights."""


@dataclass(frozen=True, eq=False)
class Chain:
    """A model in SymPy: Σ H ⊙ (F₁F₂…Fₙ). Equal to itself alone: two models of one form have one chain."""

    tree: Tree  # the order in which the factors are multiplied
    x: Sequence[sympy.Symbol]  # the features, symbols
    factors: Sequence[sympy.Matrix]  # Fᵢ, linear in the features
    head: sympy.Matrix  # H
    weights: Sequence[sympy.Symbol] = ()  # the other symbols; none in a scalar product

    def output(self) -> sympy.Expr:
        """The output y, expanded."""
        return sympy.expand(total(evaluate(self.tree, self.factors), self.head))

    def path(self, factor: int) -> Map:
        """x ⊙ the gradient through one factor, the others held constant."""

        def slope(xi: sympy.Symbol) -> sympy.Expr:
            changed = [f.diff(xi) if i == factor else f for i, f in enumerate(self.factors)]
            return total(evaluate(self.tree, changed), self.head)

        return [sympy.expand(xi * slope(xi)) for xi in self.x]


def total(a: sympy.Matrix, b: sympy.Matrix) -> sympy.Expr:
    """Σ A ⊙ B."""
    return sum(a.multiply_elementwise(b))


def over(a: sympy.Matrix, b: sympy.Matrix) -> sympy.Matrix:
    """A ⊘ B, entry by entry."""
    return a.multiply_elementwise(b.applyfunc(lambda entry: 1 / entry))


@cache
def product_chain(tree: Tree) -> Chain:
    """The scalar product of a tree's leaves."""
    x = sympy.symbols(f"x1:{len(depths(tree)) + 1}")
    return Chain(tree, x, [sympy.Matrix([[xi]]) for xi in x], sympy.Matrix([[1]]))


@cache
def attention_chain(tree: Tree, tokens: int, width: int) -> Chain:
    """Linear attention on so many tokens, with symbols for weights, in the order of the parameters of the model."""
    x = sympy.Matrix(tokens, width, sympy.symbols(f"x1:{tokens * width + 1}"))
    query, key, value = (
        sympy.Matrix(width, width, sympy.symbols(f"{name}1:{width * width + 1}")) for name in ("q", "k", "v")
    )
    head = sympy.Matrix(tokens, width, sympy.symbols(f"h1:{tokens * width + 1}"))
    weights = [entry for matrix in (query, key, value, head) for entry in matrix]
    return Chain(tree, list(x), [x * query, (x * key).T, x * value], head, weights)


def chain_of(model: nn.Module) -> tuple[Chain, dict[sympy.Symbol, sympy.Rational]]:
    """A model in SymPy, and the numbers of its weights; raises `TypeError` if it has no symbolic form here."""
    if isinstance(model, ScalarProduct):
        return product_chain(model.tree), {}
    if isinstance(model, SmallAttention):
        chain = attention_chain(model.tree, *model.head.shape)
        numbers = [exact_rational(w) for weight in model.parameters() for w in weight.flatten().tolist()]
        return chain, dict(zip(chain.weights, numbers, strict=True))
    raise TypeError(f"no symbolic form of {type(model).__name__}")


# --- the derivations -------------------------------------------------------------------------------------------------

SymbolicRule: TypeAlias = Callable[[sympy.Matrix, sympy.Matrix, sympy.Matrix], tuple[sympy.Matrix, sympy.Matrix]]


def half_to_each(a: sympy.Matrix, v: sympy.Matrix, relevance: sympy.Matrix) -> tuple[sympy.Matrix, sympy.Matrix]:
    """Eqs. 3–4 of arXiv 2510.18810 with ε = 0: R_A = A ⊙ (S Vᵀ), R_V = V ⊙ (Aᵀ S), S = R_O / (2O)."""
    s = over(relevance, a * v) / 2
    return a.multiply_elementwise(s * v.T), v.multiply_elementwise(a.T * s)


def all_to_second(a: sympy.Matrix, v: sympy.Matrix, relevance: sympy.Matrix) -> tuple[sympy.Matrix, sympy.Matrix]:
    """CP-LRP: A is constant, so O = AV is a linear map of V (Eq. 1)."""
    return a * 0, v.multiply_elementwise(a.T * over(relevance, a * v))


def propagated(chain: Chain, rule: SymbolicRule) -> Map:
    """Relevance from R_O = H ⊙ O down to the features: the rule at each product, Eq. 1 at the linear maps below."""
    relevance: Map = [sympy.Integer(0)] * len(chain.x)

    def propagate(node: Tree, incoming: sympy.Matrix) -> None:
        if isinstance(node, Leaf):
            factor = chain.factors[node.index]
            share = over(incoming, factor)  # an entry z = Σ wᵢxᵢ passes wᵢxᵢ · R/z on to feature i
            for i, xi in enumerate(chain.x):
                relevance[i] += xi * total(factor.diff(xi), share)
            return
        a, v = evaluate(node.left, chain.factors), evaluate(node.right, chain.factors)
        to_a, to_v = rule(a, v, incoming)
        propagate(node.left, to_a)
        propagate(node.right, to_v)

    propagate(chain.tree, evaluate(chain.tree, chain.factors).multiply_elementwise(chain.head))
    return relevance


def attnlrp(chain: Chain) -> Map:
    """Every product gives half of the relevance to each factor."""
    return propagated(chain, half_to_each)


def cplrp(chain: Chain) -> Map:
    """CP-LRP has a rule for attention, a product of matrices; element-wise products give half to each factor."""
    return propagated(chain, all_to_second if chain.weights else half_to_each)


def gradient_x_input(chain: Chain) -> Map:
    """xᵢ ∂y/∂xᵢ."""
    y = chain.output()
    return [xi * sympy.diff(y, xi) for xi in chain.x]


def integrated_gradients(chain: Chain) -> Map:
    """xᵢ ∫₀¹ ∂y/∂xᵢ(αx) dα."""
    y, alpha = chain.output(), sympy.Symbol("alpha")
    path = {xi: alpha * xi for xi in chain.x}
    slopes = (sympy.Poly(sympy.diff(y, xi).subs(path, simultaneous=True), alpha) for xi in chain.x)
    return [xi * slope.integrate().eval(1) for xi, slope in zip(chain.x, slopes, strict=True)]


def leave_one_out(chain: Chain) -> Map:
    """Y − y(xᵢ = 0)."""
    y = chain.output()
    return [y - y.subs(xi, 0) for xi in chain.x]


def grouped_mask_gate(chain: Chain) -> Map:
    """xᵢ times ⅗ of ∂y/∂xᵢ with i's group of features halved, plus ⅖ of its mean with another of the groups halved."""
    y, groups = chain.output(), 4

    def slope(xi: sympy.Symbol, group: int) -> sympy.Expr:
        return sympy.diff(y, xi).subs({xj: xj / 2 for xj in chain.x[group::groups]}, simultaneous=True)

    def relevance(feature: int, xi: sympy.Symbol) -> sympy.Expr:
        own, *others = (slope(xi, (feature + k) % groups) for k in range(groups))
        return sympy.expand(xi * (3 * own + 2 * sum(others) / len(others)) / 5)

    return [relevance(feature, xi) for feature, xi in enumerate(chain.x)]


Derivation: TypeAlias = Callable[[Chain], Map]
DERIVATIONS: Mapping[str, Derivation] = {
    "attnlrp": attnlrp,
    "cplrp": cplrp,
    "gradient_x_input": gradient_x_input,
    "integrated_gradients": integrated_gradients,
    "loo": leave_one_out,
    "blockwise_lrp": integrated_gradients,
    "mask_gate": gradient_x_input,
    "finite_mask_gate": gradient_x_input,
    "readout_gate": gradient_x_input,
    "grouped_mask_gate": grouped_mask_gate,
}
EXACT = frozenset(DERIVATIONS) - {"integrated_gradients", "blockwise_lrp", "grouped_mask_gate"}
"""Explainers that only multiply and halve. The others have irrational quadrature nodes, or thirds."""


# --- the axiom -------------------------------------------------------------------------------------------------------


def no_derivation(explainer: Explainer) -> str | None:
    """Why an explainer cannot be compared with a derivation; None if there is one of its name."""
    return None if expected_like(explainer) in DERIVATIONS else "it has no symbolic derivation"


@axiom(
    "symbolic",
    "the running explainer equals its symbolic derivation",
    usual_cause=(
        "a rule gives other shares than its derivation: another factor, or another split between two operands"
    ),
    measured_on="pairs",
    not_applicable=no_derivation,
    tolerance=TOLERANCE,
)
def symbolic(explainer: Explainer, f: nn.Module, g: nn.Module, case: Case) -> Measurement:
    """Prove f = g, derive both maps, and measure how far the running explainer is from its derivation.

    ``gap`` is the largest relative difference over the case, in float64 whatever the suite runs in. At random rational
    points an explainer that only multiplies and halves must agree exactly: any difference counts as a gap of 1.
    ``detail["symbolic gap"]`` is the derived a_f − a_g.

    Raises:
        Unsupported: no symbolic derivation is known for this explainer.
        ValueError: f and g are two functions in SymPy.
    """
    name = expected_like(explainer)
    if name not in DERIVATIONS:
        raise Unsupported(f"no symbolic derivation of {explainer.name}")
    (left, numbers), (right, numbers_of_g) = chain_of(f), chain_of(g)
    if output(left) != output(right) or numbers != numbers_of_g:
        raise ValueError(f"f and g are not one function: {output(left)} and {output(right)}")
    derivation, gap, exact, case = DERIVATIONS[name], 0.0, True, case.to(torch.float64)
    for model, chain in ((deepcopy(f).double(), left), (deepcopy(g).double(), right)):
        exactly = with_numbers(derivation, chain, tuple(numbers.items()))
        gap = max(gap, float_gap(explainer, model, case, exactly))
        exact &= name not in EXACT or exactly_equal(explainer, model, case, exactly)
    detail: dict[str, object] = {
        "symbolic gap": difference_in_words(derivation, left, right),
        "rational points": POINTS if name in EXACT else 0,
    }
    return Measurement(gap if exact else max(gap, 1.0), TOLERANCE, torch.zeros(len(case.inputs), 1), detail=detail)


# SymPy takes longer than everything else here, and many explainers ask for the same: each answer is computed once.


@cache
def output(chain: Chain) -> sympy.Expr:
    """The output of a chain."""
    return chain.output()


@cache
def derived(derivation: Derivation, chain: Chain) -> Map:
    """The map of a derivation on a chain."""
    return derivation(chain)


@cache
def with_numbers(derivation: Derivation, chain: Chain, numbers: Numbers) -> Evaluation:
    """The `evaluation` of this map with numbers for the weights."""
    return evaluation([r.subs(dict(numbers)) for r in derived(derivation, chain)], chain.x)


@cache
def difference_in_words(derivation: Derivation, left: Chain, right: Chain) -> str:
    """The map on one chain minus that on another, `in_words`."""
    return in_words(left, [a - b for a, b in zip(derived(derivation, left), derived(derivation, right), strict=True)])


def evaluation(derived: Map, x: Sequence[sympy.Symbol]) -> Evaluation:
    """A function from a rational point to the rational map there, without round-off: the entries are polynomials."""

    def terms(r: sympy.Expr) -> list[tuple[tuple[int, ...], Fraction]]:
        return [(powers, Fraction(int(c.p), int(c.q))) for powers, c in sympy.Poly(r, *x).terms()]

    polynomials = [terms(r) for r in derived]

    def at(point: Sequence[float]) -> list[Fraction]:
        numbers = list(map(Fraction, point))

        def value(powers: Sequence[int]) -> Fraction:
            return math.prod((number**power for number, power in zip(numbers, powers, strict=True)), start=Fraction(1))

        return [sum((c * value(powers) for powers, c in polynomial), Fraction(0)) for polynomial in polynomials]

    return at


def float_gap(explainer: Explainer, model: nn.Module, case: Case, exactly: Evaluation) -> float:
    """The largest relative difference between explainer and derivation on the case."""
    measured = attribution_of(explainer, model, case).double()
    expected = measured.new_tensor([list(map(float, exactly(point))) for point in case.inputs.tolist()])
    return relative_gap(measured - expected, expected)


def exactly_equal(explainer: Explainer, model: nn.Module, case: Case, exactly: Evaluation) -> bool:
    """Whether explainer and derivation agree as rational numbers at random rational points."""
    shape = (POINTS, case.shape[1])
    integers = torch.randint(1, 65, shape) * (1 - 2 * torch.randint(0, 2, shape))
    inputs = integers.to(case.inputs) / DENOMINATOR
    target = case.target.new_zeros(POINTS)
    measured = attribution_of(explainer, model, Case(inputs, target, torch.zeros_like(inputs)))
    return [list(map(Fraction, row)) for row in measured.tolist()] == [exactly(point) for point in inputs.tolist()]


def shares(chain: Chain, relevance: Map) -> list[sympy.Rational] | None:
    """The shares sₖ with relevance = x ⊙ Σ sₖ gₖ for all x and weights, where gₖ is the gradient through factor k.

    The equations compare coefficients; None if they have no solution.
    """
    unknown = sympy.symbols(f"s1:{len(chain.factors) + 1}")
    paths = [chain.path(k) for k in range(len(chain.factors))]
    equations: list[sympy.Expr] = []
    for i, r in enumerate(relevance):
        combined = sum(s * path[i] for s, path in zip(unknown, paths, strict=True))
        equations += sympy.Poly(sympy.expand(r - combined), *chain.x, *chain.weights).coeffs()
    (solution,) = sympy.linsolve(equations, *unknown) or (None,)
    return None if solution is None else list(solution)


def in_words(chain: Chain, gap: Map) -> str:
    """A gap by its shares: ``x1*x2*x3 · (-1/4, 0, 1/4)``, ``x ⊙ (-1/4·g_q + 1/4·g_v)``; ``0`` if the maps are equal."""
    gap = [sympy.expand(entry) for entry in gap]
    if not any(gap):
        return "0"
    shares_of_gap = shares(chain, gap)
    if shares_of_gap is None:
        return f"({', '.join(map(str, gap))})"
    if not chain.weights:
        return f"{chain.output()} · ({', '.join(map(str, shares_of_gap))})"
    named = zip(shares_of_gap, ("g_q", "g_k", "g_v"), strict=True)
    return f"x ⊙ ({' + '.join(f'{share}·{name}' for share, name in named if share)})"


def exact_rational(number: float) -> sympy.Rational:
    """The rational number that equals a float exactly."""
    return sympy.Rational(Fraction(number))
