"""The peak memory of each built-in explainer on four shapes, predicted and measured, and Leave-One-Out of a BERT-base.

Memory is counted to the byte and does not depend on the machine's load, so that these tests may fail.
"""

import subprocess
import sys

import pytest

from faithcheck.explainers import builtin_explainers
from faithcheck.explainers.protocol import Unsupported, input_gradient
from faithcheck.memory.peak_memory import peak_memory
from faithcheck.memory.predicted_memory import PeakPredictor
from faithcheck.tests.helpers import larger_models

pytestmark = pytest.mark.bench

WITHIN = 0.2
FEATURES, SHORT = 384, 9
COLUMNS = ["explainer", "model", "examples", "features", "predicted, MiB", "measured, MiB", "ratio"]


@pytest.mark.filterwarnings("ignore::faithcheck.explainers.gradients.CompletenessWarning")
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("name", "batch"), [("bert", 1), ("bert", 3), ("gpt2", 1), ("llama", 1), ("vit", 2)])
def test_the_predicted_peak_is_within_a_fifth_of_the_measured_one(table, settings, name, batch, attention):
    device = settings.device
    model = larger_models.model(name, attention, device)
    features = larger_models.PATCHES if name == "vit" else FEATURES // batch
    predictor = PeakPredictor(model, larger_models.case(name, 1, features if name == "vit" else SHORT, device))
    case, rows = larger_models.case(name, batch, features, device), []
    input_gradient(model, case)  # a library that has not run on this device may take memory, for good
    for explainer in builtin_explainers().values():
        try:
            predicted = predictor.peak(explainer, batch, features)
        except Unsupported:
            with pytest.raises(Unsupported):
                explainer.attribute(model, case)
            continue
        measured = peak_memory(lambda explainer=explainer: explainer.attribute(model, case), device, model)
        sizes = (f"{size / 2**20:.1f}" for size in (predicted, measured))
        ratio = f"{predicted / measured:.3f}"
        rows.append([explainer.name, f"{name}, {attention}", str(batch), str(features), *sizes, ratio])
    note = f"Over what is in use before, float32, {device}. Four layers' shapes: tests/helpers/larger_models.py."
    table({"title": f"Peak memory: {name}, {attention}, {batch}", "note": note, "columns": COLUMNS, "rows": rows})
    assert len(rows) >= 10
    assert {row[0]: row[-1] for row in rows if abs(float(row[-1]) - 1) > WITHIN} == {}


BERT_BASE = """
import resource, sys, torch
from pathlib import Path
from transformers import BertConfig, BertForSequenceClassification
from faithcheck.memory.peak_memory import peak_memory
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.models.architectures.embedding_model import EmbeddingModel
from faithcheck.models.case import Case

torch.manual_seed(0)
model = BertForSequenceClassification(BertConfig()).eval()
model.set_attn_implementation(sys.argv[1])
model = EmbeddingModel(model)
# 4 rows in a pass, as of 512 tokens with the default max_tokens; only the first tokens are removed, for time's sake.
mask = torch.ones(1, 512, dtype=torch.int64)
inputs = torch.randn(1, 512, 768)
target = torch.zeros(1, dtype=torch.int64)
case = Case(inputs, target, torch.zeros_like(inputs), forward_arguments={"attention_mask": mask})

class Enough(Exception):
    pass

def limited(passes):
    count = 0
    def stop(*_):
        nonlocal count
        count += 1
        if count > passes:
            raise Enough
    handle = model.register_forward_pre_hook(stop)
    try:
        LeaveOneOut().attribute(model, case)
    except Enough:
        pass
    finally:
        handle.remove()

def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])

before = resident("VmRSS")
if sys.argv[2] == "resident":
    limited(3)
    print(resident("VmHWM") - before)
else:
    print(peak_memory(lambda: limited(3), model=model))
"""


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_leave_one_out_of_512_tokens_on_a_bert_base_takes_less_than_two_gibibytes(table, attention):
    """In fresh processes, of which one is asked for its resident memory. The peak is that of the first passes."""
    counted, resident = (
        int(subprocess.run([sys.executable, "-c", BERT_BASE, attention, how], capture_output=True, check=True).stdout)
        for how in ("counted", "resident")
    )
    row = ["loo", attention, f"{counted / 2**20:.0f}", f"{resident / 2**20:.0f}"]
    columns = ["explainer", "attention", "counted by torch, MiB", "resident, MiB"]
    note = "BERT-base: 12 layers, width 768, 12 heads; 512 tokens, float32, over the model."
    table({"title": f"Leave-One-Out of 512 tokens: {attention}", "note": note, "columns": columns, "rows": [row]})
    assert max(counted, resident) < 2 * 2**30
