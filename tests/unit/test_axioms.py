"""Each axiom is satisfied by a reference explainer, and violated by a made-up one by exactly the predicted amount."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch
from torch import nn

from faithcheck import Check, Settings
from faithcheck.axioms import AXIOMS
from faithcheck.axioms.batching import batching
from faithcheck.axioms.dummy import depends
from faithcheck.axioms.linearity import linearity
from faithcheck.axioms.measure.roundoff import tolerance_is
from faithcheck.axioms.precision import UNIT_ROUNDOFF, additions, precision
from faithcheck.axioms.randomisation import randomised, rank_correlation, surviving
from faithcheck.axioms.sensitivity import sensitivity
from faithcheck.axioms.shift import shift
from faithcheck.axioms.symmetry import symmetric
from faithcheck.explainers import LRP, EpsilonLRP, builtin_explainers
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.removal import Replacement
from faithcheck.explainers.lrp.attnlrp import ATTNLRP
from faithcheck.explainers.lrp.rules.rearrangements import gradient_rule
from faithcheck.explainers.protocol import input_gradient, per_feature
from faithcheck.models import Case, registered_pairs
from faithcheck.models.case import output_difference, select_target
from faithcheck.models.networks.derived import GAIN, OUTPUT_WEIGHTS, SHIFT, UNIT, Rescaled, Shifted, WeightedOutputs
from faithcheck.models.pairs import control, probes
from faithcheck.plan import plan

SINGLE_MODEL_AXIOMS = tuple(
    "sensitivity dummy linearity additivity antisymmetry symmetry shift scale randomisation determinism batching "
    "precision".split()
)
FIVE = ("loo", "gradient_x_input", "integrated_gradients", "attnlrp", "cplrp")
BUILTIN, PAIRS = builtin_explainers(), registered_pairs()
SUBJECT = {"dummy": "probe.perceptron", "symmetry": "probe.perceptron"}  # all other axioms: control.mlp
WHERE = (0, torch.float64, torch.device("cpu"))


class Claiming:
    """An explainer made of a function ``(model, case) -> map`` that claims an axiom."""

    name = "claiming"

    def __init__(self, axiom, function):
        self.claims, self.function = {axiom}, function

    def attribute(self, model, case):
        return self.function(model, case)


def run(axiom, explainer, subject=None, **settings):
    pair = PAIRS[subject or SUBJECT.get(axiom, "control.mlp")]
    return Check(axiom, explainer, pair, "f").run(Settings(**settings))


def broken(axiom, function, subject=None):
    """The record of an explainer that claims the axiom and violates it."""
    record = run(axiom, Claiming(axiom, function), subject)
    assert record.status == "broken claim", record
    return record


def subject(name, dtype=torch.float64):
    pair, (seed, _, device) = PAIRS[name], WHERE
    return pair.build(seed, dtype, device)[0], pair.case(seed, dtype, device)


def explain(name):
    return lambda model, case: BUILTIN[name].attribute(model, case)


def sizes(values):
    """The largest absolute value of each example."""
    return values.abs().amax(1)


# --- every axiom -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axiom", SINGLE_MODEL_AXIOMS)
def test_every_cell_of_the_five_explainers_has_an_explicit_expectation(axiom):
    checks = [check for check in plan(axiom, BUILTIN.values(), PAIRS.values()) if check.explainer.name in FIVE]
    assert {check.explainer.name for check in checks} == set(FIVE)
    for check in checks:
        assert check.explicit_expectation is not None, f"{axiom}/{check.id}"
        assert check.explicit_expectation.verdict != "UNCLAIMED", f"{axiom}/{check.id}"


NOTHING_TO_MEASURE = {
    "sensitivity": (lambda x: 0 * x, "no feature alone changes an output"),
    "dummy": (lambda x: x.sum(1, keepdim=True), "depends on every feature"),
    "linearity": (lambda x: x.sum(1, keepdim=True), "one output"),
    "additivity": (lambda x: x.sum(1, keepdim=True), "one output"),
    "antisymmetry": (lambda x: x.sum(1, keepdim=True), "one output"),
    "symmetry": (lambda x: x[:, :1] + 2 * x[:, 1:], "no two features are symmetric"),
    "randomisation": (lambda x: x.sum(1, keepdim=True), "no weights"),
    "batching": (lambda x: x.sum(1, keepdim=True), "one example"),
}


@pytest.mark.parametrize("axiom", NOTHING_TO_MEASURE)
def test_the_reason_is_given_if_there_is_nothing_to_measure(axiom):
    function, reason = NOTHING_TO_MEASURE[axiom]
    case = probes.points(2)(*WHERE)
    case = case.select(torch.arange(1)) if axiom == "batching" else case
    measured = AXIOMS[axiom].measure(BUILTIN["gradient_x_input"], probes.Probe(function), case)
    assert measured.gap is None
    assert reason in measured.detail["reason"]


# --- sensitivity -----------------------------------------------------------------------------------------------------


def test_sensitivity_measures_the_difference_of_features_given_zero():
    def without_the_first(model, case):
        return BUILTIN["loo"].attribute(model, case) * torch.tensor([0.0] + [1.0] * 7)

    model, case = subject("control.mlp")
    loo = BUILTIN["loo"].attribute(model, case)
    record = broken("sensitivity", without_the_first)
    assert record.gap == pytest.approx(float((loo[:, 0].abs() / sizes(loo)).max()))
    assert record.detail == {"features": 48, "given zero": 6}


def test_saturation_violates_sensitivity():
    assert run("sensitivity", BUILTIN["gradient_x_input"], "probe.saturated").gap == 1
    assert run("sensitivity", BUILTIN["integrated_gradients"], "probe.saturated").status == "holds"
    model, case = subject("probe.saturated")
    below = case.select(torch.tensor([1, 2]))
    assert sensitivity(BUILTIN["gradient_x_input"], model, below).gap == 0


class Parabola(nn.Module):
    def forward(self, x):
        return (x * x - x).sum(1, keepdim=True)


def points_of(*values, examples=1):
    points = torch.tensor([values], dtype=torch.float64).repeat(examples, 1)
    return Case(points, torch.zeros(examples, dtype=torch.int64), torch.zeros_like(points))


def test_an_attribution_that_is_zero_at_one_point_alone_satisfies_sensitivity():
    case = points_of(0.5, 2.0)
    assert BUILTIN["gradient_x_input"].attribute(Parabola(), case)[0, 0] == 0  # yet f(0.5) − f(0) = −0.25
    assert sensitivity(BUILTIN["gradient_x_input"], Parabola(), case).gap == 0


def test_a_coarse_type_asks_at_more_points_nearby():
    """Within 0.09 of zero, by a gradient that crosses it: one of three attributions is, at each point nearby."""
    case = points_of(0.5, 1.5, examples=20)
    with tolerance_is(0.01, torch.bfloat16):
        assert sensitivity(BUILTIN["gradient_x_input"], Parabola(), case).gap == 0
        assert sensitivity(BUILTIN["gradient_x_input"], probes.Probe(lambda x: x.clamp(max=0.4)), case).gap == 1


def test_a_feature_that_is_given_zero_is_found_in_bfloat16():
    def without_the_first(model, case):
        return BUILTIN["loo"].attribute(model, case) * torch.tensor([0.0] + [1.0] * 7).to(case.inputs)

    record = run("sensitivity", Claiming("sensitivity", without_the_first), dtype=torch.bfloat16)
    assert record.status == "broken claim"


def test_a_relu_that_is_always_on_satisfies_sensitivity():
    # R_x = R_ReLU(x) with slope 1 even if the ReLU is off: the predicted violation vanishes, which is red.
    always_on = LRP("attnlrp", {**ATTNLRP, "relu": lambda call: call.args[0] + (call.value() - call.args[0]).detach()})
    assert run("sensitivity", always_on, "probe.saturated").status == "violation vanished"


# --- dummy and symmetry ----------------------------------------------------------------------------------------------


def test_features_without_influence_are_found():
    model = probes.Probe(lambda x: (x[:, :1] + x[:, 1:2] - (x[:, 1:2] + 1) + x[:, 2:] ** 2).relu())
    assert depends(model, probes.points(3)(*WHERE)).tolist() == [True, False, True]
    nan = probes.Probe(lambda x: x[:, :1] / 0 - x[:, :1] / 0)
    assert depends(nan, probes.points(2)(*WHERE)).all()  # NaN does not count as constant


def test_an_equal_share_violates_dummy():
    assert broken("dummy", lambda model, case: torch.ones_like(case.inputs)).gap == 1


@pytest.mark.parametrize(("probe", "rule"), [("probe.sigmoids", "sigmoid"), ("probe.products", "mul")])
def test_with_the_gradient_as_rule_the_violation_of_dummy_vanishes(probe, rule):
    assert run("dummy", BUILTIN["attnlrp"], probe).status == "predicted violation"
    assert run("dummy", LRP("attnlrp", {**ATTNLRP, rule: gradient_rule}), probe).status == "violation vanished"


def test_symmetric_features_are_found():
    model = probes.Probe(lambda x: (x[:, :1] * x[:, 2:3] + x[:, 1:2] * x[:, 3:4]) * x[:, 4:])
    assert symmetric(model, probes.points(5)(*WHERE)).tolist() == [0, 1, 0, 1, 4]
    tokens = subject("probe.tokens")
    assert symmetric(*tokens).tolist() == [0, 0, 0, 0]


def test_weights_by_position_violate_symmetry():
    def weighted_by_position(model, case):
        return BUILTIN["loo"].attribute(model, case) * torch.arange(1.0, 5.0)

    assert broken("symmetry", weighted_by_position, "probe.tokens").gap == pytest.approx(3 / 4)  # (a, 2a, 3a, 4a)


def test_attnlrp_violates_symmetry_on_a_product_of_three():
    assert run("symmetry", BUILTIN["attnlrp"], "control.product").gap == pytest.approx(1 / 2)
    no_halving = LRP("attnlrp", {**ATTNLRP, "mul": gradient_rule})
    assert run("symmetry", no_halving, "control.product").status == "violation vanished"


# --- linearity, shift and scale --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [torch.abs, torch.relu])
def test_a_map_without_signs_violates_linearity(cut):
    model, case = subject("control.mlp")
    first, second = (
        case.inputs * input_gradient(model, replace(case, target=torch.full_like(case.target, k))) for k in (0, 1)
    )
    alpha, beta = OUTPUT_WEIGHTS
    mixed, parts = cut(alpha * first + beta * second), (alpha * cut(first), beta * cut(second))
    scale = torch.stack([sizes(values) for values in (mixed, *parts)]).amax(0)
    record = broken("linearity", lambda model, case: cut(BUILTIN["gradient_x_input"].attribute(model, case)))
    assert record.gap == pytest.approx(float((sizes(mixed - parts[0] - parts[1]) / scale).max()))


def test_one_map_for_every_output_violates_linearity():
    assert broken("linearity", lambda model, case: case.inputs).gap == pytest.approx(2 / 3)  # |1 − 2 + 3| relative to 3


def test_linearity_measures_the_effect_of_the_stabiliser():
    """ε-LRP of a linear map: x ⊙ w_k |z_k|/(|z_k| + ε) for output k, and once more |h|/(|h| + ε) for h = 2z₀ − 3z₁."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(3, 2, bias=False).double()
    case, epsilon = probes.points(3)(*WHERE), 0.1
    z = (case.inputs @ model.weight.T).detach()
    mixing = torch.tensor(OUTPUT_WEIGHTS, dtype=torch.float64)
    h = (z @ mixing).unsqueeze(1)
    once = z.abs() / (z.abs() + epsilon) * mixing
    twice = once * h.abs() / (h.abs() + epsilon)
    predicted = case.inputs * ((twice - once) @ model.weight.detach())
    measured = linearity(EpsilonLRP(epsilon), model, case)
    assert measured.gap > 0.01
    torch.testing.assert_close(measured.values, predicted)
    assert linearity(EpsilonLRP(0), model, case).gap < 1e-15


