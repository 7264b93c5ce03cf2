"""Every architecture of transformers: how small models are built, and that a check of one finds its fault.

`make architectures` compares all of them, and CI runs it.
"""

import json
import math
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

import faithcheck.tests
from faithcheck.explainers import AttnLRP, GradientTimesInput, LeaveOneOut, Unsupported
from faithcheck.explainers.lrp.ledger import ledger_of_batch
from faithcheck.models.case import Case
from faithcheck.tests.experiments import architectures
from faithcheck.tests.helpers.architecture_checks import (
    holding,
    lost,
    measured,
    operation_of,
    outcome,
    roundoff_of_relevance,
    where_relevance_is_largest,
)
from faithcheck.tests.helpers.installed import small_model as module
from faithcheck.tests.helpers.installed.classes import MAPPINGS, installed_classes
from faithcheck.tests.helpers.installed.own_sizes import OTHER_INPUTS, OWN_SIZES
from faithcheck.tests.helpers.installed.shrinking import small_configuration, small_size
from faithcheck.tests.helpers.installed.small_model import NotBuilt, small_model

DOCS = Path(faithcheck.tests.__path__[0]).resolve().parent / "docs"
RECORD = json.loads((DOCS / "results" / "architectures.json").read_text())
KINDS = {str(kind): kind for kind in installed_classes()}


def of_name(name):
    """The first class of this name."""
    return next(kind for kind in KINDS.values() if kind.name == name)


LLAMA = of_name("LlamaForCausalLM")
of_this_version = pytest.mark.skipif(
    transformers.__version__ != RECORD["transformers"], reason=f"the record is of transformers {RECORD['transformers']}"
)


@of_this_version
def test_the_page_is_of_the_record():
    page = (DOCS / "results" / "architectures.md").read_text()
    built = sum(" | " in line and "/" in line for line in page.partition("## Each class")[2].splitlines())
    assert built == len(RECORD["classes"]) > 200


def test_transformers_lists_the_classes():
    assert {kind.task for kind in KINDS.values()} == set(MAPPINGS)
    assert {kind.name for kind in KINDS.values()} <= set(dir(transformers))


def test_sizes_of_their_own_belong_to_a_configuration():
    assert [name for name in OWN_SIZES if name not in transformers.CONFIG_MAPPING] == []


def test_a_configuration_is_small_and_so_are_those_within_it():
    configuration = small_configuration("llava")
    assert configuration.text_config.hidden_size == configuration.vision_config.hidden_size == 32
    assert small_size("num_experts_per_tok") == 2
    assert small_size("hidden_act") is None


def test_the_model_and_the_case_follow_from_the_seed():
    (f, case), (g, same), (other, _) = small_model(LLAMA), small_model(LLAMA), small_model(LLAMA, seed=1)
    assert torch.equal(case.inputs, same.inputs)
    assert torch.equal(case.run(f), case.run(g))
    assert not torch.equal(case.run(f), case.run(other))


@pytest.mark.parametrize(
    ("output", "reason"),
    [(1.0, "its output does not depend on its inputs"), (math.nan, "in float64 its outputs are not finite")],
)
def test_a_model_that_its_inputs_change_nothing_of_is_not_built(output, reason, monkeypatch):
    monkeypatch.setattr(module.Embedded, "forward", lambda self, inputs, **_: inputs.new_full((len(inputs), 3), output))
    assert measured(LLAMA)["not_built"] == reason


def test_the_output_of_a_deep_model_with_batch_norm_depends_on_its_inputs():
    """With the statistics of a new BatchNorm, it would by one part in 10¹¹."""
    model, case = small_model(of_name("MobileViTV2ForImageClassification"))
    change = LeaveOneOut().attribute(model, case).abs().max()
    assert change > 1e-4 * case.run(model).abs().max()


def test_a_model_that_needs_more_than_a_text_or_an_image_is_not_built():
    with pytest.raises(NotBuilt, match="it takes audio"):
        small_model(of_name("VoxtralRealtimeForConditionalGeneration"))
    assert set(OTHER_INPUTS) <= {kind.model_type for kind in KINDS.values()}


CALLED_DIFFERENTLY = {
    "CpmAntForCausalLM": "it puts embeddings of its own before those of the text",
    "FSMTForConditionalGeneration": "its encoder does not name its embedding layer",
    "ImageGPTForImageClassification": "it reads an image as a text of colours",
    "PPLCNetForImageClassification": "its logits have another name",
    "Siglip2ForImageClassification": "it takes patches and their number by row and column",
    "SwitchTransformersForConditionalGeneration": "its router is in float32",
    "XGLMForCausalLM": "its mask has the default type",
}


@pytest.mark.parametrize("name", CALLED_DIFFERENTLY)
def test_a_model_that_is_called_in_a_way_of_its_own_reads_every_feature_in_float64(name):
    model, case = small_model(of_name(name))
    outputs = case.run(model)
    assert outputs.dtype == torch.float64
    removed = [case.inputs.index_fill(1, torch.tensor([feature]), 0) for feature in range(case.shape[1])]
    changes = torch.stack([(replace(case, inputs=inputs).run(model) - outputs).abs().amax(1) for inputs in removed])
    assert (changes > 1e-9 * outputs.abs().max()).all()
    assert torch.get_default_dtype() == torch.float32


