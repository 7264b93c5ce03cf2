"""Attention sinks: who is one, the exact value that gates give it, the bound beside it, and the axiom of bounds."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from faithcheck import Check, Settings
from faithcheck.axioms.bounds import bounds, largest_changes
from faithcheck.axioms.full_removal import full_removal
from faithcheck.axioms.invariance import invariance
from faithcheck.explainers import builtin_explainers
from faithcheck.explainers.gates import grouped_mask_gate, sinks
from faithcheck.explainers.gates.attention_gates import GatedAttention
from faithcheck.explainers.gates.gate_effects import finite_effect
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.loo.budget import GATE_ROWS, BudgetedLeaveOneOut
from faithcheck.explainers.protocol import SinkWarning, Unsupported
from faithcheck.models import Case, registered_pairs
from faithcheck.models.closed_forms import leave_one_out

PAIRS = {name: pair for name, pair in registered_pairs().items() if name.startswith("sinks.")}
CPU = torch.device("cpu")
FIRST = "sinks.first_token"
FOLLOW_LOO = "finite_mask_gate", "readout_gate", "grouped_mask_gate", "budgeted_loo"
EXACT = {"rtol": 1e-9, "atol": 1e-11}

every_follower = pytest.mark.parametrize(
    "explainer", [builtin_explainers()[name] for name in FOLLOW_LOO], ids=FOLLOW_LOO
)


def subject(name, seed=0):
    return PAIRS[name].build(seed, torch.float64, CPU)[0], PAIRS[name].case(seed, torch.float64, CPU)


def without_warnings(explainer, model, case):
    with warnings.catch_warnings(action="ignore", category=SinkWarning):
        return explainer.attribute(model, case)


# --- the models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [FIRST, "sinks.first_token_of_one_layer", "sinks.registers"])
def test_the_sink_takes_99_percent_of_every_head(name):
    model, case = subject(name)
    with torch.no_grad(), GatedAttention(case) as attention:
        case.run(model)
    for weights in attention.weights:
        taken = weights[..., :2].sum(-1) if name == "sinks.registers" else weights[..., 0]
        assert taken.min() > 0.99


def test_the_learned_sink_takes_99_percent_of_every_head():
    model, _ = subject("sinks.learned")
    for layer in model.layers:
        for rescaled in (False, True):
            assert layer.weights(torch.zeros(1, 2, 6, 6, dtype=torch.float64), rescaled).sum(-1).max() < 0.01


# --- who is a sink ---------------------------------------------------------------------------------------------------


def slow_shares(weights, case):
    """`sink_shares` row by row."""
    positions = weights[0].shape[-1]
    shares = torch.zeros(case.shape)
    for example, of_example in enumerate(case.unpadded):
        rows = [True] * (positions - case.shape[1]) + of_example.tolist()
        for feature in range(case.shape[1]):
            key = positions - case.shape[1] + feature
            others = [row for row in range(positions) if rows[row] and row != key]
            taken = [bool(head[row, key] > 0.9) for layer in weights for head in layer[example] for row in others]
            if of_example[feature] and sum(taken) >= sinks.SINK_ROWS:
                shares[example, feature] = sum(taken) / len(taken)
    return shares


@pytest.mark.parametrize("registers", [0, 2])
@pytest.mark.parametrize("sharpness", [5.0, 30.0])
def test_shares_are_those_of_rows(registers, sharpness):
    generator, features = torch.Generator().manual_seed(0), 7
    mask = torch.ones(3, features)
    mask[1, 5:], mask[2, :2] = 0, 0
    case = Case(torch.zeros(3, features, 1), torch.zeros(3, dtype=torch.int64), torch.zeros(3, features, 1))
    case = replace(case, forward_arguments={"attention_mask": mask})
    shape = 3, 3, registers + features, registers + features
    logits = [torch.randn(shape, generator=generator) for _ in range(4)]
    for layer in logits:
        layer[..., registers + 3] += 1.5
    weights = [(sharpness * layer).softmax(-1) for layer in logits]
    shares = sinks.sink_shares(weights, case)
    torch.testing.assert_close(shares, slow_shares(weights, case))
    assert (shares[:, 3] >= sinks.SINK_SHARE).all()


def test_few_rows_make_no_sink():
    case = Case(torch.zeros(1, 4, 1), torch.zeros(1, dtype=torch.int64), torch.zeros(1, 4, 1))
    weights = torch.zeros(1, 1, 4, 4)
    weights[..., 0] = 1
    assert (sinks.sink_shares([weights] * 5, case) == 0).all()
    assert sinks.sink_shares([weights] * 6, case)[0].tolist() == [1, 0, 0, 0]


# --- the values ------------------------------------------------------------------------------------------------------


@every_follower
def test_a_sink_has_its_exact_value_and_is_named(explainer):
    model, case = subject(FIRST)
    case = replace(case, feature_names=[["<s>", "a", "b", "c", "d", "e"]] * len(case.inputs))
    with pytest.warns(SinkWarning, match=r"feature 0 '<s>' of example . is an attention sink, as are 7 more: "):
        attribution = explainer.attribute(model, case)
    loo = leave_one_out(model, case)
    torch.testing.assert_close(attribution[:, 0], loo[:, 0], **EXACT)
    exact = (attribution - loo).abs() < 1e-9
    assert (attribution.abs().amax(1) <= (attribution.abs() * exact).amax(1)).all()


@every_follower
@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold_and_are_missed_where_sinks_are_not_found(explainer, seed, monkeypatch):
    model, case = subject(FIRST, seed)
    with warnings.catch_warnings(action="ignore", category=SinkWarning):
        assert bounds(explainer, model, case).gap == 0
    for module in (sinks, grouped_mask_gate):
        monkeypatch.setattr(module, "SINK_SHARE", 2)
    assert bounds(explainer, model, case).gap > 0.9


@every_follower
def test_an_example_without_a_sink_keeps_its_values(explainer):
    model, case = subject(FIRST)
    inputs = case.inputs.clone()
    inputs[1::2, 0, 0] = 0  # no mark: no sink
    mixed, odd = replace(case, inputs=inputs), torch.arange(1, 8, 2)
    with warnings.catch_warnings(action="error"):
        alone = explainer.attribute(model, mixed.select(odd))
    torch.testing.assert_close(without_warnings(explainer, model, mixed)[odd], alone, **EXACT)


@every_follower
@pytest.mark.parametrize("name", ["sinks.first_token_of_one_layer", "sinks.registers"])
def test_one_layer_is_exact_beside_a_sink(explainer, name):
    model, case = subject(name)
    with warnings.catch_warnings(action="ignore", category=SinkWarning):
        assert full_removal(explainer, model, case).gap < 1e-9


@every_follower
def test_a_learned_sink_is_refused(explainer):
    with pytest.raises(Unsupported, match="no softmax attention over the features"):
        explainer.attribute(*subject("sinks.learned"))


def test_mask_gate_has_gates_beside_a_learned_sink():
    models, case = (
        PAIRS["sinks.learned"].build(0, torch.float64, CPU),
        PAIRS["sinks.learned"].case(0, torch.float64, CPU),
    )
    measured = invariance(MaskGate(), *models, case)
    assert measured.gap < 1e-9
    assert measured.scale.abs().amax(1).min() > 1e-6


def test_mask_gate_stays_the_derivative_and_warns():
    model, case = subject(FIRST)
    with pytest.warns(SinkWarning, match="has its derivative, which is far from Leave-One-Out: take loo"):
        at_sink = MaskGate().attribute(model, case)[:, 0]
    step = 1e-6
    mask = case.forward_arguments["attention_mask"].clone()
    mask[:, 0] -= step
    fallen = case.run(model) - replace(case, forward_arguments={"attention_mask": mask}).run(model)
    expected = fallen.gather(1, case.target.unsqueeze(1)).squeeze(1) / step
    torch.testing.assert_close(at_sink, expected.detach(), rtol=1e-3, atol=1e-6)


def test_a_budget_has_a_row_for_each_sink():
    model, case = subject(FIRST)
    with pytest.warns(SinkWarning):
        _, report = BudgetedLeaveOneOut(budget=1).attribute_with_report(model, case)
    assert report.rows.tolist() == [GATE_ROWS + 1] * 8
    assert report.exact[:, 0].all()
    assert report.error.isinf().all()


def test_the_largest_estimates_have_rows_until_none_exceeds_the_exact_changes():
    asked = []

    def exact_change(example, feature):
        asked.append((example.tolist(), feature.tolist()))
        return torch.tensor([[3.0, 0.5, 1.0, 0.1, 0.1, 0.1, 0.1], [0.4, 0.5, 1.0, 0.1, 0.1, 0.1, 0.1]])[
            example, feature
        ]

    values = torch.tensor([[0.2, 9.0, -8.0, 2.0, 0.0, 0.0, 0.0], [0.2, 9.0, 8.0, 7.0, 6.0, -5.0, 0.1]])
    case = Case(torch.zeros(2, 7, 1), torch.zeros(2, dtype=torch.int64), torch.zeros(2, 7, 1))
    with pytest.warns(SinkWarning):
        found = sinks.with_exact_values(case, values, torch.tensor([[1.0] + 6 * [0.0]]).expand(2, -1), exact_change)
    assert asked == [([0, 1], [0, 0]), ([0, 1], [1, 1]), ([0, 1], [2, 2]), ([1], [3]), ([1], [4])]
    expected = [[3.0, 0.5, 1.0, 2.0, 0.0, 0.0, 0.0], [0.4, 0.5, 1.0, 0.1, 0.1, -1.0, 0.1]]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_a_row_moves_no_further_than_two_values_are_apart():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(500, 1, 3, 6, generator=generator) * torch.logspace(-1, 2, 500)[:, None, None, None]
    weights, gradient = logits.softmax(-1), torch.randn(500, 1, 3, 6, generator=generator)
    first_order = weights * (gradient - (weights * gradient).sum(-1, keepdim=True))
    effect = finite_effect(weights, gradient, first_order, torch.empty_like(weights))
    apart = gradient.amax(-1, keepdim=True) - gradient.amin(-1, keepdim=True)
    assert (effect.abs() <= apart * (1 + 1e-4)).all()
    assert (effect.abs() / apart).max() > 0.9


# --- the axiom -------------------------------------------------------------------------------------------------------


class Weighted(nn.Module):
    """w·x + c x₁x₂, where features are removed by 0."""

    def __init__(self, weights, product):
        super().__init__()
        self.weights, self.product = weights, product

    def forward(self, inputs):
        return (inputs @ self.weights + self.product * inputs[:, 0] * inputs[:, 1]).unsqueeze(1)


def test_the_largest_change_in_closed_form():
    x = torch.tensor([[1.0, 2.0, -3.0], [2.0, 0.0, 1.0]], dtype=torch.float64)
    case = Case(x, torch.zeros(2, dtype=torch.int64), torch.zeros_like(x))
    weights = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    assert largest_changes(Weighted(weights, 0.0), case).tolist() == [3, 2]
    assert largest_changes(Weighted(weights, 4.0), case).tolist() == [9, 2]  # x₁ beside x₂: 1 + 8


class Scaled:
    name = "scaled"

    def __init__(self, factor):
        self.factor = factor

    def attribute(self, model, case):
        return self.factor * leave_one_out(model, case)


@pytest.mark.parametrize(("factor", "gap"), [(1.0, 0.0), (-1.0, 0.0), (4.0, 0.75), (-4.0, 0.75)])
def test_what_exceeds_the_bound_is_the_gap(factor, gap):
    x = torch.tensor([[1.0, 2.0, -3.0], [2.0, 0.0, 1.0]])
    case = Case(x, torch.zeros(2, dtype=torch.int64), torch.zeros_like(x))
    model = Weighted(torch.tensor([1.0, -1.0, 1.0]), 0.0)
    assert bounds(Scaled(factor), model, case).gap == pytest.approx(gap)


def test_too_many_features_are_not_measured():
    case = Case(torch.ones(1, 11), torch.zeros(1, dtype=torch.int64), torch.zeros(1, 11))
    assert bounds(Scaled(1), Weighted(torch.ones(11), 0.0), case).gap is None


def test_the_record_names_the_sink():
    record = Check("bounds", builtin_explainers()["finite_mask_gate"], PAIRS[FIRST], "f").run(Settings())
    assert record.status == "holds"
    assert "feature 0 of example 0 is an attention sink" in record.detail["warning"]
