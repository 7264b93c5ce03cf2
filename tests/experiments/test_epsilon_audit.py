"""The ε audit: AttnLRP's gap between two models of one function, against ε, with and without the sign of z.

The assertions follow from the forms in `faithcheck.tests.helpers.epsilon_audit`; docs/explanation/epsilon.md has the
figures.
"""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from faithcheck.explainers import AttnLRP
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.propagation import Propagation
from faithcheck.models import Case, registered_pairs
from faithcheck.models.architectures.base_models import BASE_MODELS
from faithcheck.models.pairs.product import ScalarProduct, left_comb, parenthesisations
from faithcheck.tests.helpers.epsilon_audit import (
    EPSILONS,
    attributions,
    gaps,
    queries_rescaled,
    smallest_value,
    two_maps_difference,
)

CPU = torch.device("cpu")
FACTORS = (10, 100, 1000)
TABLE_EPSILONS = (1e-9, 1e-6, 1e-4, 1e-2, 1e-1)
SIGNED, UNSIGNED = "z + ε·sign z", "z + ε"
# Round-off of maps whose terms are a few hundred float64 products, relative to the largest value.
ROUND_OFF = 1e-13
both = pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])


@pytest.fixture(scope="module")
def bert(settings):
    base_model = BASE_MODELS["bert"]
    return base_model.model(settings.seed, torch.float64, CPU), base_model.case(settings.seed, torch.float64, CPU)


@pytest.fixture(scope="module")
def two_maps(settings):
    """Two bias-free maps, their product, and a case."""
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        f = nn.Sequential(nn.Linear(6, 10, bias=False), nn.Linear(10, 3, bias=False)).double().eval()
        inputs = torch.randn(5, 6, dtype=torch.float64)
    g = nn.Linear(6, 3, bias=False).double().eval()
    g.weight = nn.Parameter((f[1].weight @ f[0].weight).detach())
    return f, g, Case(inputs, torch.arange(5) % 3, torch.zeros_like(inputs))


@pytest.fixture(scope="module")
def halves(settings):
    pair = registered_pairs()["halves.linear"]
    return *pair.build(settings.seed, torch.float64, CPU), pair.case(settings.seed, torch.float64, CPU)


@pytest.fixture(scope="module")
def rescaled(bert):
    """The maps of the model with its queries times c, keys by 1/c, at every ε: ``{signed: {c: maps}}``."""
    model, case = bert
    models = {1: model, **{c: queries_rescaled(model, c) for c in FACTORS}}
    return {
        signed: {c: attributions(changed, case, signed=signed) for c, changed in models.items()}
        for signed in (True, False)
    }


def nearest(epsilon):
    return min(range(len(EPSILONS)), key=lambda i: abs(math.log(EPSILONS[i] / epsilon)))


def assert_first_order(measured, smallest):
    """The slope is 1 on logarithmic axes, for ε up to a hundredth of the smallest z: the second order is 1% there."""
    linear = [(epsilon, gap) for epsilon, gap in zip(EPSILONS, measured, strict=True) if epsilon <= smallest / 100]
    assert len(linear) >= 4
    for (epsilon, gap), (next_epsilon, next_gap) in itertools.pairwise(linear):
        assert math.log(next_gap / gap) / math.log(next_epsilon / epsilon) == pytest.approx(1, abs=0.02)


# --- the rules without the sign --------------------------------------------------------------------------------------


def relevance_of(operation, x, relevance, epsilon):
    """Relevance of x by the engine, if the result z receives ``relevance``: the gradient at z is relevance / z."""
    point = x.clone().requires_grad_()
    with Propagation(ATTNLRP, epsilon, point, signed=False):
        z = operation(point)
    return x * torch.autograd.grad(z, point, relevance / z.detach())[0]


def test_unsigned_rules_equal_their_equations():
    x, w, relevance = torch.tensor([2.0, -3.0]).double(), torch.tensor([[1.0, 4.0], [2.0, -1.0]]).double(), 5.0
    epsilon, z = 0.1, torch.tensor([2.0 - 6.0, 8.0 + 3.0]).double()
    expected = [sum(x[i] * w[i, j] / (z[j] + epsilon) * relevance for j in range(2)) for i in range(2)]
    torch.testing.assert_close(relevance_of(lambda x: x @ w, x, relevance, epsilon), torch.stack(expected))
    # Both factors of a·b receive a·b·R / (2ab + ε).
    expected = torch.tensor([-6.0, -6.0]).double() * relevance / (2 * -6 + epsilon)
    torch.testing.assert_close(relevance_of(lambda x: x[0] * x[1], x, relevance, epsilon), expected)


def test_at_epsilon_0_the_sign_changes_nothing(bert):
    model, case = bert
    assert torch.equal(*(attributions(model, case, [0.0], signed=signed) for signed in (True, False)))


