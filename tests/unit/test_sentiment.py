"""The project's own sentiment model: its size, architecture and accuracy, and the script that trains it."""

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertForSequenceClassification

from faithcheck.models.data.texts import load_texts
from faithcheck.models.pretrained import SENTIMENT
from faithcheck.tests.helpers.sentiment_data import labelled, write_training_data
from faithcheck.tests.helpers.training import sentiment

MAXIMAL_BYTES = 4_000_000
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def model():
    return AutoModelForSequenceClassification.from_pretrained(SENTIMENT, dtype=torch.float32, use_safetensors=True)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(SENTIMENT)


@pytest.fixture(scope="module")
def data():
    """The folder of shared data: $FAITHCHECK_DATA, or shared/data beside the clone."""
    folder = Path(os.environ.get("FAITHCHECK_DATA") or Path(__file__).parents[3] / "shared" / "data")
    if not (folder / "sst2" / "dev.tsv").is_file():
        pytest.skip(f"no SST-2 in {folder}: set FAITHCHECK_DATA to a folder that holds sst2/dev.tsv")
    return folder


def test_the_folder_is_small_and_holds_no_code():
    files = [file for file in SENTIMENT.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= MAXIMAL_BYTES
    assert {file.suffix for file in files} <= {".json", ".safetensors", ".tsv", ".md"}


def test_weights_are_half_precision():
    with safe_open(SENTIMENT / "model.safetensors", framework="pt") as archive:
        assert {archive.get_tensor(name).dtype for name in archive.keys()} == {torch.float16}  # noqa: SIM118


def test_the_model_is_an_unmodified_bert_of_twelve_layers(model):
    assert type(model) is BertForSequenceClassification
    assert len(model.bert.encoder.layer) == model.config.num_hidden_layers == 12
    assert model.config.max_position_embeddings == 512
    assert model.config.id2label == {0: "negative", 1: "positive"}
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert all(weight.isfinite().all() for weight in model.parameters())


def test_tokenizer_and_model_fit(model, tokenizer):
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.convert_tokens_to_ids(SPECIAL) == list(range(5))
    assert tokenizer.pad_token_id == model.config.pad_token_id == 0
    assert tokenizer.model_max_length == model.config.max_position_embeddings
    ids = tokenizer("A FILM without supercalifragilistic Ideas!")["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True).replace(" ", "") == "afilmwithoutsupercalifragilisticideas!"


def test_own_sentences_are_mostly_classified_as_labelled(model, tokenizer):
    """The bound is the accuracy on SST-2 (at least 0.78) minus three standard errors, 3·√(0.78·0.22/72) = 0.15."""
    assert sentiment.accuracy(model, tokenizer, labelled(load_texts("own"))) >= 0.63


def test_accuracy_on_sst2_dev(model, tokenizer, data):
    dev = load_texts(str(data / "sst2"))
    assert len(dev.texts) == 872
    assert sentiment.accuracy(model, tokenizer, labelled(dev)) >= 0.78


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step:UserWarning")
def test_the_training_script_gives_the_same_files_twice(tmp_path, monkeypatch, capsys):
    """Trained on a few sentences, with the shipped model as the teacher: seed and vocabulary determine the weights."""
    write_training_data(tmp_path / "data", labelled(load_texts("own")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sentiment, "VOCABULARY", 300)
    monkeypatch.setattr(sentiment, "EPOCHS", 2)
    options = ["train", "--data", str(tmp_path / "data"), "--teacher", str(SENTIMENT), "--seed", "3"]
    for name in ("a", "b"):
        monkeypatch.setattr(sys, "argv", [*options, "--out", str(tmp_path / name)])
        sentiment.main()
        if name == "a":
            shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("model*", "config*"))
    assert "seed 3: accuracy " in capsys.readouterr().out
    first, second = ({f.name: f.read_bytes() for f in (tmp_path / name).iterdir()} for name in ("a", "b"))
    assert set(first) == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert first == second


def test_sentences_that_overlap_with_unseen_sentences_are_not_trained_on(tmp_path):
    own = labelled(load_texts("own"))
    dev = own[-1][0].lower()
    write_training_data(tmp_path, own, [(f"a first sentence . {dev}", 1), (dev[:40], 0), ("an unrelated remark", 1)])
    corpus = sentiment.read_corpus(tmp_path, seed=0)
    assert corpus.sentences[-1] == ("an unrelated remark", 1)
    assert len(corpus.sentences) == 36 + 1  # of 40 sentences 4 are held out
    assert len(corpus.spans) == 2 * len(corpus.sentences)
    for row, (text, _) in enumerate(corpus.sentences):
        assert all(span in text for span in corpus.spans[2 * row : 2 * row + 2])
    assert not {text for text, _ in corpus.held_out} & {text for text, _ in corpus.sentences}
