"""Every operation with an LRP rule has a pair; a wrong rule is red; the rules that checks met are counted."""

import pytest
from msgspec import structs

from faithcheck.axioms.measure.registry import AXIOMS
from faithcheck.check import Check
from faithcheck.explainers import AttnLRP, GradientTimesInput
from faithcheck.explainers.lrp.blockwise import BlockwiseLRP
from faithcheck.explainers.lrp.operation_table import operations
from faithcheck.explainers.lrp.rules_met import record_rules, recording_rules
from faithcheck.models.architectures.base_models import ARCHITECTURES
from faithcheck.models.networks.operation_by_operation import PAIRS_OF_OPERATIONS
from faithcheck.models.pair import registered_pairs
from faithcheck.models.transform import registered_transforms
from faithcheck.outcomes import rules_met
from faithcheck.plan import plan
from faithcheck.reports.documents.results import RulesMet
from faithcheck.reports.pages import columns
from faithcheck.request import Settings
from faithcheck.tests.helpers.documents import document, record
from faithcheck.tests.helpers.rule_faults import FAULTS, red_by_claims, rule_faults

PAIRS = registered_pairs()
SAMPLE = [fault for fault in rule_faults(AttnLRP()) if fault.operation in ("einsum", "conv2d", "GELUActivation")]


def test_every_operation_with_a_rule_has_a_pair():
    without = sorted(operations().keys() - PAIRS_OF_OPERATIONS.keys())
    assert not without, (
        f"no pair runs {', '.join(without)}: in a module models/pairs/operation_….py call operation_pair with the "
        "operation and the same values by other operations, as CONTRIBUTING.md shows"
    )
    assert not sorted(PAIRS_OF_OPERATIONS.keys() - operations().keys()), "these pairs run operations without a rule"


def test_the_pair_of_an_operation_runs_its_rule():
    met = {
        pair.name: set(Check("invariance", AttnLRP(), pair).run(Settings()).rules)
        for pair in PAIRS.values()
        if pair.name.startswith("operation.")
    }
    missed = [
        (operation, pair.name)
        for operation, pairs in PAIRS_OF_OPERATIONS.items()
        for pair in pairs
        if operation not in met[pair.name]
    ]
    assert not missed


@pytest.mark.parametrize("fault", SAMPLE, ids=lambda fault: fault.id)
def test_a_wrong_rule_is_red_by_its_claims(fault):
    # The ledger has a name for what a constant keeps, and for a product that is not halved: these leave one check.
    named = fault.fault == "left out" or (fault.operation, fault.fault) == ("einsum", "plain gradient")
    assert len(red_by_claims(fault)) >= (1 if named else 2)


def test_the_sample_has_every_fault():
    assert {fault.fault for fault in SAMPLE} == FAULTS.keys()


# --- the balance of the ledger ----------------------------------------------------------------------------------------


def test_the_ledger_is_measured_on_every_base_model_and_every_pair_that_no_transform_makes():
    transforms = registered_transforms().values()
    made = {f"{transform.name}_{base_model}" for transform in transforms for base_model in transform.base_models}
    measured = {name for name, pair in PAIRS.items() if AXIOMS["balance"].is_measured_on(pair)}
    assert not PAIRS.keys() - made - measured
    assert {f"attention.sdpa_{architecture}" for architecture in ARCHITECTURES} <= measured


def test_balance_is_planned_for_explainers_with_a_ledger_alone():
    pairs = [PAIRS["operation.sums"]]
    assert [check.explainer.name for check in plan("balance", [AttnLRP(), GradientTimesInput()], pairs)] == ["attnlrp"]


def test_what_blockwise_lrp_keeps_of_a_function_has_a_name():
    """exp(0) = 1 is a bias of exp(x₁ + x₂)."""
    record = Check("balance", BlockwiseLRP(), PAIRS["generated.exp_of_sum"]).run(Settings())
    assert record.status == "holds"


# --- the rules that were met ------------------------------------------------------------------------------------------


def test_a_record_has_the_rules_that_its_check_met():
    record = Check("invariance", AttnLRP(), PAIRS["product.x1x2x3"]).run(Settings())
    assert "mul" in record.rules
    assert "softmax" not in record.rules
    assert Check("invariance", GradientTimesInput(), PAIRS["product.x1x2x3"]).run(Settings()).rules == ()


def test_rules_are_recorded_inside_the_block_alone():
    record_rules(["outside"])
    with recording_rules() as outer:
        with recording_rules() as inner:
            record_rules(["matmul"])
        record_rules(["add"])
    assert (inner, outer) == ({"matmul"}, {"add"})


def test_unmet_rules_are_counted_and_listed():
    records = [
        record("holds", explainer="attnlrp", rules=("add", "mul")),
        record("holds", explainer="attnlrp", rules=("add",)),
        record("holds", explainer="loo", rules=()),
    ]
    summary = rules_met({"attnlrp": ["add", "mul", "conv3d"], "cplrp": ["add"]}, records)
    assert summary == {
        "attnlrp": RulesMet(met=2, of=3, unmet=["conv3d"]),
        "cplrp": RulesMet(met=0, of=1, unmet=["add"]),
    }
    (table,) = columns.rules(structs.replace(document([]), rules=summary))
    assert table.rows == [("attnlrp", "2 of 3", "conv3d"), ("cplrp", "0 of 1", "add")]
    assert columns.rules(structs.replace(document([]), rules={})) == []


def test_many_unmet_rules_are_cut_in_the_page():
    many = [f"operation{i}" for i in range(30)]
    rules = {"attnlrp": RulesMet(met=0, of=30, unmet=many)}
    (table,) = columns.rules(structs.replace(document([]), rules=rules))
    assert table.rows[0][2].endswith("operation19, and 10 more in the results document")