def test_a_mean_over_the_outputs_violates_additivity():
    """With m outputs, each map is divided by m: the sum of the maps is 1/m of the map of the sum."""

    def mean(model, case):
        with torch.no_grad():
            outputs = case.run(model).shape[1]
        return BUILTIN["gradient_x_input"].attribute(model, case) / outputs

    model, case = subject("control.mlp")
    parts = [replace(case, target=torch.full_like(case.target, k)) for k in range(3)]
    maps = torch.stack([case.inputs * input_gradient(model, part) for part in parts])
    whole = maps.sum(0)
    scale = torch.maximum(sizes(whole), sizes(maps.transpose(0, 1).flatten(1)) / 3)
    record = broken("additivity", mean)
    assert record.gap == pytest.approx(float((2 / 3 * sizes(whole) / scale).max()))
    assert record.detail["outputs"] == 3


def test_finite_effects_at_several_positions_are_not_additive():
    """A row's own finite effect counts where the row is read: of the sum, every row that one of the outputs reads."""
    record = run("additivity", BUILTIN["finite_mask_gate"], "answer.one_pass_gpt2")
    assert record.status == "recorded"
    assert record.gap > 1e-3
    assert run("additivity", BUILTIN["mask_gate"], "answer.one_pass_gpt2").status == "holds"


