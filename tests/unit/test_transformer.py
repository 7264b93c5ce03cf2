"""Loading of trained models: a model that cannot be used is refused with an error that says why and what to do."""

import json
import os
import sys

import pytest
import torch
import transformers
from safetensors.torch import load_file

from faithcheck.alignment.run_key import fingerprint
from faithcheck.explainers import AttnLRP, Unsupported
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.image_classifier import ImageClassifier
from faithcheck.models.pretrained.image_preparation import Preparation
from faithcheck.models.pretrained.loading import load
from faithcheck.models.pretrained.text_model import NextTokenModel, TextClassifier
from faithcheck.tests.helpers.small_models import ARCHITECTURES, SMALL, TEXTS, TOKENS, WORDS, bert, save, tokenizer

HEADS = "…ForCausalLM, …LMHeadModel, …ForSequenceClassification, …ForImageClassification"


@pytest.fixture
def folder(tmp_path):
    return save("bert", tmp_path)


def edit(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def refusal(name, *parts, **options):
    with pytest.raises(ModelError) as error:
        load(name, **options)
    message = str(error.value)
    assert str(name) in message
    assert "\n" not in message
    for part in parts:
        assert part in message
    return message


def test_the_weights_are_float32_eager_and_in_eval_mode_unless_asked(folder):
    half = transformers.AutoModelForSequenceClassification.from_pretrained(folder).half()
    half.save_pretrained(folder)
    text_model = load(folder)
    assert isinstance(text_model, TextClassifier)
    assert {weight.dtype for weight in text_model.parameters()} == {torch.float32}
    assert text_model.model.config._attn_implementation == "eager"
    assert not any(part.training for part in text_model.modules())
    for name, weight in text_model.model.state_dict().items():
        assert torch.equal(weight, half.state_dict()[name].float())
    assert load(folder, dtype=torch.bfloat16).model.dtype == torch.bfloat16


# --- missing models and files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no-one/no-such-model", "bert-no-such-model", "/no/such/folder"])
def test_a_hub_name_without_network_is_refused(monkeypatch, name):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refusal(name, "neither a local folder nor a model that can be downloaded here", "Without network, give the path of")


def test_an_empty_folder_is_refused(tmp_path):
    refusal(tmp_path, "cannot be loaded", "Expected config.json, model.safetensors and tokenizer.json")


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2"])
def test_a_missing_tokenizer_is_refused(tmp_path, name):
    save(name, tmp_path)
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    refusal(tmp_path, "there is no tokenizer, or its vocabulary is empty")


def test_missing_weights_are_refused(folder):
    (folder / "model.safetensors").unlink()
    refusal(folder, "model.safetensors")


def test_pickle_is_refused_and_loaded_on_request(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    refusal(folder, "model.safetensors", "save them again by save_pretrained, or use `faithcheck align --allow-pickle`")
    text_model = load(folder, dtype=torch.float64, allow_pickle=True)
    assert all(torch.equal(text_model.model.state_dict()[name], weight) for name, weight in weights.items())


class Bomb:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


def test_pickle_runs_no_code_even_on_request(folder):
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Bomb(folder / "run")}, folder / "pytorch_model.bin")
    refusal(folder, "cannot be loaded", allow_pickle=True)
    assert not (folder / "run").exists()


