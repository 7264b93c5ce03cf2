"""Chats: prompts by the tokenizer's own template, whose tokens are special, and sums by role."""

import json
import re
from pathlib import Path

import pytest
import torch
from tokenizers import processors
from transformers import AddedToken

from faithcheck import explanation
from faithcheck.cli.main import main
from faithcheck.explainers import LeaveOneOut
from faithcheck.explainers.loo.removal import AttentionMask
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.loading import load
from faithcheck.models.pretrained.text_model import NextTokenModel
from faithcheck.reports.documents.document import load as load_document
from faithcheck.reports.documents.explanation import Explanation
from faithcheck.reports.pages import explanation as pages
from faithcheck.tests.helpers import small_models

SMOLLM2 = Path("../shared/models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf")
TURNS = (
    "{% for m in messages %}[MASK] {{ m['role'] }} {{ m['content'] | trim }} [SEP]\n{% endfor %}"
    "{% if add_generation_prompt %}[MASK] assistant\n{% endif %}"
)
MESSAGES = [
    {"role": "system", "content": "a lazy dog"},
    {"role": "user", "content": " fox jumps\nover "},
    {"role": "assistant", "content": "the dog"},
    {"role": "user", "content": "and runs"},
]


@pytest.fixture
def folder(tmp_path):
    """A decoder whose template writes turns by words of its vocabulary and by special tokens."""
    place = small_models.save("llama", tmp_path)
    made = small_models.tokenizer(special=False)
    made.add_special_tokens({"mask_token": "[MASK]", "sep_token": "[SEP]", "bos_token": "[CLS]"})
    made.chat_template = TURNS
    made.save_pretrained(place)
    return place


@pytest.fixture
def model(folder):
    return load(folder)


def explained(model, messages=MESSAGES, by="token", target="dog"):
    return explanation.explain(model, messages, [LeaveOneOut(AttentionMask())], target, by=by)


def test_the_tokens_of_the_template_are_special_and_the_others_have_the_role_of_their_message(model):
    (example,) = model.encode([MESSAGES])
    text = model.tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert example.features.tolist() == model.tokenizer(text, add_special_tokens=False)["input_ids"]
    tokens = list(zip(example.names, example.roles, example.special_tokens_mask.tolist(), strict=True))
    said = [(name, role) for name, role, special in tokens if not special]
    assert said == [
        *((word, "system") for word in "a lazy dog".split()),
        *((word, "user") for word in "fox jumps over".split()),
        *((word, "assistant") for word in "the dog".split()),
        *((word, "user") for word in "and runs".split()),
    ]
    assert {role for _, role, special in tokens if special} == {"template"}
    assert sum(example.special_tokens_mask) == 4 * 3 + 2


def test_a_word_that_the_template_writes_too_has_the_role_of_its_message(model):
    """The user says "[SEP]", too, which is special by its id, wherever it stands."""
    model.tokenizer.chat_template = TURNS.replace("{{ m['role'] }}", "dog")
    (example,) = model.encode([[{"role": "user", "content": "dog [SEP] dog"}]])
    assert example.roles == (*("template",) * 2, *("user",) * 3, *("template",) * 3)
    assert example.special_tokens_mask.tolist() == [True, True, False, True, False, True, True, True]


def test_sums_by_role_stand_on_the_pages_and_loo_by_role_removes_all_its_messages(model):
    document = explained(model)
    (loo,) = document.maps
    _, roles, *_ = pages.tables(document)
    sums = {}
    for feature, value in zip(document.features, loo.values, strict=True):
        sums[feature.role] = sums.get(feature.role, 0) + value
    assert {role: float(total) for role, total in roles.rows} == pytest.approx(sums, rel=1e-3)
    assert list(sums) == ["template", "system", "user", "assistant"]
    assert "Sums by role" in pages.to_html(document)
    printed = pages.to_terminal(document, 100)
    assert "assistant" in printed
    assert "what the tokenizer's chat template writes" in pages.to_markdown(document)

    by_role, case = explained(model, by="role"), model.case(model.encode([MESSAGES]))
    is_users = torch.tensor([[feature.role == "user" for feature in document.features]])
    without = {**case.forward_arguments, "attention_mask": (~is_users).long()}
    with torch.no_grad():
        number = small_models.WORDS.index("dog")
        change = float((case.run(model) - model(case.inputs, **without))[0, number])
    (user,) = (word for word in pages.rows(by_role)[0].words if word.role == "user")
    assert user.text == "fox jumps over and runs"
    assert user.value == pytest.approx(change, abs=1e-5)


