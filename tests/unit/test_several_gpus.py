"""A model on several GPUs, as far as a machine without one shows it: what is asked of accelerate, and its hooks."""

import importlib.util
from argparse import Namespace

import pytest
from transformers import AutoModelForSequenceClassification

from faithcheck.alignment.batch import LoadedModel, measure_batch
from faithcheck.alignment.run_key import fingerprint
from faithcheck.alignment.settings import AlignmentSettings, table_2
from faithcheck.explainers.loo.removal import make_removal
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.loading import ALL_GPUS, _refuse_offloaded, load
from faithcheck.options import OptionError
from faithcheck.options.computing import refuse_wrong_cluster
from faithcheck.tests.helpers import small_models

SETTINGS = AlignmentSettings(make_removal("attention_mask"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_models.save("bert", tmp_path_factory.mktemp("bert"))


def test_accelerate_is_asked_to_share_the_layers_between_all_gpus(folder, monkeypatch):
    pytest.importorskip("accelerate")
    asked, loaded = [], AutoModelForSequenceClassification.from_pretrained

    def from_pretrained(*arguments, **options):
        asked.append(options.get("device_map"))
        return loaded(*arguments, **options)

    monkeypatch.setattr(AutoModelForSequenceClassification, "from_pretrained", from_pretrained)
    shared, alone = load(folder, ALL_GPUS), load(folder)
    assert asked == ["auto", None]
    assert fingerprint(shared) == fingerprint(alone)


def test_explainers_see_through_the_hooks_of_accelerate(tmp_path):
    """They are of the forward pass, as on several GPUs; here each moves tensors from the CPU to the CPU."""
    accelerate = pytest.importorskip("accelerate")
    folder = small_models.save("gpt2", tmp_path)
    alone, hooked = load(folder), load(folder)
    devices = {child: "cpu" for child, _ in hooked.model.named_children()}
    accelerate.dispatch_model(hooked.model, devices, main_device="cpu", force_hooks=True)
    assert sum(hasattr(module, "_hf_hook") for module in hooked.modules()) > 20
    assert fingerprint(hooked) == fingerprint(alone)
    examples = alone.encode(["one two three four", "two three"])
    both = [LoadedModel(model) for model in (alone, hooked)]
    for explainer in table_2(SETTINGS):
        one, other = (measure_batch(model, examples, explainer, SETTINGS, 0) for model in both)
        assert one == other, explainer.name
        assert both[1].unchanged()


def test_a_model_that_does_not_fit_the_gpus_is_refused(folder):
    model = load(folder).model
    model.base_model.encoder.layer[0].to("meta")
    with pytest.raises(ModelError, match=r"^mine: \d+% of its weights do not fit the GPUs: give it more"):
        _refuse_offloaded("mine", model)


def of_cluster(gpus):
    return Namespace(ray="local", workers=None, cpus_per_worker=1, gpus_per_worker=gpus, isolate=False)


def test_without_accelerate_one_line_says_what_to_install(folder, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "accelerate" else found(name))
    with pytest.raises(ModelError, match="a model on several GPUs needs accelerate: pip install accelerate"):
        load(folder, ALL_GPUS)
    pytest.importorskip("ray")
    with pytest.raises(OptionError, match=r"^--gpus-per-worker=2: a model on several GPUs needs accelerate"):
        refuse_wrong_cluster(of_cluster(2.0))


def test_a_worker_has_a_share_of_a_gpu_or_whole_gpus():
    with pytest.raises(OptionError, match=r"^--gpus-per-worker=1\.5: give a share of one GPU, or a whole number"):
        refuse_wrong_cluster(of_cluster(1.5))
