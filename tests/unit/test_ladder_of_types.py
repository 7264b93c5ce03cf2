"""Checks in float32, bfloat16, float16 and int8: their tolerance comes from the round-off of the model itself."""

import math

import pytest
import torch
from msgspec import structs

from faithcheck import Check, Settings
from faithcheck.axioms import AXIOMS
from faithcheck.axioms.measure import coarse_types
from faithcheck.axioms.measure.coarse_types import DEVIATIONS, measured_in
from faithcheck.axioms.measure.roundoff import additions, tolerance
from faithcheck.axioms.measure.simulated_roundoff import numbers_of
from faithcheck.explainers import AttnLRP, builtin_explainers
from faithcheck.explainers.stored_maps import StoredMaps
from faithcheck.models import Pair, eight_bit_weights, registered_pairs
from faithcheck.models.cases import points
from faithcheck.models.eight_bit_weights import quantised, steps
from faithcheck.models.pair import copies
from faithcheck.plan import plan
from faithcheck.reports.causes import command
from faithcheck.reports.pages.columns import digits as digits_table
from faithcheck.tests.helpers import rule_faults
from faithcheck.tests.helpers.documents import document

BUILTIN, PAIRS = builtin_explainers(), registered_pairs()
CPU = torch.device("cpu")
COARSE = (torch.bfloat16, torch.float16)
TYPES = (torch.float32, *COARSE, torch.int8)


class Changed:
    """A built-in explainer whose map is changed by a function; it claims one axiom."""

    name = "changed"

    def __init__(self, axiom, change, of="integrated_gradients"):
        self.claims, self.change, self.of = {axiom}, change, BUILTIN[of]

    def attribute(self, model, case):
        return self.change(self.of.attribute(model, case))


