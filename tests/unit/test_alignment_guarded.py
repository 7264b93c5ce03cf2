"""An explainer that changes the model or the process changes no other explainer's figures, and is named."""

import math

import pytest
import torch
from torch import nn

from faithcheck.alignment import batch, evaluate
from faithcheck.alignment.batch import LoadedModel
from faithcheck.alignment.settings import AlignmentSettings, table_2
from faithcheck.axioms.traces.model_snapshot import ModelSnapshot, restored, same_values
from faithcheck.explainers import GradientTimesInput
from faithcheck.explainers.loo.removal import AttentionMask
from faithcheck.models.pretrained.loading import load
from faithcheck.tests.helpers import small_models

TEXTS = ["a quick brown fox", "the dog runs", "the lazy dog jumps over a quick fox and runs", "the lazy fox"]
SETTINGS = AlignmentSettings(AttentionMask(), max_tokens=40)  # several batches


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_models.save("bert", tmp_path_factory.mktemp("bert"))


class Saboteur:
    """Gradient × input, after a change of the model or the process that is never undone."""

    def __init__(self, name, change):
        self.name, self.change = name, change

    def attribute(self, model, case):
        attribution = GradientTimesInput().attribute(model, case)
        self.change(model)
        return attribution


def weights_in_place(model):
    with torch.no_grad():
        model.model.classifier.weight.mul_(-2)


def weights_by_data(model):
    model.model.bert.encoder.layer[0].attention.self.query.weight.data.mul_(3)  # no version counter moves


def weights_replaced(model):
    model.model.classifier.weight = nn.Parameter(torch.zeros_like(model.model.classifier.weight))


def hooks_and_raises(model):
    model.model.bert.encoder.layer[1].register_forward_hook(lambda module, inputs, output: 0 * output)
    raise RuntimeError("after the hook")


def weights_and_exits(model):
    weights_in_place(model)
    raise SystemExit(0)


def patched_class(model):
    nn.LayerNorm.forward = lambda self, x: 2 * x


def patched_function(model):
    nn.functional.softmax = lambda x, *arguments, **keywords: x


def replacements(model):
    model.replacements()["zero"].add_(1)
    model.replacements()["mean"].add_(1)


def train_mode(model):
    model.train()


def configuration(model):
    model.model.config.output_attentions = True


CHANGES = {
    weights_in_place: "weights",
    weights_by_data: "weights",
    weights_replaced: "replaced parameters",
    hooks_and_raises: "hooks",
    weights_and_exits: "weights",
    patched_class: "patched classes (LayerNorm.forward)",
    patched_function: "patched functions (torch.nn.functional.softmax)",
    replacements: "_mean_embedding",
    train_mode: "train mode",
    configuration: "replaced config",
}


class Innocent:
    """It has transformers put its hooks on the model, and draws random numbers: both are no trace."""

    name = "innocent"

    def attribute(self, model, case):
        mask = case.forward_arguments["attention_mask"]
        with torch.no_grad():
            model.model(inputs_embeds=case.inputs, attention_mask=mask, output_attentions=True)
        return torch.rand(case.shape, dtype=case.inputs.dtype)


def named(name):
    """An explainer of its own name, with a store of its own."""
    return GradientTimesInput(name=name)


def aligned(folder, cache, explainers):
    """The results by name, of Leave-One-Out and these explainers, on a model that is loaded anew."""
    model = load(folder, dtype=torch.float64)
    chosen = [table_2(SETTINGS)[0], *explainers]
    return {result.name: result for result in evaluate.align(model, model.encode(TEXTS), chosen, SETTINGS, cache)}


AFTER = [f"after {change.__name__}" for change in CHANGES]


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory):
    return aligned(folder, tmp_path_factory.mktemp("undisturbed"), [named("alone"), Innocent()])


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("disturbed")


@pytest.fixture(scope="module")
def disturbed(folder, cache):
    """One run in which every saboteur comes before an explainer."""
    pairs = [(Saboteur(change.__name__, change), named(f"after {change.__name__}")) for change in CHANGES]
    return aligned(folder, cache, [explainer for pair in pairs for explainer in pair])


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_the_figures_after_a_saboteur_are_those_without_it(undisturbed, disturbed, change):
    after = disturbed[f"after {change.__name__}"]
    assert after.records == undisturbed["alone"].records
    assert not after.left_behind
    assert CHANGES[change] in "; ".join(disturbed[change.__name__].left_behind)


def test_an_explainer_that_raises_after_a_change_is_named_and_has_failed(disturbed):
    assert disturbed["hooks_and_raises"].refused == "it raised RuntimeError: after the hook"
    assert disturbed["weights_and_exits"].refused == "it raised SystemExit: 0"
    assert [result.name for result in disturbed.values() if result.failed] == ["hooks_and_raises", "weights_and_exits"]


def test_the_cache_of_a_disturbed_run_has_the_figures_of_the_clean_model(folder, cache, undisturbed, disturbed):
    explainers = [*map(named, AFTER), Saboteur("weights_in_place", weights_in_place)]
    again = aligned(folder, cache, explainers)
    assert all(again[name].records == undisturbed["alone"].records for name in AFTER)
    assert again["loo"] == undisturbed["loo"]
    assert again["weights_in_place"] == disturbed["weights_in_place"], "the cache forgets what was left behind"


def test_nothing_is_kept_of_a_model_that_cannot_be_put_back(folder, tmp_path, undisturbed):
    """A list inside the configuration is seen by the fingerprint alone."""
    appends = Saboteur("appends", lambda model: model.model.config.architectures.append("Another"))
    refused = aligned(folder, tmp_path, [appends, named("alone")])
    for name in ("appends", "alone"):
        assert "no longer the one that was loaded" in refused[name].refused
        assert refused[name].failed
    assert aligned(folder, tmp_path, [named("alone")])["alone"] == undisturbed["alone"]


def test_an_innocent_explainer_is_not_accused_and_draws_the_same_numbers_again(folder, tmp_path, undisturbed):
    assert undisturbed["innocent"].records
    assert not undisturbed["innocent"].left_behind
    torch.rand(1)
    assert aligned(folder, tmp_path, [Innocent()])["innocent"] == undisturbed["innocent"]


@pytest.mark.parametrize("values", [[1.0, math.nan], [0.0, -math.inf]])
def test_weights_are_compared_by_value_and_nan_is_a_value(values):
    model = nn.Linear(2, 1)
    model.weight.data = torch.tensor([values])
    with restored(model) as left_behind:
        pass
    assert not left_behind
    with restored(model) as left_behind:
        model.weight.data[0, 1] = 2
    assert left_behind == ["weights (weight)"]
    assert same_values(model.weight, torch.tensor([values]))


def test_a_snapshot_serves_many_blocks():
    model = nn.Linear(2, 1)
    snapshot, before = ModelSnapshot(model), model.weight.detach().clone()
    for _ in range(3):
        with restored(snapshot) as left_behind, torch.no_grad():
            model.weight.mul_(2)
        assert left_behind == ["weights (weight)"]
        assert torch.equal(model.weight, before)


@pytest.mark.parametrize("structure", ["a", "c"])
def test_a_model_of_another_structure_has_changed(structure, monkeypatch):
    monkeypatch.setattr(batch, "structure", lambda _: "b")
    loaded = LoadedModel(nn.Linear(2, 1))
    assert loaded.unchanged()
    monkeypatch.setattr(batch, "structure", lambda _: structure)
    assert not loaded.unchanged()
