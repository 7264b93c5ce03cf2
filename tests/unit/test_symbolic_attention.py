"""Proved in SymPy for all inputs and weights: linear attention's gap, and every parenthesisation of up to 7 factors."""

from dataclasses import replace
from fractions import Fraction

import pytest
import sympy
import torch

from faithcheck import Check, Settings
from faithcheck.axioms import AXIOMS
from faithcheck.axioms.symbolic import (
    DERIVATIONS,
    attention_chain,
    attnlrp,
    chain_of,
    cplrp,
    evaluation,
    exact_rational,
    half_to_each,
    in_words,
    over,
    product_chain,
    propagated,
    shares,
)
from faithcheck.explainers import LRP, builtin_explainers
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.cplrp import CP_LRP
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule
from faithcheck.models import Case, registered_pairs
from faithcheck.models.networks.scalar_product import ScalarProduct, depths, parenthesisations
from faithcheck.models.pairs.product import LEFT, RIGHT, SmallAttention, rational
from faithcheck.plan import plan

PAIR = registered_pairs()["linear_attention.symbolic"]
SIZES = pytest.mark.parametrize(
    ("tokens", "width"), [(2, 2), pytest.param(3, 2, marks=pytest.mark.slow)], ids=["2 tokens", "3 tokens"]
)


def sums_to_zero(relevance):
    return sympy.expand(sum(relevance)) == 0


def minus(a, b):
    return [x - y for x, y in zip(a, b, strict=True)]


# --- linear attention ------------------------------------------------------------------------------------------------


@SIZES
def test_the_gap_of_attnlrp_is_a_quarter_of_value_minus_query(tokens, width):
    left, right = (attention_chain(tree, tokens, width) for tree in (LEFT, RIGHT))
    assert len(left.weights) == 3 * width * width + tokens * width
    assert left.output() == right.output() != 0
    gap = minus(attnlrp(left), attnlrp(right))
    quarter = [(v - q) / 4 for q, v in zip(left.path(0), left.path(2), strict=True)]
    assert [sympy.expand(a - b) for a, b in zip(gap, quarter, strict=True)] == [0] * tokens * width
    assert any(sympy.expand(entry) != 0 for entry in quarter)


@SIZES
def test_the_gap_of_cplrp_is_zero(tokens, width):
    left, right = (attention_chain(tree, tokens, width) for tree in (LEFT, RIGHT))
    assert not any(map(sympy.expand, minus(cplrp(left), cplrp(right))))
    assert not any(map(sympy.expand, minus(cplrp(left), left.path(2))))


@pytest.mark.parametrize(
    ("explainer", "tree", "expected"),
    [
        ("attnlrp", LEFT, ("1/4", "1/4", "1/2")),
        pytest.param("attnlrp", RIGHT, ("1/2", "1/4", "1/4"), marks=pytest.mark.slow),
        ("cplrp", LEFT, (0, 0, 1)),
        pytest.param("cplrp", RIGHT, (0, 0, 1), marks=pytest.mark.slow),
        pytest.param("gradient_x_input", LEFT, (1, 1, 1), marks=pytest.mark.slow),
        pytest.param("integrated_gradients", RIGHT, ("1/3", "1/3", "1/3"), marks=pytest.mark.slow),
    ],
)
def test_the_shares_of_query_key_and_value(explainer, tree, expected):
    chain = attention_chain(tree, 2, 2)
    assert shares(chain, DERIVATIONS[explainer](chain)) == [sympy.Rational(share) for share in expected]


def test_a_map_that_is_not_a_mixture_of_paths_has_no_shares():
    chain = attention_chain(LEFT, 2, 2)
    loo = DERIVATIONS["loo"](chain)
    assert shares(chain, loo) is None, "products of one coordinate with itself are removed once, not counted twice"
    assert in_words(chain, [chain.x[0], 0, 0, 0]) == "(x1, 0, 0, 0)"


def test_relevance_of_attnlrp_sums_to_the_output():
    chain = attention_chain(RIGHT, 2, 2)
    assert sums_to_zero([*attnlrp(chain), -chain.output()])


def test_a_rule_of_thirds_has_the_gap_of_its_shares():
    def thirds(a, v, relevance):
        to_a, to_v = half_to_each(a, v, relevance)
        return to_a * sympy.Rational(2, 3), to_v * sympy.Rational(4, 3)

    left, right = (attention_chain(tree, 2, 2) for tree in (LEFT, RIGHT))
    gap = minus(propagated(left, thirds), propagated(right, thirds))
    assert shares(left, gap) == [sympy.Rational(n, 9) for n in (1 - 3, 0, 6 - 4)]


def run(explainer, pair=PAIR):
    return Check("symbolic", explainer, pair).run(Settings())


