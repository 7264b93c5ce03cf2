"""Models whose weights accelerate offloads: the same maps, no weight stays behind, what cannot work is refused."""

import importlib.util
import json
import weakref
from copy import deepcopy

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from faithcheck import Settings
from faithcheck.axioms.equivalence import equivalence
from faithcheck.axioms.measure.axiom import UnmeasurableInType
from faithcheck.axioms.precision import map_in, precision
from faithcheck.axioms.randomisation import randomised
from faithcheck.axioms.trace import trace
from faithcheck.axioms.traces.model_snapshot import restored
from faithcheck.check import Check
from faithcheck.explainers import AttnLRP, GradientTimesInput, LeaveOneOut, Unsupported, builtin_explainers
from faithcheck.explainers.fast.removal_rows import may_be_fast
from faithcheck.explainers.lrp.constant_names import NamingConstants
from faithcheck.explainers.lrp.ledger import conservation_ledger
from faithcheck.explainers.lrp.positional import PositionalLRP
from faithcheck.explainers.protocol import attribution_of
from faithcheck.models import registered_pairs
from faithcheck.models.architectures.base_models import BASE_MODELS
from faithcheck.models.offloaded_weights import device_of, offloaded_weights
from faithcheck.models.pair import NotAPair
from faithcheck.models.pretrained.loading import load
from faithcheck.models.pretrained.text_model import TextClassifier
from faithcheck.tests.helpers import small_models

accelerate = pytest.importorskip("accelerate")

WHERE = (0, torch.float64, torch.device("cpu"))
ARCHITECTURES = ("bert", "llama", "vit")
PAIR = registered_pairs()["execution.device_map_bert"]


def offloaded(model):
    """A copy of an embedding model, all of whose weights are offloaded."""
    copied = deepcopy(model)
    accelerate.cpu_offload(copied.model)
    return copied


@pytest.fixture(scope="module", params=ARCHITECTURES)
def models(request):
    base_model = BASE_MODELS[request.param]
    f = base_model.model(*WHERE)
    return f, offloaded(f), base_model.case(*WHERE)


@pytest.fixture
def bert():
    f = BASE_MODELS["bert"].model(*WHERE)
    return f, offloaded(f), BASE_MODELS["bert"].case(*WHERE)


def outcome(explainer, model, case):
    """A map, or the words of a refusal."""
    torch.manual_seed(0)
    try:
        return attribution_of(explainer, model, case)
    except Unsupported as refusal:
        return str(refusal)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::faithcheck.explainers.gradients.CompletenessWarning")
@pytest.mark.parametrize("name", builtin_explainers())
def test_every_explainer_gives_the_same_map_and_leaves_no_weight_behind(name, models):
    f, g, case = models
    explainer = builtin_explainers()[name]
    expected, found = outcome(explainer, f, case), outcome(explainer, g, case)
    assert expected == found if isinstance(expected, str) else torch.equal(expected, found)
    assert all(weight.is_meta and weight.requires_grad for weight in g.parameters())
    if not isinstance(expected, str):
        assert trace(explainer, g, case).detail == {}


def test_positions_are_known_by_name_where_the_weights_are_frozen_too():
    """Frozen weights are constants that need not be detached: their name is that of the tensor which is brought."""
    f, case = BASE_MODELS["vit"].model(*WHERE).requires_grad_(False), BASE_MODELS["vit"].case(*WHERE)
    assert torch.equal(attribution_of(PositionalLRP(), offloaded(f), case), attribution_of(PositionalLRP(), f, case))


def test_a_name_is_of_one_tensor_though_accelerate_frees_the_one_before(bert):
    """Otherwise Python may give the id of a weight that was freed to a new constant, which then has its name."""
    _, g, case = bert
    without_values = weakref.ref(g.model.bert.embeddings.position_embeddings.weight)
    naming, _ = AttnLRP().propagate(g, case, NamingConstants)
    assert g.model.bert.embeddings.position_embeddings.weight is not without_values()
    assert naming.names[id(without_values())] == "model.bert.embeddings.position_embeddings"


def test_the_ledger_names_the_same_losses(models):
    f, g, case = models
    losses = [
        {(name, float(loss.sum())) for operation in ledger.operations for name, loss in operation.losses.items()}
        for ledger in (conservation_ledger(AttnLRP(), model, case) for model in (f, g))
    ]
    assert losses[0] == losses[1]
    assert losses[0]


def test_a_model_of_transformers_with_weights_on_the_disk(tmp_path):
    folder = small_models.save("bert", tmp_path / "model")
    alone, asked = load(folder), {"bert": "disk", "dropout": "disk", "classifier": "disk"}
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, device_map=asked, offload_folder=str(tmp_path), attn_implementation="eager", dtype=torch.float32
    )
    shared = TextClassifier(model, AutoTokenizer.from_pretrained(folder)).eval()
    examples = alone.encode(["the quick fox", "the dog"])
    case = shared.case(examples)
    assert all(weight.is_meta for weight in model.parameters())
    assert torch.equal(case.inputs, alone.case(examples).inputs)
    for explainer in (LeaveOneOut(), AttnLRP(), GradientTimesInput()):
        with restored(shared) as left_behind:
            assert torch.equal(attribution_of(explainer, shared, case), attribution_of(explainer, alone, case))
        assert left_behind == []
    assert equivalence(alone, shared, case).gap == 0


