"""Pairs of texts, as of NLI: they are read as the tokenizer itself encodes a pair, in every way that takes texts."""

import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from faithcheck.alignment.document import digest_of
from faithcheck.cli.main import main
from faithcheck.explainers import GradientTimesInput, LeaveOneOut
from faithcheck.explainers.loo.removal import Deletion, make_removal
from faithcheck.models.architectures.architecture import trained
from faithcheck.models.data import DataError
from faithcheck.models.data.texts import load_texts
from faithcheck.models.pretrained.loading import ModelError, load

PAIRS = [("a man sleeps. He snores", "nobody is awake"), ("a dog", "a cat is awake. a man sleeps")]
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a man sleeps . He snores nobody is awake dog cat".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BERT with large type embeddings and NLI's outputs."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=["input_ids", "token_type_ids", "attention_mask"], **special
    )
    names = dict(enumerate(("entailment", "neutral", "contradiction")))
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
        initializer_range=0.5,
        id2label=names,
        label2id={name: i for i, name in names.items()},
    )
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("nli")
    BertForSequenceClassification(config).save_pretrained(path)
    fast.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder):
    return load(folder, dtype=torch.float64)


def plain_logits(model, encoded):
    """The unmodified model on what its tokenizer makes of texts."""
    with torch.no_grad():
        return model.model(**{name: torch.as_tensor(value) for name, value in encoded.items()}).logits


def test_the_outputs_are_those_of_the_tokenizers_own_pairs(model):
    case = model.case(model.encode(PAIRS))
    own = model.tokenizer([a for a, _ in PAIRS], [b for _, b in PAIRS], padding=True, return_tensors="pt")
    torch.testing.assert_close(case.run(model), plain_logits(model, own))
    assert torch.equal(case.forward_arguments["token_type_ids"], own["token_type_ids"])
    alone = {name: value for name, value in own.items() if name != "token_type_ids"}
    assert (case.run(model) - plain_logits(model, alone)).abs().max() > 0.1, "the types matter to this model"


def test_a_token_is_shown_at_its_place_in_its_own_text(model):
    (example,) = model.encode(PAIRS[:1])
    assert example.names == (
        *("[CLS]", "a", "man", "sleeps", ".", "He", "snores", "[SEP]", "nobody", "is", "awake", "[SEP]"),
    )
    assert example.token_types.tolist() == [0] * 8 + [1] * 4
    sentences = example.segments["sentence"].tolist()
    assert sentences[1:5] == [sentences[1]] * 4
    assert len({sentences[1], sentences[5], sentences[8]}) == 3, "no sentence runs over both texts"
    assert sentences[8:11] == [sentences[8]] * 3


@pytest.mark.parametrize("level", [None, "word", "sentence", "paragraph"])
@pytest.mark.parametrize("removal", ["attention_mask", "delete", "mask", "zero"])
def test_loo_of_a_pair_is_loo_by_the_tokenizers_encoding(model, removal, level):
    case = model.case(model.encode(PAIRS))
    found = LeaveOneOut(by=level or "token", removal=make_removal(removal)).attribute(model, case)
    for row, (pair, target) in enumerate(zip(PAIRS, case.target, strict=True)):
        own = model.tokenizer(*pair, return_tensors="pt")
        output = plain_logits(model, own)[0, target]
        (example,) = model.encode([pair])
        parts = range(len(example)) if level is None else example.segments[level].tolist()
        for part in set(parts):
            removed = torch.tensor([one == part for one in parts])
            less = {name: value.clone() for name, value in own.items()}
            if removal == "delete":
                less = {name: value[:, ~removed] for name, value in less.items()}
            elif removal == "attention_mask":
                less["attention_mask"][0, removed] = 0
            elif removal == "mask":
                less["input_ids"][0, removed] = model.tokenizer.mask_token_id
            else:
                less["inputs_embeds"] = model.embed(less.pop("input_ids")).masked_fill(removed.unsqueeze(1), 0)
            change = output - plain_logits(model, less)[0, target]
            torch.testing.assert_close(found[row, : len(example)][removed].sum(), change)


