"""The symbolic proof: on scalar products, relevance is derived in SymPy and the running explainer is held against it.

Only pairs whose models carry an expression tree (``model.tree``) have a symbolic form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import sympy
import torch
from torch import nn

from faithcheck.axioms.verdicts import Measurement, relative_gap
from faithcheck.explainers.protocol import Explainer, Unsupported, attribution_of
from faithcheck.models.case import Case
from faithcheck.models.pairs.product import Leaf, ScalarProduct, Tree, evaluate

# The explainers do a handful of multiplications: 1e-12 is thousands of rounding errors.
TOLERANCE = 1e-12
# Rational points k/16 with |k| ≤ 64: products of five such numbers have at most 30 bits, so float64 computes them, and
# their halves, exactly, and the comparison is one of rational numbers.
POINTS, DENOMINATOR = 8, 16

Derivation = Callable[[Tree, Sequence[sympy.Symbol]], list[sympy.Expr]]


def bilinear(tree: Tree, x: Sequence[sympy.Symbol]) -> list[sympy.Expr]:
    """Eqs. 3–4 of arXiv 2510.18810 at every product, with ε = 0, from the root's relevance R = y down."""
    relevance: list[sympy.Expr] = [sympy.Integer(0)] * len(x)

    def propagate(node: Tree, incoming: sympy.Expr) -> None:
        if isinstance(node, Leaf):
            relevance[node.index] = sympy.simplify(incoming)
            return
        a, v = evaluate(node.left, x), evaluate(node.right, x)
        s = incoming / (2 * a * v)
        propagate(node.left, a * s * v)
        propagate(node.right, v * a * s)

    propagate(tree, evaluate(tree, x))
    return relevance


def gradient_x_input(tree: Tree, x: Sequence[sympy.Symbol]) -> list[sympy.Expr]:
    """xᵢ ∂y/∂xᵢ."""
    y = evaluate(tree, x)
    return [xi * sympy.diff(y, xi) for xi in x]


def integrated_gradients(tree: Tree, x: Sequence[sympy.Symbol]) -> list[sympy.Expr]:
    """xᵢ ∫₀¹ ∂y/∂xᵢ(αx) dα."""
    y, alpha = evaluate(tree, x), sympy.Symbol("alpha")
    path = {xi: alpha * xi for xi in x}
    return [xi * sympy.integrate(sympy.diff(y, xi).subs(path, simultaneous=True), (alpha, 0, 1)) for xi in x]


def leave_one_out(tree: Tree, x: Sequence[sympy.Symbol]) -> list[sympy.Expr]:
    """Y − y(xᵢ = 0)."""
    y = evaluate(tree, x)
    return [y - y.subs(xi, 0) for xi in x]


DERIVATIONS: Mapping[str, Derivation] = {
    "attnlrp": bilinear,
    "cplrp": bilinear,  # its own rule speaks of attention; element-wise products keep the half
    "gradient_x_input": gradient_x_input,
    "integrated_gradients": integrated_gradients,
    "loo": leave_one_out,
}
EXACT = frozenset({"attnlrp", "cplrp", "gradient_x_input", "loo"})  # quadrature nodes are irrational


def symbolic(explainer: Explainer, f: nn.Module, g: nn.Module, case: Case) -> Measurement:
    """Prove f = g, derive both maps, and measure how far the running explainer is from its derivation.

    ``gap`` is the largest relative difference over the case (float64) and over random rational points, where an
    explainer that only multiplies and halves must agree exactly: any difference there counts as a gap of 1.
    ``detail["symbolic gap"]`` is a_f − a_g as SymPy has it.

    Raises:
        Unsupported: no symbolic derivation is known for this explainer.
    """
    if explainer.name not in DERIVATIONS:
        raise Unsupported(f"no symbolic derivation of {explainer.name}")
    assert isinstance(f, ScalarProduct)
    assert isinstance(g, ScalarProduct)
    x = sympy.symbols(f"x1:{case.shape[1] + 1}")
    if sympy.expand(evaluate(f.tree, x) - evaluate(g.tree, x)) != 0:
        raise ValueError(f"not one function: {evaluate(f.tree, x)} and {evaluate(g.tree, x)}")
    derive = DERIVATIONS[explainer.name]
    left, right = derive(f.tree, x), derive(g.tree, x)
    gap = max(float_gap(explainer, model, case, x, derived) for model, derived in ((f, left), (g, right)))
    if explainer.name in EXACT:
        exact = all(exactly_equal(explainer, model, case, x, derived) for model, derived in ((f, left), (g, right)))
        gap = gap if exact else max(gap, 1.0)
    detail: dict[str, object] = {
        "symbolic gap": in_multiples_of(evaluate(f.tree, x), [a - b for a, b in zip(left, right, strict=True)]),
        "rational points": POINTS if explainer.name in EXACT else 0,
    }
    return Measurement(gap, TOLERANCE, torch.zeros(len(case.inputs), 1), detail=detail)


def float_gap(explainer: Explainer, model: nn.Module, case: Case, x: Sequence[Any], derived: list[sympy.Expr]) -> float:
    """The largest relative difference between explainer and derivation on the case."""
    ran = attribution_of(explainer, model, case).double()
    points = [dict(zip(x, map(exact_rational, row), strict=True)) for row in case.inputs.tolist()]
    expected = ran.new_tensor([[float(r.subs(point)) for r in derived] for point in points])
    return relative_gap(ran - expected, expected)


def exactly_equal(
    explainer: Explainer, model: nn.Module, case: Case, x: Sequence[Any], derived: list[sympy.Expr]
) -> bool:
    """Whether explainer and derivation agree as rational numbers at random rational points."""
    integers = torch.randint(1, 65, (POINTS, len(x))) * (1 - 2 * torch.randint(0, 2, (POINTS, len(x))))
    inputs = integers.to(case.inputs) / DENOMINATOR
    target = case.target.new_zeros(POINTS)
    ran = attribution_of(explainer, model, Case(inputs, target, torch.zeros_like(inputs)))
    for row, relevances in zip(integers.tolist(), ran.tolist(), strict=True):
        point = {xi: sympy.Rational(k, DENOMINATOR) for xi, k in zip(x, row, strict=True)}
        for r, measured in zip(derived, relevances, strict=True):
            if exact_rational(measured) != r.subs(point):
                return False
    return True


def in_multiples_of(y: sympy.Expr, gap: Sequence[sympy.Expr]) -> str:
    """The gap of each factor in multiples of the product y, such as ``x1*x2*x3 · (-1/4, 0, 1/4)``; ``0`` if none."""
    multiples = [sympy.cancel(entry / y) for entry in gap]
    return f"{y} · ({', '.join(map(str, multiples))})" if any(multiples) else "0"


def exact_rational(number: float) -> sympy.Rational:
    """The rational number that a float is, to the last bit."""
    return sympy.Rational(Fraction(number))