@dataclass
class Faulty:
    """Gradient × input with a fault."""

    fault: str
    name: str = "faulty"

    def attribute(self, model, case):
        attribution = GradientTimesInput().attribute(model, case)
        if self.fault == "batch":
            return attribution - attribution.mean(0)
        if self.fault == "padding":
            return attribution + case.shape[1]
        if self.fault == "copy":
            self.seen = getattr(self, "seen", model)
            return attribution * (1 if model is self.seen else 2)
        if self.fault == "after":
            with torch.no_grad():
                list(model.parameters())[-1].mul_(2)
        if self.fault == "crash":
            raise KeyError("a table")
        if self.fault == "refuse":
            raise Unsupported("topk in model.gate (Router): no rule for this operation")
        return attribution


@pytest.mark.parametrize("fault", ["copy", "batch", "padding", "after"])
def test_a_check_finds_its_fault(fault):
    held = holding({"": outcome(Faulty(fault), *small_model(LLAMA))})[""]
    assert fault not in held
    assert fault in holding({"": outcome(Faulty(""), *small_model(LLAMA))})[""]


class ReadingPadding(LeaveOneOut):
    """Leave-One-Out with a fault: it counts the padding."""

    def attribute(self, model, case):
        return super().attribute(model, case) * case.shape[1] * case.unpadded


def test_a_fault_of_leave_one_out_is_not_the_models():
    assert "padding" not in holding({"": outcome(ReadingPadding(), *small_model(LLAMA))})[""]


def test_a_model_that_reads_a_masked_token_depends_on_padding_itself():
    """The row of attention of [CLS], which DeBERTa reads, is masked whole with it: a mean over all positions."""
    measured_there = outcome(LeaveOneOut(), *small_model(of_name("DebertaForSequenceClassification")))
    assert measured_there["model"]["padding"] > 1e-3
    assert "padding" not in measured_there["checks"]


class Cancelling(torch.nn.Module):
    """exp((x₁ + x₂) − x₁): of exp(10⁻¹²), the two sums receive ±10¹² times the relevance of the map."""

    def forward(self, x):
        sums = x.cumsum(1)
        return torch.exp(sums[:, 1:] - sums[:, :1])


def test_relevance_that_cancels_within_a_model_leaves_fewer_digits():
    x = torch.tensor([[1.0, 1e-12]], dtype=torch.float64)
    ledger = ledger_of_batch(AttnLRP(), Cancelling(), Case(x, torch.zeros(1, dtype=torch.int64), torch.zeros_like(x)))
    assert 1e-4 < roundoff_of_relevance(ledger) < 1e-3
    assert where_relevance_is_largest(ledger) == "sub in the model"
    digits = {"checks": {"padding": 1e-5, "during": 1e-5}, "tolerance": roundoff_of_relevance(ledger)}
    assert holding({"": digits}) == {"": ["padding"]}


def test_a_rule_that_loses_relevance_is_found_by_the_ledger():
    rules = {**AttnLRP().rules, "softmax": lambda call: call.value() * 2}
    faulty = type(AttnLRP())("attnlrp", rules)
    assert "ledger" not in holding({"": outcome(faulty, *small_model(LLAMA))}).get("", [])


def test_a_refusal_is_no_crash():
    crash, refusal = (outcome(Faulty(fault), *small_model(LLAMA)) for fault in ("crash", "refuse"))
    assert crash == {"crashes": "KeyError: 'a table'"}
    assert operation_of(refusal["refuses"]) == "topk"


def test_what_is_lost_is_named():
    record = {"a": {"loo": ["after", "copy"], "attnlrp": []}, "b": {"loo": []}}
    now = {"a": {"loo": ["copy"]}, "b": {"loo": ["after"]}}
    assert lost(record, now) == ["a: loo: after no longer holds", "a: attnlrp no longer runs"]
    assert lost(record, record) == []
    assert lost({"b": {"loo": []}}, {}) == ["b: loo no longer runs"]


def test_a_class_that_ends_its_process_does_not_take_the_others_with_it(monkeypatch, tmp_path):
    monkeypatch.setattr(architectures, "RESULTS", tmp_path / "results.jsonl")

    def run(command, **_):
        for name in command[command.index("--work") + 1 :]:
            architectures.store(architectures.RESULTS, "state", {"begun": name})
            if name == "deadly":
                return SimpleNamespace(returncode=-9, stderr="")
            architectures.store(architectures.RESULTS, "state", {"class": name, "outcomes": {}})
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    architectures.share("state", ["first", "deadly", "last"])
    found = architectures.results("state")
    assert set(found) == {"first", "deadly", "last"}
    assert found["deadly"]["not_built"] == "it ended its process: SIGKILL"