@pytest.mark.slow
def test_the_record_has_the_symbolic_gap():
    record = run(builtin_explainers()["attnlrp"])
    assert (record.status, record.detail["symbolic gap"]) == ("holds", "x ⊙ (-1/4·g_q + 1/4·g_v)")
    assert record.detail["rational points"] == 8
    assert run(builtin_explainers()["cplrp"]).detail["symbolic gap"] == "0"
    assert run(builtin_explainers()["integrated_gradients"]).detail["rational points"] == 0


@pytest.mark.parametrize(("name", "rules"), [("attnlrp", ATTNLRP), ("cplrp", CP_LRP)])
def test_a_broken_rule_of_the_explainer_is_a_broken_claim(name, rules):
    record = run(LRP(name, {**rules, "matmul": gradient_rule}))
    assert record.status == "broken claim"
    assert record.gap >= 1


def test_models_of_two_functions_are_refused():
    f, _ = PAIR.build(0, torch.float64, torch.device("cpu"))
    _, g = PAIR.build(1, torch.float64, torch.device("cpu"))
    explainer = builtin_explainers()["attnlrp"]
    assert run(explainer, replace(PAIR, build=lambda *_: (f, g))).status == "not a pair"
    with pytest.raises(ValueError, match="not one function"):
        AXIOMS["symbolic"].measure(explainer, f, g, PAIR.case(0, torch.float64, torch.device("cpu")))


def at_rational_points(explainer, model, derived, x, bits):
    """Whether the explainer equals the derivation, in rational numbers, at points k/16 with |k| < 2^bits."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(1, 2**bits, (3, len(x)), generator=generator).double() / 16
    inputs[1:] *= -1
    attribution = explainer.attribute(model, Case(inputs, torch.zeros(3, dtype=torch.int64), torch.zeros_like(inputs)))
    exact = evaluation(derived, x)
    return [list(map(Fraction, row)) for row in attribution.tolist()] == [exact(row) for row in inputs.tolist()]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tree"), [("attnlrp", LEFT), ("attnlrp", RIGHT), ("cplrp", RIGHT), ("loo", LEFT)])
def test_the_explainers_are_exact_on_three_tokens(name, tree):
    model = SmallAttention(tree, [*rational(0, 3, 2, 2), rational(1, 3, 2)]).eval()
    chain, numbers = chain_of(model)
    derived = [entry.subs(numbers) for entry in DERIVATIONS[name](chain)]
    assert at_rational_points(builtin_explainers()[name], model, derived, chain.x, bits=6)
    assert not at_rational_points(builtin_explainers()[name], model, [2 * r for r in derived], chain.x, bits=6)


def test_rational_numbers_are_exact():
    assert exact_rational(0.1) != sympy.Rational(1, 10)
    assert evaluation([sympy.Symbol("x") ** 2 / 3], [sympy.Symbol("x")])([0.5]) == [Fraction(1, 12)]
    assert over(sympy.Matrix([[6]]), sympy.Matrix([[4]])) == sympy.Matrix([[sympy.Rational(3, 2)]])


# --- products of n factors -------------------------------------------------------------------------------------------

CATALAN = {1: 1, 2: 1, 3: 2, 4: 5, 5: 14, 6: 42, 7: 132}


@pytest.mark.parametrize("n", [*range(1, 7), pytest.param(7, marks=pytest.mark.slow)])
def test_every_parenthesisation_gives_a_leaf_y_over_two_to_its_depth(n):
    trees = set(parenthesisations(0, n - 1))
    assert len(trees) == CATALAN[n]
    explainer = builtin_explainers()["attnlrp"]
    for tree in trees:
        chain = product_chain(tree)
        y = sympy.prod(chain.x)
        derived = attnlrp(chain)
        assert derived == [y * sympy.Rational(1, 2**depth) for depth in depths(tree)]
        assert sum(derived) == y
        # Seven numbers of seven bits: the product has 49, a float64 53.
        assert at_rational_points(explainer, ScalarProduct(tree).eval(), derived, chain.x, bits=7)


def test_a_rule_that_does_not_halve_differs_from_the_derivation():
    (tree, *_) = parenthesisations(0, 6)
    chain = product_chain(tree)
    whole = LRP("attnlrp", {**ATTNLRP, "mul": gradient_rule})
    assert not at_rational_points(whole, ScalarProduct(tree).eval(), attnlrp(chain), chain.x, bits=7)


@pytest.mark.parametrize("name", ["gradient_x_input", "grouped_mask_gate", "integrated_gradients", "loo"])
def test_the_derivation_of_a_long_product_is_the_explainers_map(name):
    (check,) = plan("symbolic", [builtin_explainers()[name]], [registered_pairs()["product.n5_depths_12344"]])[:1]
    assert check.run(Settings()).status == "holds"