def test_a_map_times_the_sign_of_the_output_violates_antisymmetry():
    def seeded_by_size(model, case):
        with torch.no_grad():
            sign = select_target(case.run(model), case.target).sign().unsqueeze(1)
        return sign * BUILTIN["gradient_x_input"].attribute(model, case)

    assert broken("antisymmetry", seeded_by_size).gap == pytest.approx(2)


def test_the_input_as_attribution_violates_shift():
    _, case = subject("control.mlp")
    most = torch.maximum(sizes(case.inputs), sizes(case.inputs + SHIFT))
    record = broken("shift", lambda model, case: case.inputs)
    assert record.gap == pytest.approx(float((SHIFT / most).max()))


def test_the_gap_with_a_fixed_baseline_is_reported():
    """On a linear map Integrated Gradients is w ⊙ (x − x′): with x + 1 and the old x′ = 0 it is w ⊙ (x + 1)."""
    model, case = nn.Linear(3, 1).double(), probes.points(3)(*WHERE)
    w = model.weight.detach()
    most = torch.maximum(sizes(w * case.inputs), sizes(w * (case.inputs + SHIFT)))
    measured = shift(BUILTIN["integrated_gradients"], model, case)
    assert measured.gap < 1e-14
    assert measured.detail["gap, baseline fixed"] == pytest.approx(float((sizes(SHIFT * w) / most).max()))