def run(axiom, explainer, pair, dtype, side="f"):
    pair = PAIRS[pair] if isinstance(pair, str) else pair
    return Check(axiom, explainer, pair, side).run(Settings(dtype=dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axiom", ["completeness", "linearity", "scale", "batching"])
def test_what_holds_in_float64_holds_to_the_round_off_of_the_type(axiom, dtype):
    record = run(axiom, BUILTIN["integrated_gradients"], "control.mlp", dtype)
    assert record.status == "holds"
    assert 0 < record.tol < 1
    # A tolerance is at least that of one rounding, and as many digits are reported.
    assert record.tol >= DEVIATIONS[dtype] * torch.finfo(numbers_of(dtype)).eps / 2
    assert 10 ** -record.detail["digits"] == pytest.approx(record.tol / DEVIATIONS[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_what_kernels_lose_as_they_add_in_float32_is_no_violation(dtype):
    """A batch and its rows are added in another order; the draws round both alike."""
    record = run("batching", BUILTIN["budgeted_loo"], "control.mlp", dtype)
    assert record.status == "holds"
    n = additions(PAIRS["control.mlp"].build(0, torch.float64, CPU)[0], points(0, torch.float64, CPU))
    assert record.tol >= 8 * math.sqrt(n) * torch.finfo(torch.float32).eps / 2


@pytest.mark.parametrize("dtype", TYPES)
def test_a_prediction_is_settled_in_the_type(dtype):
    pair = "linear_attention.assoc" if dtype == torch.int8 else "product.n4_depths_1233"
    record = run("invariance", BUILTIN["attnlrp"], pair, dtype, side="")
    assert record.status == "predicted violation"
    assert record.prediction_error <= record.tol < record.predicted


@pytest.mark.parametrize("dtype", TYPES)
def test_a_wrong_map_is_red_in_the_type(dtype):
    assert run("completeness", Changed("completeness", lambda a: 2 * a), "control.mlp", dtype).status == "broken claim"
    noise = Changed("scale", lambda a: a + 1)
    assert run("scale", noise, "control.mlp", dtype).status == "broken claim"


@pytest.mark.parametrize("operation", ["matmul", "layer_norm"])
@pytest.mark.parametrize("fault", ["twice as much", "with the other sign"])
def test_a_wrong_rule_is_red_in_bfloat16(operation, fault):
    with rule_faults.RuleFault(AttnLRP(), operation, fault).applied() as wrong:
        checks = rule_faults.checks(wrong, operation, rule_faults.BY_CLAIMS)
        assert any(
            check.run(Settings(dtype=torch.bfloat16)).status in ("broken claim", "inconclusive") for check in checks
        )


@pytest.mark.slow
def test_a_ledger_that_does_not_balance_is_red_in_bfloat16():
    with rule_faults.RuleFault(AttnLRP(), "layer_norm", "twice as much").applied() as wrong:
        assert run("balance", wrong, "operation.norms", torch.bfloat16, side="").status == "broken claim"


@pytest.mark.parametrize("fault", ["1 % too much", "twice as much"])
def test_a_wrong_rule_of_linear_maps_is_red_in_int8(fault):
    with rule_faults.RuleFault(AttnLRP(), "linear", fault).applied() as wrong:
        assert run("completeness", wrong, "control.mlp", torch.int8).status == "broken claim"
    assert run("completeness", AttnLRP(), "control.mlp", torch.int8).status == "holds"


def test_a_coarser_grid_than_that_of_8_bits_is_red(monkeypatch):
    def of_4_bits(model):
        with monkeypatch.context() as patched:
            patched.setattr(eight_bit_weights, "steps", lambda weights: 16 * steps(weights))
            return quantised(model)

    explainer = BUILTIN["gradient_x_input"]
    assert run("precision_int8", explainer, "control.mlp", torch.float64).status == "holds"
    monkeypatch.setattr(coarse_types, "quantised", of_4_bits)
    assert run("precision_int8", explainer, "control.mlp", torch.float64).status == "broken claim"


def test_a_model_without_linear_maps_has_nothing_to_quantise():
    for axiom, dtype in (("precision_int8", torch.float64), ("completeness", torch.int8)):
        record = run(axiom, BUILTIN["integrated_gradients"], "control.product", dtype)
        assert record.status == "unsupported"
        assert record.detail["reason"].startswith("there is nothing to quantise to 8 bits: no nn.Linear")


def test_weights_of_another_basis_are_quantised_otherwise_and_the_tolerance_covers_it():
    """Of equal weights, as in a copy, the difference is 0; of other weights it is that of the grids, and none of ε."""
    by_gradient = BUILTIN["gradient_x_input"]
    record = run("invariance", by_gradient, "basis.query_key_bert", torch.int8, side="")
    assert record.status == "holds"
    assert 1e-4 < record.gap < record.tol < 1
    assert run("invariance", by_gradient, "basis.query_key_bert", torch.float32, side="").gap < 1e-4


def test_a_violation_of_float64_stays_one_where_the_type_does_not_show_it():
    def wrong_in_float64(attribution):
        return attribution * (1.5 if attribution.dtype == torch.float64 else 1)

    record = run("completeness", Changed("completeness", wrong_in_float64), "control.mlp", torch.float16)
    assert record.status == "broken claim"
    assert record.detail["gap in the type"] <= record.tol < record.gap


def test_a_violation_that_round_off_hides_is_skipped_with_both_sizes():
    record = run("completeness", BUILTIN["loo"], "control.mlp", torch.bfloat16)
    assert record.status == "unsupported"
    assert "round-off hides the violation: it is 0." in record.detail["reason"]
    assert run("completeness", BUILTIN["loo"], "control.mlp", torch.float64).status == "predicted violation"


def test_where_numbers_cancel_no_digit_survives():
    """(x + 2¹²·m) − 2¹²·m in bfloat16: a unit of the sum is 2⁵·m."""

    def cancelled(attribution):
        large = attribution.abs().amax(1, keepdim=True) * 2**12
        return (attribution + large) - large

    record = run("completeness", Changed("completeness", cancelled), "control.mlp", torch.bfloat16)
    assert record.status == "unsupported"
    assert "no digit survives in bfloat16" in record.detail["reason"]


def test_a_missing_kernel_is_a_refusal_that_names_the_type():
    class OfFloat64(torch.nn.Module):
        def forward(self, inputs):
            if inputs.dtype == torch.float16:
                raise RuntimeError("\"sort\" not implemented for 'Half'")
            return inputs.sum(1, keepdim=True).repeat(1, 3)

    pair = Pair("mine.sum", copies(OfFloat64), points, "a copy")
    record = run("completeness", BUILTIN["gradient_x_input"], pair, torch.float16)
    assert record.status == "unsupported"
    assert record.detail["reason"] == "it does not run in float16: \"sort\" not implemented for 'Half'"
    assert run("completeness", BUILTIN["gradient_x_input"], pair, torch.bfloat16).status == "recorded"


def test_an_error_that_is_not_of_the_type_stays_an_error():
    def fails(attribution):
        if attribution.dtype == torch.bfloat16:
            raise RuntimeError("mine")
        return attribution

    record = run("completeness", Changed("completeness", fails), "control.mlp", torch.bfloat16)
    assert (record.status, "mine" in record.detail["error"]) == ("error", True)


def test_maps_that_were_made_elsewhere_are_refused_in_another_type(tmp_path):
    maps = object.__new__(StoredMaps)
    object.__setattr__(maps, "name", "theirs")
    check = Check("loo", maps, PAIRS["control.mlp"], "f")
    with pytest.raises(Exception, match=r"theirs holds maps that were made elsewhere.*without --dtype"):
        check._measured_in_type(Settings(dtype=torch.bfloat16), [])


def test_outside_of_a_check_a_coarse_type_has_no_tolerance():
    with pytest.raises(ValueError, match=r"no one tolerance holds in torch.bfloat16: a check derives its own"):
        tolerance(torch.ones(1, dtype=torch.bfloat16))


@pytest.mark.filterwarnings("ignore::faithcheck.explainers.gradients.CompletenessWarning")  # in some types
def test_the_models_and_the_case_stay_as_they_were():
    pair = PAIRS["control.mlp"]
    model, case = pair.build(0, torch.float64, torch.device("cpu"))[0], points(0, torch.float64, torch.device("cpu"))
    before = [p.detach().clone() for p in model.parameters()]

    def measure(models, of):
        return AXIOMS["completeness"].measure(BUILTIN["integrated_gradients"], models[0], of)

    measured = measured_in(torch.bfloat16, measure, [model], case)
    assert measured.in_type.values.dtype == torch.float64 != measured.in_type.compared
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert measured_in(torch.bfloat16, measure, [model], case).roundoff == measured.roundoff, "the draws are fixed"


@pytest.mark.parametrize(("name", "bits"), [("bfloat16", 7), ("float16", 7), ("int8", 21)])
def test_a_map_of_a_coarse_type_is_held_to_the_round_off_of_the_model(name, bits):
    """(a + 2ᵇm) − 2ᵇm, m the example's maximum: a unit of the sum is 2ᵇ·eps of the map."""

    def shaved(attribution):
        large = attribution.abs().amax(1, keepdim=True) * 2**bits
        return (attribution + large) - large

    axiom, dtype = f"precision_{name}", torch.float64
    assert run(axiom, Changed("precision", lambda a: a, "gradient_x_input"), "control.mlp", dtype).status == "holds"
    record = run(axiom, Changed("precision", shaved, "gradient_x_input"), "control.mlp", dtype)
    assert record.status == "broken claim"
    assert record.detail["digits"] < 2


def test_who_claims_precision_claims_it_in_every_type():
    planned = {check.axiom for axiom in AXIOMS for check in plan(axiom, [BUILTIN["loo"]], [PAIRS["control.mlp"]])}
    assert {"precision", "precision_bfloat16", "precision_float16", "precision_int8"} <= planned


def test_the_report_lists_the_digits_and_the_command_has_the_type():
    settings = {"dtype": "bfloat16", "explainers": ["loo"], "arguments": []}
    record = run("scale", BUILTIN["loo"], "control.mlp", torch.bfloat16)
    results = document([record], settings)
    (table,) = digits_table(results)
    assert table.rows == [("the checks in bfloat16", "loo", "1", *2 * [f"{record.detail['digits']:.1f}"])]
    assert "--dtype bfloat16" in command(results, record)
    in_float64 = document([structs.replace(record, detail={})], {**settings, "dtype": "float64"})
    assert digits_table(in_float64) == []
    assert "--dtype" not in command(in_float64, in_float64.records[0])
