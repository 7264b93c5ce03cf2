"""The engine: how measurements settle, which checks are planned, and that breaking a rule turns the run red."""

import gc
import math
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from torch import nn

import faithcheck.axioms
from faithcheck import Check, Settings, check_explainer
from faithcheck.axioms import AXIOMS, Measurement, settle
from faithcheck.axioms.equivalence import equivalence
from faithcheck.axioms.loo_correlation import agreement, correlations
from faithcheck.axioms.measure.axiom import axiom, registered
from faithcheck.axioms.measure.expectations import SuppliedExpectation, refuse_stale_expectations
from faithcheck.axioms.measure.measurement import relative_gap
from faithcheck.axioms.measure.roundoff import tolerance
from faithcheck.axioms.measure.statuses import Status
from faithcheck.axioms.symbolic import DERIVATIONS
from faithcheck.explainers import LRP, LeaveOneOut, builtin_explainers
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.modified_gradient import stabilised
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule
from faithcheck.models import Case, Expectation, Pair, register, registered_pairs
from faithcheck.models.networks.scalar_product import left_comb
from faithcheck.plan import not_applicable, plan
from faithcheck.reports.documents.results import NotApplicable

DERIVED = {name: explainer for name, explainer in builtin_explainers().items() if name in DERIVATIONS}
PAIRS = list(registered_pairs().values())
X1X2X3 = registered_pairs()["product.x1x2x3"]


def zero(*args):
    return torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("verdict", "gap", "status"),
    [
        ("HOLDS", 0.0, "holds"),
        ("HOLDS", 1e-9, "holds"),
        ("HOLDS", 1e-3, "broken claim"),
        ("VIOLATES", 0.0, "violation vanished"),
        ("VIOLATES", 0.1, "inconclusive"),
        ("VIOLATES", 0.2, "predicted violation"),
        ("VIOLATES", 0.9, "predicted violation"),
        ("UNCLAIMED", 0.0, "recorded"),
        ("UNCLAIMED", 0.9, "recorded"),
        ("HOLDS", None, "unsupported"),
    ],
)
def test_settling_by_floor(verdict, gap, status):
    expectation = Expectation(verdict, "because", floor=0.2 if verdict == "VIOLATES" else None)
    settled, error = settle(Measurement(gap, 1e-9, torch.zeros(1, 1)), expectation, None)
    assert (settled.label, error) == (status, None)


@pytest.mark.parametrize(
    ("bounds", "gap", "status"),
    [
        ({"verdict": "HOLDS", "ceiling": 1e-3}, 9e-4, "holds"),
        ({"verdict": "HOLDS", "ceiling": 1e-3}, 1.1e-3, "broken claim"),
        ({"verdict": "VIOLATES", "floor": 1e-9, "ceiling": 1e-3}, 9e-4, "predicted violation"),
        ({"verdict": "VIOLATES", "floor": 1e-9, "ceiling": 1e-3}, 0.5, "inconclusive"),
        ({"verdict": "VIOLATES", "floor": 1e-4, "ceiling": 1e-3}, 1e-5, "inconclusive"),
        ({"verdict": "VIOLATES", "floor": 1e-9, "ceiling": 1e-3}, 0.0, "violation vanished"),
    ],
)
def test_settling_by_ceiling(bounds, gap, status):
    expectation = Expectation(why="because", **bounds)
    assert settle(Measurement(gap, 1e-9, torch.zeros(1, 1)), expectation, None)[0].label == status


@pytest.mark.parametrize("factor", [0.5, -1.0])
def test_half_of_an_explainer_and_its_negative_are_not_complete_to_a_thousandth(factor):
    bounds = Expectation("VIOLATES", "quadrature", floor=1e-12, ceiling=1e-3)
    coarse = replace(builtin_explainers()["integrated_gradients"], steps=6)

    class Scaled:
        name = "scaled"
        expected = MappingProxyType({("completeness", "control.mlp.f"): bounds})

        def __init__(self, by):
            self.by = by

        def attribute(self, model, case):
            return self.by * coarse.attribute(model, case)

    statuses = {by: check_explainer(Scaled(by), ["completeness"], ["control.mlp"])[0].status for by in (1.0, factor)}
    assert statuses == {1.0: "predicted violation", factor: "inconclusive"}


