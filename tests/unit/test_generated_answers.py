"""Each text's own answer, which a decoder generates: against transformers, stored, resumed, counted and recorded."""

import importlib
import json
from dataclasses import replace

import pytest
import torch
from msgspec import to_builtins
from transformers import AutoModelForCausalLM

from faithcheck.alignment.batch import LoadedModel, measure_batch
from faithcheck.alignment.batches import AlignmentError, batches, longest
from faithcheck.alignment.measurement import measure
from faithcheck.alignment.preparation import prepare
from faithcheck.alignment.remote_batch import RemoteBatch, RemoteModel
from faithcheck.alignment.settings import AlignRequest, specs_of, table_2
from faithcheck.cli.main import main
from faithcheck.models.pretrained.answer_model import LONGEST_ANSWER, AnswerModel
from faithcheck.models.targets import NO_ANSWER
from faithcheck.options import OptionError
from faithcheck.options.explainers import choose_explainers
from faithcheck.reports.pages import alignment as pages
from faithcheck.request import Settings
from faithcheck.tests.helpers import small_models

TEXTS = ["the quick brown fox", "a lazy dog", "", "dog", "the fox jumps over the dog and runs", "fox runs"]
MEASURED = [0, 1, 4, 5]


def ending_at(where, token):
    """The small GPT-2 with another token that ends a text, or none."""
    small_models.save("gpt2", where)
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((where / name).read_text())
        (where / name).write_text(json.dumps({**settings, "eos_token_id": token}))
    return where


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return ending_at(tmp_path_factory.mktemp("gpt2"), None)


def asked(folder, tmp_path, cache="cache", **options):
    (tmp_path / "texts.tsv").write_text("".join(f"{text}\t0\n" for text in TEXTS))
    chosen = {"settings": Settings(), "max_tokens": 150, "explainer": ("gradient_x_input",), **options}
    return AlignRequest(model=str(folder), data=str(tmp_path / "texts.tsv"), cache=tmp_path / cache, **chosen)


@pytest.mark.parametrize("name", small_models.DECODERS)
def test_the_answers_of_a_batch_are_those_of_transformers(name, tmp_path):
    """Both end at the most likely token of the third step after the first text."""
    small_models.save(name, tmp_path)
    decoder = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    model = AnswerModel(decoder, small_models.tokenizer(special=False), None).eval()
    prompts = [model.encode(TEXTS)[i] for i in MEASURED]
    (first, *_) = model.answers(prompts)
    decoder.config.eos_token_id = decoder.generation_config.eos_token_id = first[2]
    of_transformers = []
    for prompt in prompts:
        ids = prompt.features[None]
        said = decoder.generate(ids, max_new_tokens=LONGEST_ANSWER, do_sample=False, pad_token_id=0)[0, len(prompt) :]
        kept = said.tolist()[: -1 if said[-1] == first[2] else None]
        of_transformers.append(tuple(kept))
    assert model.answers(prompts) == of_transformers
    assert len(of_transformers[0]) <= 2


@torch.no_grad()
def test_each_example_has_its_own_answer_behind_its_text(folder, tmp_path):
    prepared = prepare(asked(folder, tmp_path))
    model, examples = prepared.model, prepared.examples
    chosen = [examples[i] for i in MEASURED]
    assert len({example.answer for example in chosen}) > 1
    case = model.case(chosen)
    for row, example in zip(case.forward_arguments["answer"].tolist(), chosen, strict=True):
        count = len(example.answer)
        assert [token for token in row if token != NO_ANSWER] == [*example.answer]
        assert example.features[-count:].tolist() == [*example.answer] == row[len(example) - count : len(example)]
        assert example.special_tokens_mask[-count - 1 :].all(), "so is the last token of the text"
    (value, *_) = case.run(model)[:, 0].tolist()
    logits = model.model(input_ids=chosen[0].features[None]).logits[0].double().log_softmax(1)
    count = len(chosen[0].answer)
    expected = logits[-count - 1 : -1].gather(1, torch.tensor(chosen[0].answer)[:, None]).sum()
    assert value == pytest.approx(float(expected), rel=1e-9)


def test_they_are_recorded_and_a_text_without_one_is_not_measured(folder, tmp_path):
    document = measure(asked(folder, tmp_path))
    assert document.examples.index == MEASURED
    tokens = [len(answer.split()) for answer in document.examples.answers]
    assert tokens == [min(LONGEST_ANSWER, 32 - len(TEXTS[i].split())) for i in MEASURED]
    assert "the answer that the model gives to each text, 20 tokens at most" in document.model.explained
    assert measure(asked(folder, tmp_path, target="fox")).examples.answers is None


def test_the_logit_of_the_next_token_can_be_explained_instead(folder, tmp_path):
    document = measure(asked(folder, tmp_path, next_token=True))
    assert document.model.explained.startswith("the logit of the most likely next token;")
    assert document.examples.answers is None
    with pytest.raises(OptionError, match=r"--next-token: .*bert is no decoder: leave it out"):
        measure(asked(small_models.save("bert", tmp_path / "bert"), tmp_path, next_token=True))


