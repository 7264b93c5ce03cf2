"""The catalogue of faults and the campaign that measures it: a sample on few subjects."""

import json

import pytest
import torch

from faithcheck import Settings, check_explainer
from faithcheck.axioms.measure import statuses
from faithcheck.explainers import GradientTimesInput
from faithcheck.models import registered_pairs
from faithcheck.tests.helpers import power
from faithcheck.tests.helpers.campaign_results import store, stored
from faithcheck.tests.helpers.faults.catalogue import FAMILIES, FAULTS, UNCHANGED
from faithcheck.tests.helpers.faults.fault import Fault, Line
from faithcheck.tests.helpers.saboteurs import SABOTEURS

BY_ID = {fault.id: fault for fault in (*FAULTS, *UNCHANGED)}
AXIOMS = ("completeness", "scale", "determinism", "batching", "trace")
PAIRS = [registered_pairs()[name] for name in ("control.mlp", "product.x1x2x3", "probe.attention")]
SAMPLE = {
    "gradient_x_input: the absolute gradient": {"name"},
    "gradient_x_input: the input twice": {"name", "claims", "default"},
    "gradient_x_input: weights changed": {"name", "claims", "default"},
    "integrated_gradients: 2 steps": {"name", "claims", "default"},
    "integrated_gradients: the path backwards": {"name", "claims", "default"},
    "loo: noise without a seed": {"name", "claims", "default"},
    "attnlrp: half": {"name"},
}
"""Faults, and the ways in which a check among these is red."""

ON_TWO_PAIRS = {
    "epsilon_lrp: the slope at a pole": ["log_sum_exp.stable", "log_sum_exp.shifted_by_first"],
    "attnlrp: a mask of zeros": ["operation.attention", "attention.distances_sdpa"],
    "blockwise_lrp: functions not contracted": ["degree.silu_of_product", "degree.silu_of_three"],
    "blockwise_lrp: constants keep the degree": ["degree.product_plus_one", "degree.one_minus_product"],
    "pa_lrp: the rows of another pass": ["batching.single_gpt2", "batching.single_llama"],
}
"""Faults that a single check found once; each has a second."""


def red(fault):
    return power.red_checks(fault, AXIOMS, PAIRS, Settings())


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_faults_is_red(name):
    assert {way for way, counts in red(BY_ID[name]).items() if counts} == SAMPLE[name]


@pytest.mark.parametrize("name", ON_TWO_PAIRS)
def test_faults_that_few_pairs_can_show_are_red_on_two(name):
    pairs = [registered_pairs()[pair] for pair in ON_TWO_PAIRS[name]]
    assert power.red_checks(BY_ID[name], ["invariance"], pairs, Settings())["name"] == {"invariance": 2}


@pytest.mark.parametrize("name", ["gradient_x_input", "integrated_gradients", "attnlrp"])
def test_the_same_explainers_without_a_fault_are_green(name):
    assert red(BY_ID[f"{name}: unchanged"]) == {"name": {}, "claims": {}, "default": {}}


def test_every_fault_can_be_applied_and_is_undone():
    x = torch.randn(2, 3, dtype=torch.float64)
    pair = registered_pairs()["control.mlp"]
    model = pair.build(0, torch.float64, torch.device("cpu"))[0]
    case = pair.case(0, torch.float64, torch.device("cpu"))
    before = GradientTimesInput().attribute(model, case)
    for fault in FAULTS:
        with fault.faulty() as explainer:
            assert explainer.name == fault.explainer
    assert torch.equal(GradientTimesInput().attribute(model, case), before)
    assert torch.equal(torch.nn.functional.gelu(x), torch.nn.functional.gelu(x))


def test_the_catalogue_is_large_and_its_names_are_unique():
    assert len(FAULTS) >= 120
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
    assert len({saboteur.name for saboteur in SABOTEURS}) == len(SABOTEURS) >= 20


def test_a_line_that_is_gone_is_refused():
    fault = Fault("gone", "gradient_x_input", Line("gradients:GradientTimesInput.attribute", "gone", "new"), "—")
    with pytest.raises(ValueError, match="0 times, not once"), fault.faulty():
        pass


def test_results_resume_after_a_kill(tmp_path):
    path = tmp_path / "power" / "results.jsonl"
    store(path, "now", {"fault": "first"})
    store(path, "before", {"fault": "second"})
    with path.open("a") as file:
        file.write('{"state": "now", "fau')
    assert stored(path, "now") == [{"state": "now", "fault": "first"}]


def test_the_page_has_every_fault_and_says_what_hangs_on_one_check(tmp_path, capsys):
    path, document = tmp_path / "results.jsonl", tmp_path / "power.md"
    assert power.main(path, document) == 1
    assert "have no result" in capsys.readouterr().out
    caught = {"name": {"scale": 2}, "claims": {"scale": 1}, "default": {}}
    clean = {"name": {}, "claims": {}, "default": {}}
    first, second, *others = FAULTS
    rows = {first.id: clean, second.id: {**caught, "name": {"trace": 1}}, **{fault.id: caught for fault in others}}
    rows |= {explainer.id: clean for explainer in UNCHANGED}
    state = power.state()
    path.write_text("".join(json.dumps({"state": state, "fault": id_, "red": row}) + "\n" for id_, row in rows.items()))
    assert power.main(path, document) == 0
    page = document.read_text()
    assert page.count("\n| ") == len(FAULTS) + len(FAMILIES) * 2 + 2
    assert f"- {first.id}: {first.why}." in page.split("## Not red by name")[1].split("##")[0]
    assert f"- {second.id}: trace" in page.split("## Red by one check alone")[1].split("##")[0]


def records_of(explainer):
    return check_explainer(explainer, ["invariance", "trace"], ["control.mlp"])


SURVIVED = "changes_weights hooks_and_raises patches_autograd patches_a_layer reseeds raises_no_exception leaves_with_0"


@pytest.mark.parametrize("saboteur", [s for s in SABOTEURS if s.name in SURVIVED.split()], ids=lambda s: s.name)
def test_figures_after_a_saboteur_are_the_same(saboteur):
    before = records_of(GradientTimesInput())
    damaged = records_of(saboteur)
    assert records_of(GradientTimesInput()) == before
    assert any(record.status in statuses.RED for record in damaged)