@pytest.mark.parametrize(
    "bounds",
    [
        {"verdict": "VIOLATES", "floor": 0.2, "ceiling": 0.1},
        {"verdict": "VIOLATES", "predict": zero, "ceiling": 0.1},
        {"verdict": "UNCLAIMED", "ceiling": 0.1},
        {"verdict": "HOLDS", "ceiling": math.inf},
        {"verdict": "HOLDS", "ceiling": 0.0},
    ],
)
def test_a_ceiling_that_bounds_nothing_is_refused(bounds):
    with pytest.raises(ValueError, match="a ceiling is"):
        Expectation(why="because", **bounds)


def test_every_built_in_floor_has_a_ceiling():
    by_pair = [expectation for pair in PAIRS for expectation in pair.expected.values()]
    by_explainer = [e for one in builtin_explainers().values() for e in getattr(one, "expected", {}).values()]
    floors = [e for e in (*by_pair, *by_explainer) if e.floor is not None]
    assert floors
    assert all(e.ceiling is not None for e in floors), [e.why for e in floors if e.ceiling is None]


@pytest.mark.parametrize(
    ("scale", "status"), [(1.0, "predicted violation"), (1.001, "inconclusive"), (-1.0, "inconclusive")]
)
def test_settling_by_prediction(scale, status):
    values = torch.tensor([[1.0, -2.0], [0.5, 0.0]], dtype=torch.float64)
    expectation = Expectation("VIOLATES", "because", predict=zero)
    settled, error = settle(Measurement(0.5, 1e-9, values), expectation, scale * values)
    assert settled.label == status
    assert error == pytest.approx(abs(1 - scale) / max(1, abs(scale)))


def test_a_violation_that_vanished_is_red_even_if_its_predicted_size_is_zero():
    expectation = Expectation("VIOLATES", "because", predict=zero)
    assert settle(Measurement(0.0, 1e-9, zero()), expectation, zero())[0] is Status.VIOLATION_VANISHED


def test_relative_gaps_are_relative_to_each_example():
    difference = torch.tensor([[1e-3, 0.0], [0.0, 0.0]])
    scale = torch.tensor([[1e-3, 0.0], [1e6, 1e6]])
    assert relative_gap(difference, scale) == pytest.approx(1)
    assert relative_gap(torch.zeros(2, 2), torch.zeros(2, 2)) == 0


def test_tolerance_follows_the_dtype():
    assert tolerance(torch.zeros(1, dtype=torch.float64)) == 1e-9
    assert tolerance(torch.zeros(1)) == 1e-4
    with pytest.raises(ValueError, match=r"in torch\.float16: a check derives its own"):
        tolerance(torch.zeros(1, dtype=torch.float16))


def test_an_incomplete_expectation_is_refused():
    for arguments in ({"why": ""}, {"why": "x", "floor": 0.1}, {"why": "x", "predict": zero}):
        with pytest.raises(ValueError, match=r"needs a reason|takes one of"):
            Expectation("HOLDS", **arguments)
    for arguments in ({}, {"floor": 0.1, "predict": zero}):
        with pytest.raises(ValueError, match="takes one of"):
            Expectation("VIOLATES", "x", **arguments)


def lrp(**rules):
    return LRP("attnlrp", {**ATTNLRP, **rules}, epsilon=0)


def check(explainer, axiom="invariance", pair=X1X2X3):
    return Check(axiom, explainer, pair).run(Settings())


def test_breaking_a_rule_turns_the_run_red():
    assert check(lrp()).status == "predicted violation"
    no_halving = check(lrp(mul=gradient_rule))
    assert no_halving.status == "violation vanished"
    assert not no_halving.passed
    thirds = check(lrp(mul=lambda call: stabilised(call.value(), 0, parts=3)))
    assert thirds.status == "inconclusive"
    assert not thirds.passed
    assert check(lrp(mul=gradient_rule), "symbolic").status == "broken claim"


@pytest.mark.parametrize("broken", [1 + 1e-6, 0.5, -1.0])
def test_breaking_loo_turns_the_run_red(broken):
    class Off:
        name = "loo"

        def attribute(self, model, case):
            left_first = model.tree == left_comb(3)
            return builtin_explainers()["loo"].attribute(model, case) * (broken if left_first else 1)

    assert check(Off()).status == "broken claim"