def test_parquet_has_them(folder, tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet needs the optional library pyarrow")
    document = measure(asked(folder, tmp_path, parquet=tmp_path / "rows"))
    (file,) = document.parquet.files["loo"]
    rows = importlib.import_module("pyarrow.parquet").read_table(tmp_path / "rows" / file).to_pylist()
    found = {row["example"]: row["answer"] for row in rows}
    assert [found[i] for i in MEASURED] == document.examples.answers


def test_a_run_that_was_stopped_generates_no_answer_twice(folder, tmp_path, monkeypatch):
    options = {"max_tokens": 60}
    whole = measure(asked(folder, tmp_path, cache="whole", **options))
    generate, begun = AnswerModel.answers, []

    def stopped(model, prompts):
        begun.append([len(prompt) for prompt in prompts])
        if len(begun) == 2:
            raise KeyboardInterrupt
        return generate(model, prompts)

    monkeypatch.setattr(AnswerModel, "answers", stopped)
    with pytest.raises(KeyboardInterrupt):
        measure(asked(folder, tmp_path, **options))
    assert measure(asked(folder, tmp_path, **options)) == whole
    assert len(begun) == 1 + len(batches(prepare(asked(folder, tmp_path)).model.encode(TEXTS), **options))
    assert begun[1] == begun[2], "what was generated before is read from the store"


def test_an_empty_answer_is_counted_with_the_way_out(folder, tmp_path):
    examples = prepare(asked(folder, tmp_path)).examples
    said = {i: examples[i].answer[0] for i in MEASURED}
    token = said[MEASURED[-1]]
    empty = [i for i in MEASURED if said[i] == token]
    document = measure(asked(ending_at(tmp_path / "ends", token), tmp_path))
    assert document.counts.unanswered == len(empty)
    assert document.counts.empty == 2, "the empty text, and that of one token, the last one"
    assert document.examples.index == [i for i in MEASURED if i not in empty]
    sentences = " ".join(pages.to_markdown(document).split())
    assert f"Left out because the model's answer is empty: {len(empty)}" in sentences
    assert "--target gives an answer" in sentences


@pytest.mark.parametrize(("next_token", "most"), [(False, 16), (True, 32)])
def test_a_prompt_that_is_too_long_is_left_out_and_counted_unless_the_user_cuts_it(folder, tmp_path, next_token, most):
    """Cut, it would be another prompt: what the model says next depends on the last tokens."""
    texts = tmp_path / "texts.tsv"
    request = asked(folder, tmp_path, next_token=next_token, max_tokens=4000)
    texts.write_text(texts.read_text() + "fox " * 33 + "\t0\n")
    document = measure(request)
    assert (document.counts.too_long, document.counts.truncated) == (1, 0)
    assert document.examples.index == MEASURED
    sentences = " ".join(pages.to_markdown(document).split())
    assert f"Left out, with more than the {most} tokens that a prompt may have: 1" in sentences
    cut = measure(replace(request, max_length=32))
    assert (cut.counts.too_long, cut.counts.truncated) == (0, 1)
    assert cut.examples.index == [*MEASURED, len(TEXTS)]
    texts.write_text("fox " * 33 + "\t0\n")
    with pytest.raises(AlignmentError, match=r"1 of them are longer than the model takes: cut them with --max-length"):
        measure(request)


def test_if_every_answer_is_empty_nothing_can_be_measured(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(AnswerModel, "answers", lambda model, prompts: [() for _ in prompts])
    request = asked(folder, tmp_path)
    with pytest.raises(AlignmentError, match=r"answer to 4 of them is empty: give one by --target"):
        measure(request)
    options = ["--model", request.model, "--data", request.data, "--cache", str(request.cache)]
    assert main(["align", *options]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "give one by --target" in line


def test_a_worker_that_generates_nothing_itself_gives_the_same_records(folder, tmp_path, monkeypatch):
    request = asked(folder, tmp_path)
    prepared = prepare(request)
    explainers = {one.name: one for one in choose_explainers(specs_of(request.explainer), table_2(prepared.setup))}
    batch = [prepared.examples[i] for i in batches(prepared.examples, request.max_tokens)[0]]
    here = LoadedModel(prepared.model, longest(prepared.examples))
    monkeypatch.setattr(AnswerModel, "answers", None)
    remote = RemoteModel(replace(request, cache=None), "cpu", prepared.setup, longest(prepared.examples))
    for name, explainer in explainers.items():
        alone = measure_batch(here, batch, explainer, prepared.setup, 0)
        job = RemoteBatch(remote, name, 0, batch)
        job.prepare()
        assert job.run() == to_builtins(alone)
        assert len(alone.examples) == len(batch)


def test_texts_leave_place_for_an_answer(folder, tmp_path):
    model = AnswerModel(AutoModelForCausalLM.from_pretrained(folder), small_models.tokenizer(special=False), None)
    assert model.max_length == 32 - 16
    (long,) = model.encode(["fox " * 40])
    assert (len(long), long.truncated) == (16, True)
    assert len(model.answers([long])[0]) == 16