def test_a_layer_norm_removes_a_constant_shift_and_no_other(monkeypatch):
    assert run("shift", BUILTIN["gradient_x_input"], "control.bert").status == "holds"

    def uneven(self, inputs, **context):
        return self.model(inputs - torch.arange(control.WIDTH) / control.WIDTH, **context)

    monkeypatch.setattr(Shifted, "forward", uneven)
    assert run("shift", BUILTIN["gradient_x_input"], "control.bert").status == "broken claim"


def test_the_gradient_violates_scale():
    # s/c times the gradient, not s times: |s/c − s| / s = 1 − 1/c.
    assert broken("scale", input_gradient).gap == pytest.approx(1 - 1 / UNIT)


def test_a_normalised_map_violates_scale():
    def shares(model, case):
        attribution = BUILTIN["loo"].attribute(model, case)
        return attribution / attribution.abs().sum(1, keepdim=True)

    assert broken("scale", shares).gap == pytest.approx(1 - 1 / GAIN)


def test_derived_models_compute_their_formulas():
    model, case = subject("probe.padded")
    outputs = case.run(model)
    shifted = replace(case, inputs=case.inputs + SHIFT).run(Shifted(model))
    torch.testing.assert_close(shifted, outputs)
    torch.testing.assert_close(replace(case, inputs=case.inputs * UNIT).run(Rescaled(model)), outputs * GAIN)
    alpha, beta = OUTPUT_WEIGHTS
    torch.testing.assert_close(case.run(WeightedOutputs(model)), outputs[:, :1] * alpha + outputs[:, 1:] * beta)
    assert SHIFT != 0
    assert alpha + beta not in (0, 1)
    assert 1 not in (UNIT, GAIN, GAIN / UNIT)


# --- randomisation ---------------------------------------------------------------------------------------------------


def test_the_input_as_attribution_survives_random_weights():
    record = broken("randomisation", lambda model, case: case.inputs)
    assert record.gap == pytest.approx(1)


def test_an_explainer_that_ignores_the_last_layer_fails_at_that_stage():
    def below(model, case):
        return case.inputs * (model[0].weight.sum(0)).detach()

    record = broken("randomisation", below)
    assert record.gap == pytest.approx(1)
    assert record.detail["ρ, last layer"] == pytest.approx(1)
    assert abs(record.detail["ρ, every layer"]) < 0.5