def test_a_violation_whose_control_does_not_hold_is_inconclusive():
    class Noisy:
        name = "noisy"
        expected = MappingProxyType({("invariance", "product.*"): Expectation("VIOLATES", "it is random", floor=0.1)})

        def attribute(self, model, case):
            return torch.randn(case.shape, dtype=torch.float64)

    record = check(Noisy())
    assert record.status == "inconclusive"
    assert record.detail["control gap"] > 0.1


def test_claims_and_expectations_of_an_explainer_are_used():
    class Mine:
        name = "mine"
        claims = frozenset({"invariance"})
        expected = MappingProxyType(
            {("completeness", "product.x1x2x3.?"): Expectation("VIOLATES", "sums to 3y", floor=0.5)}
        )

        def attribute(self, model, case):
            return builtin_explainers()["gradient_x_input"].attribute(model, case)

    records = check_explainer(Mine(), ["invariance", "completeness"], [X1X2X3])
    assert [(r.subject, r.status) for r in records] == [
        ("product.x1x2x3", "holds"),
        ("product.x1x2x3.f", "predicted violation"),
        ("product.x1x2x3.g", "predicted violation"),
    ]

    class Silent(Mine):
        claims = ()
        expected = MappingProxyType({})

    assert {r.status for r in check_explainer(Silent(), ["invariance"], [X1X2X3])} == {"recorded"}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (("invarience", "product.*"), "did you mean invariance"),
        (("invariance", "product.x1x2x4"), "did you mean product.x1x2x3"),
    ],
)
def test_an_expectation_that_matches_nothing_is_an_error(key, message):
    class Stale:
        name = "stale"
        expected = MappingProxyType({key: Expectation("HOLDS", "x")})

        def attribute(self, model, case):
            return case.inputs

    with pytest.raises(ValueError, match=message):
        refuse_stale_expectations([Stale()], [X1X2X3])


@pytest.mark.parametrize(
    ("key", "message"),
    [(("invariance", "atnlrp"), "did you mean attnlrp"), (("loo", "attnlrp"), "unknown axiom 'loo'")],
)
def test_a_stale_expectation_of_a_pair_is_an_error(key, message):
    pair = replace(X1X2X3, expected={key: Expectation("HOLDS", "x")})
    with pytest.raises(ValueError, match=message):
        refuse_stale_expectations([*builtin_explainers().values()], [pair])


def test_an_unknown_axiom_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean completeness"):
        plan("completenes", [], [])


def test_a_pair_is_registered_once():
    with pytest.raises(ValueError, match="already registered"):
        register(X1X2X3)


def returning(value):
    class Bad:
        name = "bad"
        claims = frozenset({"invariance"})

        def attribute(self, model, case):
            if isinstance(value, Exception):
                raise value
            return value

    return Bad()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(8, 2), "InvalidAttribution: expected shape"),
        (torch.zeros(8, 3), "InvalidAttribution: expected the inputs' torch.float64, got float32"),
        (torch.full((8, 3), float("nan")), "InvalidAttribution: 24 of 24 values are NaN"),
        (torch.zeros(8, 3, dtype=torch.int64), "InvalidAttribution: expected floating point"),
        (torch.zeros(8, 3, device="meta"), "InvalidAttribution: expected a tensor on cpu"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
    ],
    ids=["shape", "dtype", "nan", "integers", "device", "raises"],
)
@pytest.mark.parametrize("axiom", ["invariance", "completeness"])
def test_a_bad_explainer_is_a_red_record_not_a_crash(value, message, axiom):
    side = "" if AXIOMS[axiom].measured_on == "pairs" else "f"
    record = Check(axiom, returning(value), X1X2X3, side).run(Settings())
    assert record.status == "error"
    assert not record.passed
    assert str(record.detail["error"]).startswith(message)
    assert "Traceback" in record.traceback


def test_a_coarse_quadrature_is_recorded_and_other_warnings_are_shown():
    coarse = replace(builtin_explainers()["integrated_gradients"], steps=1, name="coarse")
    mlp = registered_pairs()["control.mlp"]
    record = Check("invariance", coarse, mlp).run(Settings())
    assert record.status == "holds"
    assert "with 1 steps misses completeness by up to" in record.detail["warning"]

    class Warns(LeaveOneOut):
        def attribute(self, model, case):
            warnings.warn("something else", DeprecationWarning, stacklevel=1)
            return super().attribute(model, case)

    with pytest.warns(DeprecationWarning, match="something else"):
        Check("invariance", Warns(), mlp).run(Settings())