def test_a_pass_that_is_interrupted_leaves_no_weight_behind(bert):
    _, g, case = bert
    refused = g.model.bert.encoder.layer[1].attention.output.LayerNorm

    def fail(*_):
        assert not refused.weight.is_meta  # the hook runs with the weights in place
        raise RuntimeError("interrupted")

    refused._old_forward = fail
    with pytest.raises(RuntimeError, match="interrupted"):
        case.run(g)
    assert all(weight.is_meta for weight in g.parameters())


def test_the_check_for_traces_compares_what_accelerate_keeps(bert):
    _, g, case = bert
    head = g.model.classifier
    with restored(g) as nothing:
        case.run(g)
    with restored(g) as loaded:
        head._hf_hook.pre_forward(head)
    with restored(g) as frozen:
        g.requires_grad_(False)
        case.run(g)
    with restored(g) as constant:
        head.bias = torch.nn.Parameter(head.bias.detach(), requires_grad=False)
    with restored(g) as written:
        offloaded_weights(g)["model.classifier.bias"].add_(1)
    with restored(g) as moved:
        accelerate.hooks.remove_hook_from_module(head)
    assert nothing == []
    assert loaded == ["replaced parameters (model.classifier)"]
    assert frozen[0].startswith("requires_grad (model.bert.")
    assert constant == ["replaced parameters (model.classifier)"]
    assert written == ["weights (model.classifier.bias)"]
    assert moved[0].startswith("patched methods (model.classifier.")
    assert torch.equal(case.run(g), case.run(bert[0]))  # all of it was undone


def test_equivalence_sees_other_weights_among_those_that_accelerate_keeps(bert):
    f, g, case = bert
    assert equivalence(f, g, case).gap == 0
    offloaded_weights(g)["model.classifier.bias"].add_(1)
    measured = equivalence(f, g, case)
    assert measured.gap > measured.tol
    for weight in offloaded_weights(g).values():
        if weight.is_floating_point():
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    with pytest.raises(NotAPair, match="f and g share no weights"):
        equivalence(f, g, case)


def test_equivalence_sees_a_pass_that_writes_to_what_accelerate_keeps(bert):
    f, g, case = bert

    def write(*_):
        offloaded_weights(g.model)["bert.pooler.dense.bias"].add_(1)

    g.model.classifier.register_forward_hook(write)
    with pytest.raises(NotAPair, match=r"the forward pass of g changes model\.bert\.pooler\.dense\.bias"):
        equivalence(f, g, case)


def test_copies_with_other_weights_are_refused_with_the_way_out(bert):
    _, g, case = bert
    refusal = r"model.bert.embeddings \(BertEmbeddings\) is offloaded.*load the model without a device_map"
    with pytest.raises(Unsupported, match=refusal):
        precision(AttnLRP(), g, case)
    with pytest.raises(Unsupported, match=refusal):
        randomised(g, ["model.classifier"], 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_in_a_coarse_type_the_pair_is_skipped(dtype):
    record = Check("invariance", LeaveOneOut(), PAIR).run(Settings(dtype=dtype))
    assert record.status == "unsupported"
    assert "is offloaded by accelerate" in record.detail["reason"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8])
def test_its_map_in_a_coarse_type_is_refused_with_the_way_out(dtype, bert):
    _, g, case = bert
    with pytest.raises(UnmeasurableInType, match=r"is offloaded by accelerate.*load the model without a device_map"):
        map_in(dtype, GradientTimesInput(), g, case)


@pytest.mark.parametrize("explainer", [LeaveOneOut(), None])
def test_without_accelerate_the_pair_is_skipped_and_says_what_to_install(explainer, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "accelerate" else found(name))
    record = Check("invariance" if explainer else "equivalence", explainer, PAIR).run(Settings(seed=3))
    assert record.status == "unsupported"
    assert record.detail["reason"].endswith("pip install accelerate")


def test_the_pair_offloads_all_layers_but_the_first_and_says_nothing(caplog):
    f, g = PAIR.build(*WHERE)
    kept = offloaded_weights(g)
    assert {name.split(".")[4] for name in kept} == {"1"}
    assert {name for name, weight in g.named_parameters() if weight.is_meta} == kept.keys()
    assert all(torch.equal(weight, f.state_dict()[name]) for name, weight in kept.items())
    assert caplog.messages == []
    assert json.dumps(g.model.hf_device_map) == '{"": "cpu", "bert.encoder.layer.1": "disk"}'


def test_leave_one_out_runs_offloaded_models_plainly(bert):
    f, g, _ = bert
    assert may_be_fast(f)
    assert not may_be_fast(g)


def test_the_inputs_of_an_offloaded_model_lie_where_it_runs(bert):
    f, g, _ = bert
    assert g.model.device.type == "meta"
    assert device_of(g.model) == device_of(f.model) == torch.device("cpu")