def test_a_missing_preprocessor_of_images_is_refused(tmp_path):
    save("vit", tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    refusal(tmp_path, "preprocessor_config.json")


# --- damaged and unsuitable models -----------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 100, 2000])
def test_damaged_weights_are_refused(folder, keep):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refusal(folder, "cannot be loaded")


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_damaged_json_is_refused(folder, file):
    (folder / file).write_text("{")
    refusal(folder, "cannot be loaded")


def test_a_model_without_a_head_is_refused(folder):
    transformers.BertModel(bert().config).save_pretrained(folder)
    assert f"expected one of {HEADS}, got BertModel: what is explained is one row" in refusal(folder)
    edit(folder / "config.json", architectures=["BertForSequenceClassification"])
    refusal(
        folder, "no weights, or none of the right shape, for classifier.bias, classifier.weight: not a trained Bert"
    )


def test_weights_of_another_shape_are_refused(folder):
    edit(folder / "config.json", intermediate_size=32)
    refusal(
        folder, "no weights, or none of the right shape, for bert.encoder.layer.0.intermediate.dense.bias", "2 more"
    )


def test_remote_code_is_not_run(folder):
    (folder / "theirs.py").write_text(f"open({str(folder / 'run')!r}, 'w')\nclass Config: ...\nclass Model: ...\n")
    auto = {"AutoConfig": "theirs.Config", "AutoModelForSequenceClassification": "theirs.Model"}
    edit(folder / "config.json", auto_map=auto, model_type="theirs")
    refusal(folder, "its code is not a part of transformers", "trust it, give --allow-code")
    assert not (folder / "run").exists()


OWN_CODE = """
from transformers import BertConfig, BertForSequenceClassification

class OwnConfig(BertConfig):
    model_type = "own"

class OwnForSequenceClassification(BertForSequenceClassification):
    config_class = OwnConfig

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = {factor} * output.logits
        return output
"""


def test_own_code_is_run_on_request_and_is_in_the_fingerprint(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    plain = load(folder)
    logits = plain.case(plain.encode(["quick brown"])).run(plain)
    auto = {"AutoConfig": "own.OwnConfig", "AutoModelForSequenceClassification": "own.OwnForSequenceClassification"}
    edit(folder / "config.json", auto_map=auto, model_type="own", architectures=["OwnForSequenceClassification"])
    found = set()
    for factor in (2, 3):
        (folder / "own.py").write_text(OWN_CODE.format(factor=factor))
        model = load(folder, allow_code=True)
        torch.testing.assert_close(model.case(model.encode(["quick brown"])).run(model), factor * logits)
        found.add(fingerprint(model))
    assert len(found) == 2
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        monkeypatch.delitem(sys.modules, name)


def test_own_code_is_not_replaced_by_a_model_of_transformers_in_silence(folder):
    """Its configuration is BERT's, so that transformers would load its own BERT in its place."""
    (folder / "own.py").write_text(f"open({str(folder / 'run')!r}, 'w')\n" + OWN_CODE.format(factor=2))
    auto = {"AutoModelForSequenceClassification": "own.OwnForSequenceClassification"}
    edit(folder / "config.json", auto_map=auto)
    assert isinstance(load(folder), TextClassifier), "the class that it was saved as is part of transformers"
    edit(folder / "config.json", architectures=["OwnForSequenceClassification"])
    refusal(folder, "its code is not a part of transformers", "trust it, give --allow-code")
    assert not (folder / "run").exists()


def test_a_tokenizer_of_its_own_code_is_not_replaced_in_silence(folder):
    (folder / "own.py").write_text(f"open({str(folder / 'run')!r}, 'w')\n")
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.OwnTokenizer", None]})
    refusal(folder, "its code is not a part of transformers", "trust it, give --allow-code")
    assert not (folder / "run").exists()


def test_the_experts_of_a_mixture_run_by_operations_that_have_rules(tmp_path):
    """transformers' own choice is a grouped matrix product, which has no rule."""
    sizes = {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
    config = transformers.Qwen3MoeConfig(**SMALL, **sizes, head_dim=4, max_position_embeddings=32, **TOKENS)
    transformers.Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    tokenizer(special=False).save_pretrained(tmp_path)
    text_model = load(tmp_path)
    case = text_model.case(text_model.encode(TEXTS))
    assert AttnLRP().attribute(text_model, case).isfinite().all()
    text_model.model.set_experts_implementation("grouped_mm")
    with pytest.raises(Unsupported, match=r"grouped_mm in .*Experts\): no rule .*experts_implementation='eager'"):
        AttnLRP().attribute(text_model, case)


@pytest.mark.parametrize(("settings", "method"), [({"quant_method": "gptq", "bits": 4}, "gptq"), ({}, "unknown")])
def test_quantised_weights_are_refused(folder, settings, method):
    edit(folder / "config.json", quantization_config=settings)
    refusal(folder, "its weights are quantised", method, "give the model that it was made from")


def test_a_model_whose_output_depends_on_padding_is_refused(folder, monkeypatch):
    forward = transformers.BertForSequenceClassification.forward

    def without_mask(self, *args, attention_mask=None, **kwargs):
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(transformers.BertForSequenceClassification, "forward", without_mask)
    refusal(folder, "padding changes its output by", "its maps depend on the batch")


def test_a_model_without_inputs_embeds_is_refused(tmp_path):
    sizes = {
        f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads", "ffn_dim")
    }
    config = transformers.BartConfig(d_model=16, vocab_size=16, max_position_embeddings=32, **sizes, **TOKENS)
    transformers.BartForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer(special=True).save_pretrained(tmp_path)
    refusal(tmp_path, "cannot be read at its word embeddings: BartForSequenceClassification does not look up")


def test_the_tokenizer_of_another_model_is_refused_at_an_unknown_id(tmp_path):
    config = transformers.BertConfig(**{**SMALL, "vocab_size": 8}, intermediate_size=32, **TOKENS)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer(special=True).save_pretrained(tmp_path)
    text_model = load(tmp_path)
    assert len(text_model.encode(["quick brown"])[0]) == 4
    with pytest.raises(ModelError, match=r"gives id 9, but the model embeds only 8 tokens: use the model's own"):
        text_model.encode(["quick brown fox jumps"])


# --- lengths and tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [-1, 0, 2, 33])
def test_a_maximal_length_out_of_range_is_refused(folder, length):
    with pytest.raises(ModelError, match=f"max length {length} is out of range: Bert.* takes 3 to 32 tokens"):
        load(folder, max_length=length)


def test_word_embeddings_are_not_taken_for_position_embeddings_of_the_same_number(folder):
    """BERT's word embeddings have a padding index, and its position embeddings have none."""
    config = transformers.BertConfig(**SMALL, intermediate_size=32, max_position_embeddings=16, **TOKENS)
    assert config.vocab_size == 16
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    assert load(folder).max_length == 16


def test_the_limit_of_positions_that_mpt_has_counts_as_well(tmp_path):
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 1, "vocab_size": 16, "max_seq_len": 24}
    transformers.MptForCausalLM(transformers.MptConfig(**sizes)).save_pretrained(tmp_path)
    tokenizer(special=False).save_pretrained(tmp_path)
    assert load(tmp_path).max_length == 24


def test_the_shortest_length_leaves_one_word(folder):
    examples = load(folder, max_length=3).encode(TEXTS)
    assert [len(example) for example in examples] == [3, 3, 3]
    assert all(example.truncated for example in examples)
    assert [example.names for example in examples] == [("[CLS]", word, "[SEP]") for word in ("a", "the", "the")]
    assert all(example.special_tokens_mask.tolist() == [True, False, True] for example in examples)


def test_a_maximal_length_is_refused_for_images(tmp_path):
    with pytest.raises(ModelError, match=r"max length 4 is out of place: ViT.* takes images, not texts"):
        load(save("vit", tmp_path), max_length=4)


def test_replacements_are_the_special_tokens_that_the_model_has(tmp_path):
    with_special_tokens = load(save("bert", tmp_path / "bert"))
    table = with_special_tokens.model.get_input_embeddings().weight
    replacements = with_special_tokens.replacements()
    assert set(replacements) == {"zero", "mean", "mask", "pad"}
    assert torch.equal(replacements["pad"], table[1])
    assert torch.equal(replacements["mask"], table[4])
    assert torch.equal(replacements["mean"], table.mean(0))
    without = load(save("gpt2", tmp_path / "gpt2"))
    assert isinstance(without, NextTokenModel)
    assert set(without.replacements()) == {"zero", "mean"}


def test_embeddings_include_the_scale_of_the_models_own_module(tmp_path):
    """Gemma 3 multiplies its word embeddings by the root of their width inside the embedding module."""
    config = transformers.Gemma3TextConfig(
        **SMALL, num_key_value_heads=2, head_dim=4, intermediate_size=24, max_position_embeddings=32, **TOKENS
    )
    transformers.Gemma3ForCausalLM(config).save_pretrained(tmp_path)
    tokenizer(special=True).save_pretrained(tmp_path)
    text_model = load(tmp_path)
    table = 4 * text_model.model.get_input_embeddings().weight
    torch.testing.assert_close(text_model.case(text_model.encode(["dog"])).inputs[0, 1], table[WORDS.index("dog")])
    torch.testing.assert_close(text_model.replacements()["mask"], table[WORDS.index("[MASK]")])
    torch.testing.assert_close(text_model.replacements()["mean"], table.mean(0))


def test_a_text_without_tokens_makes_no_case(tmp_path):
    text_model = load(save("gpt2", tmp_path))
    (example,) = text_model.encode([""])
    assert len(example) == 0
    for examples in ([], [example]):
        with pytest.raises(ValueError, match="at least one"):
            text_model.case(examples)


# --- images ----------------------------------------------------------------------------------------------------------

UNSUPPORTED = {
    "resample": ({"resample": 1}, "resample must be one of {0: 'nearest'"),
    "rescale": ({"do_rescale": False}, "rescale_factor must be 1/255"),
    "factor": ({"rescale_factor": 1 / 127.5}, "rescale_factor must be 1/255"),
    "crop_pct": ({"crop_pct": 0.875}, "crop_pct must be absent"),
    "no size": ({"size": None}, "size must be one number, or height and width, got None"),
    "mean": ({"image_mean": [0.5, 0.5, 0.5]}, "image_mean must be a list of 1 numbers, one a channel"),
    "std": ({"image_std": 0.5}, "image_std must be a list"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_an_unsupported_preparation_of_images_is_refused(tmp_path, case):
    changes, message = UNSUPPORTED[case]
    edit(save("vit", tmp_path) / "preprocessor_config.json", **changes)
    refusal(tmp_path, message)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("patch_size", 3, r"the image_size \(8, 8\) is not a multiple of the patch_size \(3, 3\)"),
        ("patch_size", None, "ViTForImageClassification: patch_size must be one number"),
        ("image_size", "large", "ViTForImageClassification: image_size must be one number"),
    ],
)
def test_an_image_size_that_is_not_a_multiple_of_the_patch_size_is_refused(name, value, message):
    model = ARCHITECTURES["vit"]()
    vars(model.config)[name] = value
    with pytest.raises(ModelError, match=message):
        ImageClassifier(model, Preparation(None, None, "bilinear", (0.3,), (0.4,)))