def test_garbage_is_collected_while_tests_run():
    """The collector waits while torch is imported and tests are collected."""
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_a_check_leaves_the_random_state_unchanged():
    before = torch.get_rng_state()

    class Draws:
        name = "draws"

        def attribute(self, model, case):
            torch.manual_seed(3)
            return torch.rand(case.shape)

    check(Draws())
    assert torch.equal(before, torch.get_rng_state())


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return (x * self.scale).sum(1, keepdim=True)


def pair_of(f, g):
    inputs = torch.tensor([[0.5, -1.0, 1.0]], dtype=torch.float64)
    case = Case(inputs, torch.zeros(1, dtype=torch.int64), torch.zeros_like(inputs))
    return Pair("test.pair", lambda *_: (f.eval(), g.eval()), lambda *_: case, "they are not equal")


def test_models_with_different_outputs_are_no_pair():
    pair = pair_of(Scaled(1.0), Scaled(1.0 + 1e-6))
    assert Check("equivalence", None, pair).run(Settings()).status == "broken claim"
    settings = 0, torch.float64, torch.device("cpu")
    (f, g), case = pair.build(*settings), pair.case(*settings)
    assert torch.equal(equivalence(f, g, case).values, f(case.inputs) - g(case.inputs))


def test_models_with_equal_outputs_and_different_gradients_are_no_pair():
    class Detached(nn.Module):
        def forward(self, x):
            return (0.5 * x + 0.5 * x.detach()).sum(1, keepdim=True)

    record = Check("equivalence", None, pair_of(Scaled(1.0), Detached())).run(Settings())
    assert record.status == "broken claim"


class Linear(nn.Module):
    """x·w; with a decay other than 1 a forward pass changes the buffer ``calls``."""

    def __init__(self, *weights, decay=1.0):
        super().__init__()
        self.weights, self.decay = nn.Parameter(torch.tensor(weights, dtype=torch.float64)), decay
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += self.decay != 1
        return (x @ self.weights).unsqueeze(1)


class Doubled(Linear):
    """The function of `Linear` with half the weights."""

    def forward(self, x):
        return (x @ (2 * self.weights)).unsqueeze(1)


def function(f):
    """A module that computes f."""
    module = nn.Module()
    module.forward = f
    return module


ONE, WEIGHTS = Scaled(1.0), (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("f", "g", "message"),
    [
        (ONE, ONE, "f and g are one object"),
        (Linear(*WEIGHTS), Doubled(0.5, 1.0, 1.5), "f and g share no weights: make g from f's"),
        (Linear(*WEIGHTS), function(lambda x: (x @ x.new_tensor(WEIGHTS)).unsqueeze(1)), "f and g share no weights"),
        (Linear(*WEIGHTS), Linear(*WEIGHTS, decay=0.9), "the forward pass of g changes calls"),
        (ONE, function(lambda x: x.data.mul_(2).sum(1, keepdim=True) / 2), "g fails on|of g changes its inputs"),
        (
            ONE,
            function(lambda x: (x * torch.randn(1).to(x)).sum(1, keepdim=True)),
            "g gives different outputs when it is",
        ),
        (
            ONE,
            function(lambda x: x.sum(1)),
            r"g fails on float64 \(1, 3\) on cpu: the model returned float64 \(1,\) on cpu",
        ),
        (
            ONE,
            function(lambda x: x),
            r"f gives float64 \(1, 1\) on cpu and g float64 \(1, 3\) on cpu: the outputs of a pair",
        ),
        (ONE, function(lambda x: x.float().sum(1, keepdim=True)), r"g gives float32 \(1, 1\)"),
        (
            ONE,
            function(lambda x: x @ x.new_ones(2, 1)),
            r"g fails on float64 \(1, 3\) on cpu: RuntimeError: mat1 and mat2",
        ),
        (function(lambda x: x.detach().sum(1, keepdim=True)), ONE, "f fails on .* does not require grad"),
        (
            ONE,
            function(lambda x: x.sum(1, keepdim=True) + (len(x) > 1)),
            "g computes another function for an example alone|in a large batch",
        ),
    ],
)
def test_two_models_that_cannot_be_a_pair_are_refused(f, g, message):
    record = Check("equivalence", None, pair_of(f, g)).run(Settings())
    assert record.status == "error"
    assert record.traceback is None
    assert re.search(message, record.detail["error"]), record.detail["error"]