@pytest.mark.parametrize(
    ("operation", "point", "epsilon", "denominator"),
    [("add", (-1.5, -1.5), 3.0, "1·z"), ("add", (-5e-7, -5e-7), 1e-6, "1·z"), ("mul", (3.0, -1.0), 6.0, "2·z")],
)
def test_a_denominator_of_zero_is_an_error(operation, point, epsilon, denominator):
    class Pole(nn.Module):
        def forward(self, x):
            return getattr(torch, operation)(x[:, :1], x[:, 1:])

    inputs = torch.tensor([point], dtype=torch.float64)
    case = Case(inputs, torch.tensor([0]), torch.zeros_like(inputs))
    with pytest.raises(ZeroDivisionError, match=rf"{operation} in the model \(Pole\): .*{denominator} \+ ε is 0"):
        replace(AttnLRP(epsilon), signed=False).attribute(Pole(), case)
    assert AttnLRP(epsilon).attribute(Pole(), case).isfinite().all()


# --- queries times c, keys by 1/c ------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", FACTORS)
def test_rescaling_preserves_the_function_and_the_map_at_epsilon_0(bert, c):
    model, case = bert
    changed = queries_rescaled(model, c)
    torch.testing.assert_close(changed(case.inputs), model(case.inputs), rtol=1e-12, atol=1e-12)
    (gap,) = gaps(*(attributions(m, case, [0.0]) for m in (model, changed)))
    assert gap < ROUND_OFF


@both
def test_a_copy_has_no_gap(bert, rescaled, signed):
    model, case = bert
    copy = attributions(queries_rescaled(model, 1), case, EPSILONS[::8], signed=signed)
    assert gaps(rescaled[signed][1][::8], copy) == [0.0] * len(copy)


@both
@pytest.mark.parametrize("c", FACTORS)
def test_the_gap_is_of_first_order(bert, rescaled, signed, c):
    model, case = bert
    smallest = min(smallest_value(m, case) for m in (model, queries_rescaled(model, c)))
    assert_first_order(gaps(rescaled[signed][1], rescaled[signed][c]), smallest)


@both
def test_the_gap_grows_with_the_factor(bert, rescaled, signed):
    """(a_f − a_g)/(1 − 1/c) → ε (c·T_k − T_q): two factors give T_k and T_q, which predict the third difference."""
    epsilon, (model, case) = 1e-10, bert
    second_order = epsilon / smallest_value(queries_rescaled(model, 1000), case)
    assert second_order < 1e-3
    i = nearest(epsilon)
    difference = {c: (rescaled[signed][1][i] - rescaled[signed][c][i]) / (1 - 1 / c) for c in FACTORS}
    through_keys = (difference[100] - difference[10]) / 90
    through_queries = 10 * through_keys - difference[10]
    predicted = 1000 * through_keys - through_queries
    # predicted = 11 difference[100] − 10 difference[10]; each of the three differences has this share of second order.
    assert (predicted - difference[1000]).abs().max() < 22 * second_order * difference[1000].abs().max()


def test_a_gap_that_exists_at_epsilon_0_is_not_of_first_order():
    case = Case(torch.tensor([[2.0, 3.0, 4.0]]).double(), torch.tensor([0]), torch.zeros(1, 3).double())
    first, second = (attributions(ScalarProduct(tree), case) for tree in (left_comb(3), parenthesisations(0, 2)[0]))
    with pytest.raises(AssertionError):
        assert_first_order(gaps(first, second), 2)


def test_a_result_of_zeros_has_no_smallest_value():
    zeros = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 1, bias=False)).double()
    zeros[0].weight.data.fill_(-0.5)
    inputs = torch.tensor([[5.0, 3.0]], dtype=torch.float64)
    case = Case(inputs, torch.tensor([0]), torch.zeros_like(inputs))
    assert smallest_value(zeros, case) == 3  # of 5 and 3, −4 three times, and zeros


# --- two maps against their product ----------------------------------------------------------------------------------


@both
def test_two_maps_against_their_product(two_maps, signed):
    f, g, case = two_maps
    left, right = (attributions(model, case, signed=signed) for model in (f, g))
    for epsilon, of_f, of_g in zip(EPSILONS, left, right, strict=True):
        predicted = two_maps_difference(f[0].weight.detach(), f[1].weight.detach(), case, epsilon, signed)
        error = (of_f - of_g - predicted).abs().max()
        assert error <= 1e-15 * of_f.abs().max() * 8 + 1e-10 * predicted.abs().max()
    (gap,) = gaps(*(attributions(model, case, [0.0]) for model in (f, g)))
    assert gap < ROUND_OFF