def test_parts_end_where_messages_end(model):
    model.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    messages = [{"role": "user", "content": "a dog"}, {"role": "system", "content": "the fox runs"}]
    document = explained(model, messages, by="sentence", target="0")
    assert [word.text for word in pages.rows(document)[0].words] == ["a dog", "the fox", "runs"]


def test_an_explained_answer_and_a_reply_that_goes_on(model):
    document = explained(model, target="fox runs")
    assert [(one.text, one.special) for one in document.features if one.role == "answer"] == [
        ("fox", True),
        ("runs", True),
    ]
    (example,) = model.encode([MESSAGES[:3]])
    assert example.names[-2:] == ("the", "dog"), "the assistant goes on"


@pytest.mark.parametrize(
    ("template", "note"),
    [
        ("[CLS] " + TURNS, r"The chat template writes \[CLS\]: the one that the tokenizer would add is left out"),
        ("[CLS] [CLS] " + TURNS, r"The text begins with \[CLS\] twice"),
        (TURNS, None),
    ],
)
def test_a_beginning_that_would_be_there_twice_is_said(model, template, note):
    model.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 2)]
    )
    model.tokenizer.chat_template = template
    document = explained(model)
    notes = [one for one in document.notes if "[CLS]" in one]
    assert len(notes) == (note is not None)
    assert all(re.match(note, one) for one in notes)
    assert sum(one.text == "[CLS]" for one in document.features) == template.count("[CLS]")


def test_the_markers_of_a_chat_are_special_though_they_are_not_marked(model):
    tokens = [AddedToken("<turn>", special=False), AddedToken("<b>", special=False), AddedToken("user", special=False)]
    model.tokenizer.add_tokens(tokens)
    model.tokenizer.chat_template = "<turn>user"
    model.model.resize_token_embeddings(len(model.tokenizer), mean_resizing=False)
    (example,) = NextTokenModel(model.model, model.tokenizer).encode(["<turn> user <b> a dog"])
    assert example.special_tokens_mask.tolist() == [True, False, False, False, True]


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (None, MESSAGES, "the tokenizer has no chat template"),
        (TURNS, [], "a chat is a list of messages"),
        (TURNS, [{"role": "user"}], "a chat is a list of messages"),
        ("{{ raise_exception('no system please') }}", MESSAGES, "refuses these messages: no system please"),
        ("{{ messages[1]['content'] }}", MESSAGES, "leaves out a message, or repeats it: system, assistant, user"),
        ("{% for m in messages %}{{ m['content'] | upper }}{% endfor %}", MESSAGES, "changes what the messages say"),
    ],
)
def test_chats_that_have_no_prompt_are_refused(model, template, messages, message):
    model.tokenizer.chat_template = template
    with pytest.raises(ModelError, match=message):
        explained(model, messages)


def test_the_command_takes_a_text_or_messages(folder, tmp_path, capsys):
    file = tmp_path / "map.json"
    common = ["--model", str(folder), "--target", "dog", "--explainer", "loo", "--chat"]
    assert main(["explain", json.dumps(MESSAGES), *common, "--by", "role", "--json", str(file)]) == 0
    assert len(load_document(file, Explanation).features) == 4 * 3 + 2 + 10
    assert main(["explain", "a lazy fox", *common, "--json", str(file)]) == 0
    assert [one.text for one in load_document(file, Explanation).features if one.role == "user"] == ["a", "lazy", "fox"]
    capsys.readouterr()
    assert main(["explain", "a lazy fox", *common[:-1], "--by", "role"]) == 2
    assert "--by=role: only a chat has a role: give --chat" in capsys.readouterr().err
    small_models.tokenizer(special=False).save_pretrained(folder)
    (folder / "chat_template.jinja").unlink()
    assert main(["explain", "a lazy fox", *common]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(not SMOLLM2.exists(), reason="the model is not in ../shared")
def test_smollm2_reads_a_chat_as_its_tokenizer_writes_it():
    """Its template adds a system message of its own, which no role has."""
    pytest.importorskip("gguf")
    model, question = load(SMOLLM2), [{"role": "user", "content": "What is the capital of France?"}]
    (example,) = model.encode([question])
    expected = model.tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
    assert example.features.tolist() == expected
    of_user = [name for name, role in zip(example.names, example.roles, strict=True) if role == "user"]
    assert of_user == "What is the capital of France ?".split()
    assert example.special_tokens_mask.tolist() == [role == "template" for role in example.roles]