@pytest.mark.parametrize(
    ("g", "point"),
    [
        (lambda x: 1.01 * x.sum(1, keepdim=True), None),  # everywhere
        (lambda x: x.sum(1, keepdim=True) + 5 * torch.relu(x[:, :1] - 1.9), None),
        (lambda x: x.sum(1, keepdim=True) + torch.relu(x[:, :1] - 2.5), None),  # beyond ±2
        (
            lambda x: x.sum(1, keepdim=True) + (x[:, 2:] == -0.123),
            "[0.0, 0.0, -0.123]",
        ),  # in the case
    ],
)
def test_the_record_shows_an_input_on_which_two_models_differ(g, point):
    case = Case(
        *(torch.tensor([[0.5, 2.0, -0.123]], dtype=torch.float64), torch.zeros(1, dtype=torch.int64)),
        torch.zeros(1, 3).double(),
    )
    pair = replace(pair_of(ONE, function(g)), case=lambda *_: case)
    record = Check("equivalence", None, pair).run(Settings())
    assert record.status == "broken claim"
    assert record.detail["told apart by"] == (point or record.detail["told apart by"])


@pytest.mark.parametrize("floor", [0.0, -1.0, math.nan, math.inf])
def test_a_floor_that_every_gap_or_no_gap_reaches_is_refused(floor):
    with pytest.raises(ValueError, match="above 0 and finite"):
        Expectation("VIOLATES", "why", floor=floor)


def test_a_model_in_train_mode_is_no_pair():
    training = replace(pair_of(Scaled(1.0), Scaled(1.0)), build=lambda *_: (Scaled(1.0).eval(), Scaled(1.0).train()))
    record = Check("equivalence", None, training).run(Settings())
    assert "g is in train mode (itself)" in record.detail["error"]


def test_models_that_store_one_weight_in_different_orders_share_it():
    class Reversed(Linear):
        def forward(self, x):
            return (x.flip(1) @ self.weights).unsqueeze(1)

    assert Check("equivalence", None, pair_of(Linear(1.0, 2.0, 3.0), Reversed(3.0, 2.0, 1.0))).run(Settings()).passed