def output_times_input(model, case):
    """x·f(x), which random weights only rescale or reverse."""
    output = select_target(case.run(model).detach(), case.target)
    return per_feature(case.inputs * output.view(-1, *[1] * (case.inputs.dim() - 1)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("subject", ["control.mlp", "control.bert"])
def test_a_map_that_random_weights_only_reverse_has_survived(subject, seed):
    record = run("randomisation", Claiming("randomisation", output_times_input), subject, seed=seed)
    assert record.status == "broken claim"
    assert record.gap == pytest.approx(1)
    assert (
        max(abs(record.detail[f"ρ, {stage} layer"]) for stage in ("last", "every")) < 0.5
    )  # the mean of the signed ρ is near 0


def test_a_map_of_which_half_survives_fails():
    """x if |x| is above the median, else a small map of the weights: extreme ranks stay, most of the variance."""

    def half(model, case):
        a = BUILTIN["gradient_x_input"].attribute(model, case)
        large = case.inputs.abs() > case.inputs.abs().median(1, keepdim=True).values
        return torch.where(large, case.inputs, 1e-3 * a)

    assert 0.5 < broken("randomisation", half).gap < 1


def test_independent_rankings_survive_by_0_on_average():
    for n in (3, 4, 5):  # the average over all rankings is exact
        ranking = torch.arange(float(n))
        rho = [[[rank_correlation(ranking, torch.tensor(other))]] for other in permutations(range(n))]
        values = surviving(torch.tensor(rho, dtype=torch.float64), torch.tensor([[n]]))
        assert float(values.mean()) == pytest.approx(0, abs=1e-12)
    ends = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    assert surviving(ends, torch.tensor([[5]])).tolist() == [[1, 1]]
    assert surviving(ends, torch.tensor([[2]])).tolist() == [[0, 0]]


def test_randomisation_is_undefined_for_two_features():
    model = nn.Linear(2, 1).double()
    measured = AXIOMS["randomisation"].measure(BUILTIN["loo"], model, probes.points(2)(*WHERE))
    assert measured.gap is None
    assert "three features" in measured.detail["reason"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["loo", "attnlrp"])
def test_the_threshold_is_far_from_chance(name, seed):
    assert run("randomisation", BUILTIN[name], seed=seed).gap < 0.3


def test_random_weights_replace_the_chosen_layers_and_have_the_same_size():
    model, _ = subject("control.bert")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    layers = [name for name, module in model.named_modules() if list(module.parameters(recurse=False))]
    assert layers[-1] == "model.classifier"
    last = randomised(model, layers[-1:], seed=0).state_dict()
    changed = {name for name in before if not torch.equal(last[name], before[name])}
    assert changed == {"model.classifier.weight"}  # its bias is 0: a permutation changes nothing
    every = randomised(model, layers, seed=0).state_dict()
    for name, weight in before.items():
        assert torch.equal(model.state_dict()[name], weight)
        if weight.dim() < 2:
            assert torch.equal(every[name].sort().values, weight.sort().values)
        else:
            assert not torch.equal(every[name], weight)
            ratio = float(every[name].square().mean() / weight.square().mean())
            assert ratio == pytest.approx(1, abs=6 * (2 / weight.numel()) ** 0.5)


def test_rank_correlation():
    up, constant = torch.tensor([1.0, 2.0, 5.0]), torch.ones(3)
    assert rank_correlation(up, up**3) == pytest.approx(1)
    assert rank_correlation(up, -up) == pytest.approx(-1)
    assert rank_correlation(up, constant) == 0
    assert rank_correlation(constant, 2 * constant) == 1


# --- determinism, batching, precision --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1.0, 1e-15])
def test_noise_violates_determinism(size):
    def noisy(model, case):
        return BUILTIN["loo"].attribute(model, case) + size * torch.randn(case.shape, dtype=torch.float64)

    assert broken("determinism", noisy).gap > 0


def test_a_map_normalised_over_the_batch_violates_batching():
    """a/M with M the batch's maximum, a/m with m the example's own: the gap is 1 − m/M, largest for the least m."""

    def over_the_batch(model, case):
        attribution = BUILTIN["loo"].attribute(model, case)
        return attribution / attribution.abs().max()

    own = sizes(BUILTIN["loo"].attribute(*subject("control.mlp")))
    assert broken("batching", over_the_batch).gap == pytest.approx(float(1 - own.min() / own.max()))


def test_attributions_of_padding_violate_batching():
    record = broken("batching", lambda model, case: torch.ones(case.shape, dtype=torch.float64), "probe.padded")
    assert record.gap == 1
    assert record.detail == {"padding features": 0 + 1 + 3 + 5, "gap, outputs": pytest.approx(0, abs=1e-12)}


class Positions(nn.Module):
    """Σ tanh(W x_t + p_t) over the tokens of a sentence; p_t embeds the position, by default counted from the left."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embedding, self.head = nn.Embedding(7, 2).double(), nn.Linear(32, 2).double()

    def forward(self, inputs, attention_mask, position_ids=None):
        positions = torch.arange(inputs.shape[1]) if position_ids is None else position_ids
        return ((self.head(inputs) + self.embedding(positions)).tanh() * attention_mask.unsqueeze(2)).sum(1)


@pytest.fixture
def padded_on_the_left():
    """The sentences of `probe.padded`, padded on the left."""
    _, case = subject("probe.padded")
    mask = case.forward_arguments["attention_mask"].flip(1)
    return replace(
        case, inputs=case.inputs.flip(1), special_tokens_mask=None, forward_arguments={"attention_mask": mask}
    )


def test_padding_on_the_left_with_position_ids_satisfies_batching(padded_on_the_left):
    mask = padded_on_the_left.forward_arguments["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    case = replace(padded_on_the_left, forward_arguments={"attention_mask": mask, "position_ids": positions})
    measured = batching(BUILTIN["gradient_x_input"], Positions(), case)
    assert measured.gap < 1e-12
    assert measured.detail == {"padding features": 9, "gap, outputs": pytest.approx(0, abs=1e-12)}
    ones = Claiming("batching", lambda model, case: torch.ones(case.shape, dtype=torch.float64))
    assert batching(ones, Positions(), case).gap == 1


def test_a_model_whose_positions_count_padding_changes_its_outputs(padded_on_the_left):
    measured = batching(BUILTIN["gradient_x_input"], Positions(), padded_on_the_left)
    assert measured.gap > 1e-3
    assert measured.detail["gap, outputs"] > 1e-3


def test_a_model_that_reads_padding_violates_batching():
    class Careless(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, inputs, attention_mask):
            return self.model(inputs)

    model, case = subject("probe.padded")
    # Without a mask the model is another function; removal by the mask sees nothing of it.
    for explainer in (LeaveOneOut(removal=Replacement()), *(BUILTIN[name] for name in FIVE if name != "loo")):
        assert batching(explainer, model, case).gap < 1e-9
        assert batching(explainer, Careless(model), case).gap > 1e-3, explainer.name


def test_a_finite_difference_violates_precision():
    """(f(x + h) − f(x))/h, h = 10⁻⁶: accurate to about h in float64; in float32 f has an error of 6·10⁻⁸."""

    def difference(model, case):
        columns = []
        for i in range(case.shape[1]):
            ahead = case.inputs.clone()
            ahead[:, i] += 1e-6
            columns.append(output_difference(model, replace(case, inputs=ahead, baseline=case.inputs)) / 1e-6)
        return case.inputs * torch.stack(columns, 1)

    assert broken("precision", difference).gap > 1e-3
    gradient, (model, case) = BUILTIN["gradient_x_input"], subject("control.mlp")
    torch.testing.assert_close(difference(model, case), gradient.attribute(model, case), rtol=1e-4, atol=1e-5)


def test_a_difference_of_large_numbers_violates_precision():
    """(a + 2²⁰m) − 2²⁰m, m the example's maximum: the error is up to half a unit in the last place, 2²⁰·2⁻²⁴m."""

    def shaved(model, case):
        attribution = BUILTIN["loo"].attribute(model, case)
        large = attribution.abs().amax(1, keepdim=True) * 2**20
        return (attribution + large) - large

    record = broken("precision", shaved)
    assert 1 / 160 < record.gap <= 1.1 / 16
    assert record.gap > 1000 * record.tol


def test_an_explainer_that_casts_to_float32_is_an_error():
    record = run("precision", Claiming("precision", lambda model, case: case.inputs.float()))
    assert record.status == "error"
    assert "expected the inputs' torch.float64" in record.detail["error"]


def test_the_bound_counts_additions_and_holds_on_a_long_sum():
    model, case = subject("control.mlp")
    assert additions(model, case) == (16 + 8 + 2) + (3 + 16 + 2) + 2 * 8
    looked_up = nn.ModuleDict({"table": nn.Embedding(1000, 8), "head": nn.Linear(8, 3)})
    assert additions(looked_up, case) == (3 + 8 + 2) + 2 * 8
    looked_up["head"].weight = looked_up["table"].weight  # tied: it is multiplied by, once
    assert additions(looked_up, case) == (1000 + 8 + 2) + 2 * 8
    with torch.random.fork_rng():
        torch.manual_seed(0)
        wide = nn.Sequential(nn.Linear(20_000, 1, bias=False), nn.Tanh())
    measured = precision(BUILTIN["gradient_x_input"], wide, probes.points(20_000)(*WHERE))
    assert measured.gap <= measured.tol == pytest.approx(60_003 * UNIT_ROUNDOFF, rel=0.01)