def test_the_difference_is_bounded_with_the_sign_and_unbounded_without(two_maps):
    """Signed: |a_f − a_g| ≤ |x| ⊙ Σ_j |W₂_j W₁_j|, as ε/(|h| + ε) and s(y) are below 1. Unsigned: it grows as 1/δ."""
    f, g, case = two_maps
    example = case.select(torch.tensor([0]))
    first, second = f[0].weight.detach(), f[1].weight.detach()[example.target[0]]
    bound = example.inputs.abs() * (second.abs() @ first.abs())
    hidden = f[0](example.inputs).detach()[0]
    pole = -float(hidden[hidden < 0].min())

    def difference(delta, signed):
        left, right = (attributions(model, example, [pole * (1 + delta)], signed=signed)[0] for model in (f, g))
        return left - right

    sizes = [float((difference(delta, signed=False) / bound).abs().max()) for delta in (1e-5, 1e-7, 1e-9)]
    assert sizes[1] / sizes[0] == pytest.approx(100, rel=0.05)
    assert sizes[2] / sizes[1] == pytest.approx(100, rel=0.05)
    assert all((difference(delta, signed=True).abs() <= bound).all() for delta in (1e-3, 1e-6, 1e-9, 0.0))
    with pytest.raises(ZeroDivisionError):
        difference(0.0, signed=False)


@both
def test_the_gap_of_two_halves_is_of_first_order(halves, signed):
    f, g, case = halves
    measured = gaps(*(attributions(model, case, signed=signed) for model in (f, g)))
    assert_first_order(measured, min(smallest_value(model, case) for model in (f, g)))
    (gap,) = gaps(*(attributions(model, case, [0.0]) for model in (f, g)))
    assert gap < ROUND_OFF


# --- the figure ------------------------------------------------------------------------------------------------------


def gaps_on(f, g, case, epsilons=EPSILONS):
    """``{signed: {ε: gap}}``."""
    maps = {s: [attributions(model, case, epsilons, signed=s) for model in (f, g)] for s in (True, False)}
    return {s: dict(zip(epsilons, gaps(*maps[s]), strict=True)) for s in (True, False)}


def lines(label, measured, scale=1):
    """A solid line with the sign, a dashed line without."""
    return [
        {"label": label, "x": [scale * e for e in measured[s]], "y": [*measured[s].values()], "dashed": not s}
        for s in (True, False)
    ]


def panel(title, x, lines):
    return {"title": title, "x": x, "y": "gap", "log": "xy", "lines": lines}


def test_the_audit(rescaled, two_maps, halves, settings, figure, table):
    queries = {
        c: {s: dict(zip(EPSILONS, gaps(rescaled[s][1], rescaled[s][c]), strict=True)) for s in (True, False)}
        for c in FACTORS
    }
    maps = {"two maps, their product": gaps_on(*two_maps), "a map, two that add up to it": gaps_on(*halves)}
    base_model, in_table = BASE_MODELS["bert_trained"], [EPSILONS[nearest(epsilon)] for epsilon in TABLE_EPSILONS]
    model, case = (make(settings.seed, torch.float64, CPU) for make in (base_model.model, base_model.case))
    case = case.select(torch.tensor([0]))
    trained = gaps_on(model, queries_rescaled(model, 100), case, in_table)

    how = (
        f"AttnLRP with explicit ε, float64, seed {settings.seed}; gap: the largest difference of the two models' maps, "
        f"relative to the largest attribution. At ε = 0 every gap is below {ROUND_OFF:g}. "
    )
    figure(
        {
            "title": "ε audit: the gap between two models of one function",
            "note": f"{how}Solid: {SIGNED}; dashed: {UNSIGNED}. Left and middle: a small BERT of random weights.",
            "panels": [
                panel("Queries × c, keys ÷ c", "ε", [x for c in FACTORS for x in lines(f"c = {c}", queries[c])]),
                panel("The same, with the sign", "c · ε", [lines(f"c = {c}", queries[c], c)[0] for c in FACTORS]),
                panel("Linear maps", "ε", [x for label in maps for x in lines(label, maps[label])]),
            ],
        }
    )
    columns = {**{f"queries × {c}": queries[c] for c in FACTORS}, "trained BERT, queries × 100": trained, **maps}
    table(
        {
            "title": f"ε audit: gap with {SIGNED} / with {UNSIGNED}",
            "note": how,
            "columns": ["ε", *columns],
            "rows": [
                [f"{e:.0e}", *(f"{column[True][e]:.1e} / {column[False][e]:.1e}" for column in columns.values())]
                for e in in_table
            ],
        }
    )
    # The same transform on trained weights at ε = 0: the maps are the same.
    assert gaps_on(model, queries_rescaled(model, 100), case, [0.0])[True][0.0] < ROUND_OFF