def test_undefined_correlations_are_counted_and_not_averaged():
    loo = torch.tensor([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
    attribution = torch.tensor([[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]])
    pearson, means = agreement(attribution, loo)
    assert pearson == pytest.approx([-1])
    assert (means["examples"], means["undefined"]) == (2, 1)
    assert means["pearson"] == pytest.approx(-1)
    undefined = agreement(attribution[1:], loo[1:])
    assert undefined == (
        [],
        dict.fromkeys(("pearson", "pearson_sum_to_one", "spearman", "kendall")) | {"examples": 1, "undefined": 1},
    )
    assert agreement(attribution[:1, :1], loo[:1, :1])[1]["undefined"] == 1


def test_sum_to_one_flips_the_sign_where_a_map_sums_to_a_negative_number():
    a, b = torch.tensor([1.0, 2.0, 4.0]).numpy(), torch.tensor([-1.0, 0.0, -3.0]).numpy()
    statistics = correlations(a, b)
    direct = torch.corrcoef(torch.stack([torch.tensor(a / a.sum()), torch.tensor(b / b.sum())]))[0, 1]
    assert statistics["pearson_sum_to_one"] == pytest.approx(float(direct))
    assert statistics["pearson_sum_to_one"] == pytest.approx(-statistics["pearson"])


def test_a_correlation_that_is_undefined_everywhere_is_not_green():
    pair = replace(X1X2X3, axioms=frozenset({"loo"}), expected={})
    record = Check("loo", builtin_explainers()["loo"], pair, "f").run(Settings())
    assert record.status == "unsupported"
    assert "undefined on every example" in record.detail["reason"]


def test_the_symbolic_gap_of_x1x2x3_is_a_quarter():
    gaps = {name: check(explainer, "symbolic").detail["symbolic gap"] for name, explainer in DERIVED.items()}
    assert gaps == dict.fromkeys(DERIVED, "0") | dict.fromkeys(("attnlrp", "cplrp"), "x1*x2*x3 · (-1/4, 0, 1/4)")


class Root(nn.Module):
    """Σ√x, NaN below zero."""

    def forward(self, x):
        return x.sqrt().sum(1, keepdim=True)


@pytest.mark.parametrize("axiom", ["equivalence", "loo"])
def test_models_with_nan_outputs_are_red(axiom):
    inputs = torch.ones(1, 3, dtype=torch.float64)
    target = torch.zeros(1, dtype=torch.int64)
    positive = Pair(
        "test.root", lambda *_: (Root().eval(), Root().eval()), lambda *_: Case(inputs, target, -inputs), "the same"
    )
    side, explainer = ("", None) if axiom == "equivalence" else ("f", builtin_explainers()["gradient_x_input"])
    record = Check(axiom, explainer, positive, side).run(Settings())
    assert record.status == "error"
    assert "NaN" in str(record.detail["error"])


def test_a_missing_rule_is_red_if_there_is_an_explicit_expectation():
    without = {name: rule for name, rule in ATTNLRP.items() if name != "mul"}
    for name in ("invariance", "symbolic"):
        record = check(LRP("attnlrp", without, epsilon=0), name)
        assert record.status == "error"
        assert "no rule" in str(record.detail["error"])


class Writes:
    """Returns the same buffer from every call, and zeroes its inputs if asked to."""

    name = "writes"
    claims = frozenset({"invariance"})

    def __init__(self, zeroes):
        self.zeroes, self.buffer = zeroes, torch.zeros(8, 3, dtype=torch.float64)

    def attribute(self, model, case):
        self.buffer.copy_(builtin_explainers()["attnlrp"].attribute(model, case))
        if self.zeroes:
            case.inputs.zero_()
        return self.buffer


def test_two_attributions_in_one_buffer_are_compared_correctly():
    record = check(Writes(zeroes=False))
    assert record.status == "broken claim"
    assert record.gap == pytest.approx(0.5)


def test_an_explainer_that_writes_to_its_case_is_red_and_changes_no_other_case():
    linear = registered_pairs()["linear_attention.assoc"]
    images = linear.case(0, torch.float64, torch.device("cpu")).inputs.clone()
    record = check(Writes(zeroes=True))
    assert "changed case.inputs in place" in str(record.detail["error"])
    linear.case(0, torch.float64, torch.device("cpu")).inputs.zero_()
    assert torch.equal(linear.case(0, torch.float64, torch.device("cpu")).inputs, images)


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("claims", {"invarience"}, "claims an unknown axiom.*did you mean invariance"),
        ("claims", "invariance", "is a collection of axioms"),
        ("claims", None, "is a collection of axioms"),
        ("expected", [], "is a mapping"),
        ("expected", {("invariance", "*"): "VIOLATES"}, "is a mapping"),
        ("name", "", "printable"),
        ("name", "two\nlines", "printable"),
    ],
)
def test_a_malformed_explainer_is_refused(attribute, value, message):
    explainer = returning(torch.zeros(8, 3))
    setattr(explainer, attribute, value)
    with pytest.raises(ValueError, match=message):
        refuse_stale_expectations([explainer], [X1X2X3])


def test_a_constant_map_does_not_correlate_with_loo():
    class Constant:
        name = "constant"
        claims = frozenset({"loo"})

        def attribute(self, model, case):
            return torch.ones(case.shape, dtype=torch.float64)

    mlp = registered_pairs()["control.mlp"]
    record = Check("loo", Constant(), mlp, "f").run(Settings())
    assert record.status == "broken claim"
    assert (record.gap, record.detail["pearson"], record.detail["undefined"]) == (1.0, 0.0, 0)


# --- axioms register themselves --------------------------------------------------------------------------------------


@pytest.fixture
def ones_axiom(monkeypatch):
    """Adds an axiom for one test, with the arguments of the decorator; returns the adding function."""

    def add(name="ones", **fields):
        monkeypatch.setattr("faithcheck.axioms.measure.axiom._registry", {})

        @axiom(name, "every attribution is one", **fields)
        def ones(explainer, model, case):
            values = explainer.attribute(model, case) - 1
            return Measurement(float(values.abs().max()), 1e-9, values)

        monkeypatch.setitem(AXIOMS, name, registered()[name])

    return add


class Ones:
    name = "ones_explainer"

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def attribute(self, model, case):
        return torch.ones_like(case.inputs)