def test_a_shorter_second_text_is_the_tokenizers_own_pair(model):
    case = model.case(model.encode([("a dog", "a cat is awake")]))
    removed = torch.tensor([[name == "cat" for name in model.encode([("a dog", "a cat is awake")])[0].names]])
    shorter = model.case(model.encode([("a dog", "a is awake")]))
    torch.testing.assert_close(Deletion().remove(case, removed).run(model), shorter.run(model))


def test_a_longer_pair_is_cut_as_the_tokenizer_cuts_it(folder):
    short = load(folder, max_length=9)
    (example,) = short.encode(PAIRS[:1])
    own = short.tokenizer(*PAIRS[0], truncation=True, max_length=9)
    assert example.truncated
    assert example.features.tolist() == own["input_ids"]
    assert example.token_types.tolist() == own["token_type_ids"]


def test_examples_of_other_token_types_have_another_digest(model):
    one, other = (model.encode([pair]) for pair in (("a dog [SEP] a", "cat"), ("a dog", "a [SEP] cat")))
    assert one[0].features.tolist() == other[0].features.tolist()
    assert one.digest != other.digest


def test_one_text_for_a_model_of_pairs_is_refused(model):
    with pytest.raises(ModelError, match=r"'a dog' is one text, and the outputs entailment, neutral.*--text-pair"):
        model.encode(["a dog"])


ROWS = {
    "pairs.tsv": "premise\thypothesis\tlabel\na dog\ta cat\t1\na man\the snores\t0\n",
    "pairs.csv": 'label,question,sentence\n1,a dog,a cat\n0,a man,"he snores"\n',
    "pairs.jsonl": "".join(
        json.dumps({"sentence1": a, "sentence2": b, "label": i}) + "\n"
        for a, b, i in (("a dog", "a cat", 1), ("a man", "he snores", 0))
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_two_columns_of_a_file_are_pairs(name, tmp_path):
    (tmp_path / name).write_text(ROWS[name])
    texts = load_texts(str(tmp_path / name))
    assert texts.texts[:] == [("a dog", "a cat"), ("a man", "he snores")]
    assert list(texts.labels) == [1, 0]
    assert digest_of(texts, 0) != digest_of(texts, 1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "a", "text_pair": "b"}\n{"text": "c"}\n', "text 2 is one text where others are pairs"),
        ("a.jsonl", '{"premise": "a", "hypothesis": ""}\n', "line 1: one text of the pair is empty"),
        ("a.jsonl", '{"premise": "a", "hypothesis": null}\n', "line 1: expected"),
        ("a.tsv", "premise\thypothesis\na\t \n", "line 2: one text of the pair is empty"),
    ],
)
def test_a_row_without_its_second_text_is_refused(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        load_texts(str(tmp_path / name))


def test_explain_and_align_take_pairs(folder, tmp_path, capsys):
    written, page = tmp_path / "map.json", tmp_path / "map.html"
    options = ["--model", str(folder), "--explainer", "gradient_x_input"]
    files = ["--json", str(written), "--html", str(page)]
    assert main(["explain", PAIRS[0][0], "--text-pair", PAIRS[0][1], *options, *files]) == 0
    document = json.loads(written.read_text())
    assert (document["text"], document["text_pair"]) == PAIRS[0]
    model = load(folder)
    case = model.case(model.encode(PAIRS[:1]))
    expected = GradientTimesInput().attribute(model, case)[0]
    values = next(one["values"] for one in document["maps"] if one["explainer"] == "gradient_x_input")
    torch.testing.assert_close(torch.tensor(values), expected, rtol=1e-4, atol=1e-6)
    assert "nobody" in page.read_text()
    assert main(["explain", "a dog", *options]) == 2
    assert "--text-pair" in capsys.readouterr().err
    data = tmp_path / "pairs.tsv"
    data.write_text("premise\thypothesis\n" + "".join(f"{a}\t{b}\n" for a, b in PAIRS * 3))
    aligned = tmp_path / "align.json"
    cache = ["--cache", str(tmp_path / "cache")]
    assert main(["align", *options, "--data", str(data), "--json", str(aligned), *cache]) in (0, 1)
    assert json.loads(aligned.read_text())["explainers"]


def test_a_checkpoint_of_pairs_is_explained_on_two_sentences_of_ours(folder):
    case = trained("nli", str(folder)).case(0, torch.float64, torch.device("cpu"))
    assert [names.count("[SEP]") for names in case.feature_names] == [2, 2, 2]
