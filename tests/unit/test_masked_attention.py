"""Gates and Leave-One-Out by the attention mask, held to closed forms; and that faults in them are red."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from faithcheck import Check, Settings
from faithcheck.axioms import AXIOMS
from faithcheck.axioms.full_removal import full_removal
from faithcheck.axioms.local_limit import AMPLIFICATION, PARTS, change_per_part, local_limit
from faithcheck.axioms.measure.settling import settle
from faithcheck.axioms.measure.statuses import RED, Status
from faithcheck.explainers import LeaveOneOut, builtin_explainers
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.loo.removal import AttentionMask, Replacement
from faithcheck.explainers.protocol import InvalidAttribution
from faithcheck.models import Expectation, registered_pairs, select_target
from faithcheck.models.closed_forms import gradient_times_input, leave_one_out
from faithcheck.models.networks import masked_attention as exact
from faithcheck.plan import not_applicable, plan
from faithcheck.tests.helpers.attention_models import case_of, embedding_model
from faithcheck.tests.helpers.gate_faults import CORRECT, GATE_FAULTS

# Large special tokens are attention sinks of some examples.
pytestmark = pytest.mark.filterwarnings("ignore::faithcheck.explainers.protocol.SinkWarning")

PAIRS = {name: pair for name, pair in registered_pairs().items() if name.startswith("masked.")}
ONE_LAYER = [name for name, pair in PAIRS.items() if "full_removal" in pair.axioms]
CPU = torch.device("cpu")
EXACT = {"rtol": 1e-10, "atol": 1e-12}  # round-off of two layers in float64
FOLLOW_LOO = "full_removal", "local_limit", "loo"


def subject(name, seed=0, dtype=torch.float64):
    """The model and the case of a pair ``masked.*``."""
    where = seed, dtype, CPU
    return PAIRS[name].build(*where)[0], PAIRS[name].case(*where)


# --- the oracles -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRS)
def test_the_written_out_model_is_the_model(name):
    model, case = subject(name)
    output = torch.stack([exact.run(example) for example in exact.examples_of(model, case)])
    torch.testing.assert_close(output, select_target(case.run(model), case.target).detach(), **EXACT)
    loo = exact.of_case(exact.leave_one_out)(model, case)
    torch.testing.assert_close(loo, leave_one_out(model, case), **EXACT)
    assert loo.abs().amax(1).min() > 1e-2


@pytest.mark.parametrize("name", ONE_LAYER)
def test_the_closed_forms_of_one_layer_are_the_differentiated_and_removed_ones(name):
    model, case = subject(name)
    for closed_form, oracle in (
        (exact.derivative_of_one_layer, exact.derivative),
        (exact.leave_one_out_of_one_layer, exact.leave_one_out),
        (exact.leave_one_out_of_one_layer, exact.finite_changes),
        (exact.leave_one_out_of_one_layer, exact.direct_and_indirect),
        (exact.leave_one_out_of_one_layer, exact.one_group_at_a_time),
    ):
        torch.testing.assert_close(exact.of_case(closed_form)(model, case), exact.of_case(oracle)(model, case), **EXACT)


def test_every_oracle_of_two_layers_is_a_map_of_its_own():
    model, case = subject("masked.two_layers")
    oracles = (
        exact.leave_one_out,
        exact.derivative,
        exact.finite_changes,
        exact.direct_and_indirect,
        exact.one_group_at_a_time,
    )
    maps = [exact.of_case(oracle)(model, case) for oracle in oracles]
    for i, one in enumerate(maps):
        for other in maps[:i]:
            assert (one - other).abs().max() > 1e-3


# --- the axioms ------------------------------------------------------------------------------------------------------


class Map:
    """An explainer that claims everything about Leave-One-Out and gives a known map."""

    name = "map"
    claims = frozenset(FOLLOW_LOO)

    def __init__(self, function, **attributes):
        self.function = function
        vars(self).update(attributes)

    def attribute(self, model, case):
        return self.function(model, case)


@pytest.mark.parametrize("factor", [-1.0, 0.5, 1 + 1e-8])
def test_a_factor_is_measured_exactly(factor):
    model, case = subject("masked.padded")
    larger = max(1.0, abs(factor))
    for measure, oracle in ((full_removal, exact.leave_one_out), (local_limit, exact.derivative)):
        correct = exact.of_case(oracle)
        measured = measure(Map(lambda m, c, correct=correct: factor * correct(m, c)), model, case)
        assert measured.gap == pytest.approx(abs(1 - factor) / larger, rel=1e-3)
        assert measured.gap > measured.tol
        assert measure(Map(correct), model, case).gap < 1e-11


def test_the_local_limit_by_the_baseline_is_the_tangent():
    pair = registered_pairs()["control.mlp"]
    model, case = pair.build(0, torch.float64, CPU)[0], pair.case(0, torch.float64, CPU)
    moved = replace(case, baseline=case.inputs / 3)
    for each in (case, moved):
        torch.testing.assert_close(change_per_part(model, each), gradient_times_input(model, each), rtol=0, atol=1e-11)


def test_the_round_off_of_the_limit_is_within_its_bound():
    """Outputs that are noise of size ε: their extrapolation is at most the bound of the axiom."""
    noise = torch.randn(1000, len(PARTS), dtype=torch.float64, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    # Lagrange's weights of the polynomial through all parts, at 0
    weights = [math.prod(other / (other - part) for other in PARTS if other != part) for part in PARTS]
    assert sum(weights) == pytest.approx(1)
    assert sum(map(abs, weights)) <= AMPLIFICATION
    extrapolation = sum(w * noise[:, k] / t for k, (w, t) in enumerate(zip(weights, PARTS, strict=True)))
    assert float(extrapolation.abs().max()) <= AMPLIFICATION / PARTS[-1]


def test_a_model_whose_mask_is_no_gate_has_no_limit():
    model, case = subject("masked.padded")

    class Removes(nn.Module):
        """The smallest part removes the whole feature."""

        def forward(self, inputs, attention_mask):
            return model(inputs, (attention_mask == 1).to(inputs))

    with pytest.raises(ValueError, match="per removed part has no limit as the part goes to 0"):
        local_limit(LeaveOneOut(), Removes(), case)
    with pytest.raises(ValueError, match="per removed part is 0, and that of a whole feature is not"):
        local_limit(LeaveOneOut(), embedding_model("bert"), case_of("bert"))  # BERT reads any part as a whole


@pytest.mark.parametrize("axiom", ["full_removal", "local_limit"])
def test_a_removal_of_ones_own_choice_is_not_judged(axiom):
    own = [LeaveOneOut(AttentionMask(), name="own"), MaskGate("attention_mask", name="other")]
    assert [cell.explainer for cell in not_applicable([axiom], [*own, LeaveOneOut()])] == ["own", "other"]
    assert plan(axiom, own, PAIRS.values()) == []


def test_leave_one_out_removes_as_the_case_says():
    model, case = subject("masked.two_layers")
    by_mask = LeaveOneOut(AttentionMask()).attribute(model, case)
    torch.testing.assert_close(by_mask, exact.of_case(exact.leave_one_out)(model, case), **EXACT)
    assert torch.equal(LeaveOneOut().attribute(model, case), by_mask)
    mlp = registered_pairs()["control.mlp"]
    f, x = mlp.build(0, torch.float64, CPU)[0], mlp.case(0, torch.float64, CPU)
    assert torch.equal(LeaveOneOut().attribute(f, x), LeaveOneOut(Replacement()).attribute(f, x))


def test_an_explainer_may_claim_a_least_correlation():
    pair = PAIRS["masked.two_layers"]

    def status(factor, least):
        claim = {("loo", "masked.two_layers.f"): Expectation("HOLDS", "measured", ceiling=1 - least)}
        half_loo = Map(lambda m, c: leave_one_out(m, c) + factor * c.inputs.sum(2), claims=(), expected=claim)
        return Check("loo", half_loo, pair, "f").run(Settings())

    r = 1 - status(1.0, 0.9).gap
    assert 0 < r < 0.9
    assert status(1.0, r + 0.01).status == "broken claim"
    assert status(1.0, r - 0.01).status == "holds"


# --- the explainers --------------------------------------------------------------------------------------------------


def settled(check, seed=0, dtype=torch.float64):
    """The label of the status of a check, without the guard of a run, which takes most of the time."""
    model, case = subject(check.pair.name, seed, dtype)
    predict = check.expectation.predict
    try:
        measured = AXIOMS[check.axiom].measure(check.explainer, model, case)
    except InvalidAttribution:
        return Status.ERROR.label
    return settle(measured, check.expectation, predict and predict(model, case))[0].label


def checks_of(explainer, axioms=FOLLOW_LOO):
    return [check for axiom in axioms for check in plan(axiom, [explainer], PAIRS.values())]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
@pytest.mark.parametrize("explainer", CORRECT, ids=lambda explainer: type(explainer).__name__)
def test_correct_explainers_are_green(explainer, seed):
    statuses = {(check.axiom, check.id): settled(check, seed) for check in checks_of(explainer)}
    assert not {name: status for name, status in statuses.items() if status in RED}
    assert sum(status in ("holds", "predicted violation") for status in statuses.values()) >= 6


def test_gates_and_leave_one_out_are_held_to_something_on_every_masked_model():
    for name in ("loo", "mask_gate", "finite_mask_gate", "grouped_mask_gate", "readout_gate"):
        held = [check for check in checks_of(builtin_explainers()[name]) if check.expectation.verdict != "UNCLAIMED"]
        assert {check.pair.name for check in held} >= {pair for pair in PAIRS if "local_limit" in PAIRS[pair].axioms}


@pytest.mark.parametrize(("name", "faulty"), GATE_FAULTS, ids=[name for name, _ in GATE_FAULTS])
def test_a_fault_is_red_in_two_checks_by_claims_alone(name, faulty):
    explainer = faulty()
    assert explainer.name not in builtin_explainers()
    red = 0
    for check in checks_of(explainer):
        if check.expectation.verdict != "UNCLAIMED":
            assert check.expectation.predict is None, "a closed form is no claim"
            red += settled(check) in RED
        if red == 2:
            return
    pytest.fail(f"{name}: {red} red")