def test_every_module_of_axioms_has_axioms():
    modules = {axiom.measure.__module__ for axiom in AXIOMS.values()}
    files = {file.stem for file in Path(faithcheck.axioms.__path__[0]).glob("*.py")} - {"__init__"}
    assert {module.rpartition(".")[2] for module in modules} == files
    assert all(name == axiom.name for name, axiom in AXIOMS.items())
    assert list(AXIOMS) == sorted(AXIOMS)


def test_the_explainers_are_listed_without_sklearn_and_transformers():
    script = "import sys; from faithcheck.explainers.builtin import builtin_explainers as listed; listed(); "
    script += "print([name for name in ('sklearn', 'transformers') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"


def test_an_axiom_names_its_subjects_in_its_own_file_and_an_explainer_its_expectations(ones_axiom):
    ones_axiom(subjects=("product.x1x2x3",))
    holds = Ones(expected={("ones", "product.*.f"): Expectation("HOLDS", "it returns ones")})
    checks = plan("ones", [holds], registered_pairs().values())
    assert [check.id for check in checks] == ["ones_explainer-product.x1x2x3.f", "ones_explainer-product.x1x2x3.g"]
    assert [check.run(Settings()).status for check in checks] == ["holds", "recorded"]


def test_a_stale_subject_of_an_axiom_is_refused(ones_axiom):
    ones_axiom(subjects=("prodct.*",))
    with pytest.raises(ValueError, match=r"the axiom ones is measured on an unknown pair 'prodct\.\*'"):
        refuse_stale_expectations([], [X1X2X3])


def test_an_axiom_is_registered_once_and_its_name_is_a_marker():
    with pytest.raises(ValueError, match=r"already registered, in faithcheck\.axioms\.loo_correlation"):
        axiom("loo", "again")(lambda *_: None)
    for name in ("Loo", "two words", ""):
        with pytest.raises(ValueError, match="pytest marker"):
            axiom(name, "a name that is no marker")


# --- cells to which an axiom does not apply --------------------------------------------------------------------------


def refuses_ones(explainer):
    return "it returns ones anyway" if explainer.name == "ones_explainer" else None


def test_cells_to_which_an_axiom_does_not_apply_are_not_planned(ones_axiom):
    ones_axiom(subjects=("product.x1x2x3",), not_applicable=refuses_ones)
    explainers = [Ones(), LeaveOneOut()]
    assert {check.explainer.name for check in plan("ones", explainers, [X1X2X3])} == {"loo"}
    assert not_applicable(["ones", "loo", "equivalence"], explainers) == [
        NotApplicable(axiom="ones", explainer="ones_explainer", reason="it returns ones anyway")
    ]
    with pytest.raises(ValueError, match="nothing to check: ones on the 1 pairs"):
        check_explainer(Ones(), ["ones"], [X1X2X3])


def test_an_expectation_of_a_cell_to_which_the_axiom_does_not_apply_is_refused(ones_axiom):
    ones_axiom(subjects=("product.x1x2x3",), not_applicable=refuses_ones)
    expectation = Expectation("HOLDS", "x")
    message = "ones_explainer under ones, which does not apply: it returns ones anyway"
    with pytest.raises(ValueError, match=message):
        refuse_stale_expectations([Ones(expected={("ones", "*"): expectation})], [X1X2X3])
    supplied = SuppliedExpectation("ones", "ones_*", "*", expectation)
    with pytest.raises(ValueError, match=message):
        refuse_stale_expectations([Ones()], [X1X2X3], [supplied])
    pair = replace(X1X2X3, expected={("ones", "ones_explainer"): expectation})
    with pytest.raises(ValueError, match=message):
        refuse_stale_expectations([Ones()], [pair])
    by_glob = SuppliedExpectation("ones", "*", "product.*", expectation)
    refuse_stale_expectations([Ones(), LeaveOneOut()], [X1X2X3], [by_glob])  # it is about LOO as well


def test_only_lrp_has_a_ledger_and_only_derived_explainers_a_derivation():
    cells = not_applicable(AXIOMS, builtin_explainers().values())
    assert {cell.axiom for cell in cells} == {"balance", "conservation", "continuity", "symbolic"}
    assert all(cell.reason for cell in cells)
    with_ledger = {check.explainer.name for check in plan("conservation", builtin_explainers().values(), PAIRS)}
    assert with_ledger == {name for name, explainer in builtin_explainers().items() if isinstance(explainer, LRP)}
    derived = {check.explainer.name for check in plan("symbolic", builtin_explainers().values(), PAIRS)}
    assert derived == set(DERIVED)
