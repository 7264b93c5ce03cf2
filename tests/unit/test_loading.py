"""What a model's own configuration may not decide: the attention that it is run with."""

import json

import pytest
from transformers import modeling_utils

from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.loading import load
from faithcheck.models.pretrained.target_choice import name_of_output
from faithcheck.tests.helpers import small_models

KEYS = ("attn_implementation", "_attn_implementation")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return small_models.save("bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture
def configured(bert, monkeypatch):
    """The folder with these settings in config.json, for the time of a test."""
    file = bert / "config.json"
    before = file.read_text()

    def change(**settings):
        file.write_text(json.dumps({**json.loads(before), **settings}))
        return bert

    yield change
    file.write_text(before)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("attention", ["sdpa", {"": "sdpa"}, "flash_attention_2"])
def test_the_attention_of_the_configuration_does_not_beat_eager(configured, key, attention):
    assert load(configured(**{key: attention})).model.config._attn_implementation == "eager"


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("attention", ["an-owner/an-attention", "paged|an-owner/an-attention", "no_such", 7])
def test_an_attention_that_is_not_built_in_is_refused_in_one_line(configured, key, attention, monkeypatch):
    for loader in ("lazy_import_flash_attention", "is_kernel"):
        monkeypatch.setattr(modeling_utils, loader, lambda *_, **__: pytest.fail("the hub's loader was reached"))
    with pytest.raises(ModelError, match="is not built into transformers") as refused:
        load(configured(**{key: attention}))
    message = str(refused.value)
    assert repr(attention) in message
    assert 'Take "attn_implementation" and "_attn_implementation" out of the file' in message
    assert "\n" not in message


def test_a_model_that_runs_with_another_attention_than_was_asked_for_is_refused(bert, monkeypatch):
    """As a later version of transformers could have it."""
    model = modeling_utils.PreTrainedModel
    monkeypatch.setattr(model, "_check_and_adjust_attn_implementation", lambda *_, **__: "sdpa")
    with pytest.raises(ModelError, match="its attention is sdpa although eager was asked for"):
        load(bert)


def test_names_of_outputs_in_label2id_alone_are_kept(tmp_path):
    folder = small_models.save("bert", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["id2label"]
    names = [f"name {i}" for i in range(load(folder).model.config.num_labels)]
    config["label2id"] = {name: i for i, name in enumerate(names)}
    (folder / "config.json").write_text(json.dumps(config))
    assert [name_of_output(load(folder), i) for i in range(len(names))] == names


@pytest.mark.parametrize("head", ["BertForTokenClassification", "BertForQuestionAnswering", "BertForMultipleChoice"])
def test_a_head_with_other_outputs_than_one_row_a_text_is_refused(tmp_path, head):
    folder = small_models.save("bert", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [head]}))
    with pytest.raises(ModelError, match=f"got {head}: what is explained is one row of outputs for a text"):
        load(folder)
