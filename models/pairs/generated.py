"""Generated pairs: the subject of the search, and the smallest counterexamples that it found for AttnLRP.

For AttnLRP the search (`faithcheck.axioms.generated`) finds five identities: (x₁x₂)x₃ = x₁(x₂x₃), which is the pair
``product.x1x2x3``, and the four here, derived in `faithcheck.models.networks.counterexamples`. The four contain no
matrix product, so CP-LRP gives the maps of AttnLRP. ε-LRP has no rule for products of data, and otherwise the same
rules: it gives the same on the last two.
"""

from faithcheck.models.cases import factors
from faithcheck.models.expectation import ALL_LRP, INVARIANT_BY_DEFINITION, Expectations, Predict, expect, expect_lrp
from faithcheck.models.networks.counterexamples import (
    distributed_gap,
    exp_of_sum_gap,
    sigmoid_by_tanh_gap,
    tanh_by_sigmoid_gap,
)
from faithcheck.models.networks.expressions import Expression, Input, Term, apply, features
from faithcheck.models.pair import Build, Pair, copies, invariance_pair, register
from faithcheck.models.pairs.product import BILINEAR_RULE, LRP_OF_PRODUCTS

x1, x2, x3 = (Input(i) for i in range(3))


def models_of_terms(left: Term, right: Term) -> Build:
    return copies(lambda: Expression(left), term=right)


def counterexample(name: str, left: Term, right: Term, predict: Predict, why: str, of: str = LRP_OF_PRODUCTS) -> None:
    """Register a counterexample: two terms, and a_left − a_right."""
    case, expected = factors(features(left)), expect_lrp(why, predict=predict, of=of)
    invariance_pair(name, models_of_terms(left, right), case, expected, why=f"{left} = {right}")


counterexample(
    "generated.exp_of_sum",
    apply("exp", x1 + x2),
    apply("exp", x1) * apply("exp", x2),
    exp_of_sum_gap,
    "a sum shares in proportion to its terms, a product of exponentials in halves: the gap is y·(xᵢ/(x₁ + x₂) − ½)",
)
counterexample(
    "generated.times_one_more",
    x1 * (x2 + 1),
    x1 * x2 + x1 * 1,
    distributed_gap,
    "a product with data gives x₁ half, a product with a constant all: the gap is (−½x₁, 0)",
)
counterexample(
    "generated.tanh_by_sigmoid",
    apply("tanh", x1),
    2 * apply("sigmoid", 2 * x1) - 1,
    tanh_by_sigmoid_gap,
    "x gets tanh x on the left and 2σ(2x) = tanh x + 1 on the right, as a constant gets nothing: the gap is −1",
    of=ALL_LRP,
)
counterexample(
    "generated.sigmoid_by_tanh",
    apply("sigmoid", x1),
    0.5 * (1 + apply("tanh", 0.5 * x1)),
    sigmoid_by_tanh_gap,
    "x gets σ(x) on the left and ½·tanh(½x) = σ(x) − ½ on the right, as a constant gets nothing: the gap is ½",
    of=ALL_LRP,
)


EXPECTED: Expectations = {
    **{("generated", explainer): expectation for (_, explainer), expectation in INVARIANT_BY_DEFINITION.items()},
    **expect(
        "generated",
        LRP_OF_PRODUCTS,
        "of the rewrites on four operations or fewer, only re-association of three factors changes a share: ¼, ¼, ½ "
        "of y become ½, ¼, ¼, a gap of ½; where a factor occurs twice, ½, ½ become ¾, ¼, a gap of ⅓",
        floor=1 / 3,
        ceiling=0.51,  # ½, and room for round-off
        cite=BILINEAR_RULE,
    ),
    **expect(
        "generated",
        "epsilon_lrp",
        "the smallest pairs that it does not refuse take a constant c out of an activation: tanh x = 2σ(2x) − 1 and "
        "σ(x) = ½(1 + tanh ½x) have a gap of ½ or more, exp(x + c) = exp(x)·exp(c) of |c|/max(|x + c|, |x|): |c| is "
        "at least 1, and either logarithm at most ln 64 < 5, as points with larger values are left out; the largest is "
        "that of any two maps, 2: at tanh x = −½ the other map is ½",
        floor=1 / 5,
        ceiling=2,
    ),
}

register(
    Pair(
        "generated.search",
        models_of_terms((x1 * x2) * x3, x1 * (x2 * x3)),
        factors(3),
        "multiplication is associative; the search draws its own pairs, this pair stands for all of them",
        cite=BILINEAR_RULE,
        expected=EXPECTED,
        axioms=frozenset({"generated"}),
    )
)
