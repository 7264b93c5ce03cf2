"""``faithcheck explain``: the map, its colours, its page, and the options that are refused."""

import html
import io
import json
import re

import numpy as np
import pytest
import torch
from msgspec import structs
from rich.console import Console

from faithcheck import explanation
from faithcheck.alignment.settings import AlignmentSettings, specs_of, table_2
from faithcheck.cli import output
from faithcheck.cli.main import main
from faithcheck.explainers import AttnLRP, GradientTimesInput, IntegratedGradients, LeaveOneOut, Unsupported
from faithcheck.explainers.loo.removal import AttentionMask
from faithcheck.explainers.protocol import attribution_of
from faithcheck.explanation import ExplainError
from faithcheck.models.case import output_difference
from faithcheck.models.pretrained.answer_model import LONGEST_ANSWER, AnswerModel
from faithcheck.models.pretrained.folder import ModelError
from faithcheck.models.pretrained.loading import load
from faithcheck.models.pretrained.target_choice import name_of_output, with_chosen_output
from faithcheck.models.pretrained.text_model import NextTokenModel
from faithcheck.options.explainers import choose_explainers
from faithcheck.reports.documents.document import load as load_document
from faithcheck.reports.documents.document import save, to_json
from faithcheck.reports.documents.explanation import Explanation
from faithcheck.reports.documents.words import Feature
from faithcheck.reports.pages import colours
from faithcheck.reports.pages import explanation as pages
from faithcheck.tests.helpers import documents, small_models

TEXT = "the quick brown fox jumps"


@pytest.fixture(scope="module", params=["bert", "roberta", "gpt2", "llama"])
def model(request, tmp_path_factory):
    return load(small_models.save(request.param, tmp_path_factory.mktemp(request.param)))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return small_models.save("bert", tmp_path_factory.mktemp("bert"))


class FixedMap:
    """An explainer whose map is these numbers."""

    name = "fixed"

    def __init__(self, *values):
        self.values = values

    def attribute(self, model, case):
        return torch.tensor([self.values], dtype=case.inputs.dtype)


def viewed(model, *explainers, text=TEXT, target=None, contrast=None, by="token"):
    return explanation.explain(model, text, explainers, target, contrast, name="small", by=by)


def plain(document, width=100):
    return pages.to_terminal(document, width)


def coloured(document):
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="truecolor", highlight=False)
    for row in pages.rows(document):
        console.print(pages.coloured(row.words, row.signed))
    return console.file.getvalue()


def words_of(document, row=0):
    return pages.rows(document)[row].words


def test_the_document_holds_the_map_its_sum_and_the_change_of_the_output(model):
    explainer = LeaveOneOut(AttentionMask())
    case = model.case(model.encode([TEXT]))
    document = viewed(model, explainer, target=str(int(case.target)))
    expected = attribution_of(explainer, model, case)[0]
    (loo,) = document.maps
    assert loo.values == expected.tolist()
    assert loo.sum == pytest.approx(float(expected.sum()), abs=1e-6)
    assert loo.r == pytest.approx(1)
    assert document.change == pytest.approx(float(output_difference(model, case)))
    assert [feature.special for feature in document.features] == case.special_tokens_mask[0].tolist()
    (explained,) = (one for one in document.classes if one.explained)
    logits = case.run(model)[0].detach()
    assert explained.logit == pytest.approx(float(logits.max()))
    assert explained.probability == pytest.approx(float(logits.softmax(0).max()))
    assert document.decoder == isinstance(model, NextTokenModel)
    json.dumps(to_json(document), allow_nan=False)


def test_several_explainers_stand_beside_loo_with_their_correlation(bert):
    model, loo = load(bert), LeaveOneOut(AttentionMask())
    other = FixedMap(0, 3, 1, -2, 0.5, 1, 0)
    document = viewed(model, loo, AttnLRP(), other, FixedMap(0, 1, 1, 1, 1, 1, 0))
    values = document.maps[0].values
    assert [row.explainer for row in document.maps] == ["loo", "attnlrp", "fixed", "fixed"]
    assert document.maps[2].r == pytest.approx(np.corrcoef(values[1:-1], other.values[1:-1])[0, 1])
    assert document.maps[3].r == 0, "a constant map does not tell features apart"
    assert viewed(model, other).maps[0].r is None, "without LOO there is none"
    page, printed = pages.to_html(document), plain(document)
    r = f"{document.maps[1].r:.3f}".replace("-", "−")
    assert f'<th scope="row">attnlrp</th><td>{r}</td>' in page
    assert f"attnlrp  r {r}" in printed
    assert page.count('<span class="map">') == 4


def test_choose_explainers_puts_loo_first_and_takes_each_once():
    specs = specs_of(["attnlrp", "ig_mask", "loo", "attnlrp"])
    chosen = choose_explainers(specs, table_2(AlignmentSettings(AttentionMask())))
    assert [one.name for one in chosen] == ["loo", "attnlrp", "ig_mask"]


def test_target_chooses_the_explained_output_by_number_or_name(bert):
    model = load(bert)
    labels = {"bad": 0, "good": 1, "so-so": 2}
    model.model.config.id2label, model.model.config.label2id = {i: name for name, i in labels.items()}, labels
    logits = model.case(model.encode([TEXT])).run(model)[0].tolist()
    for target, number in {"0": 0, "1": 1, "bad": 0, "GOOD": 1}.items():
        view = viewed(model, LeaveOneOut(AttentionMask()), target=target)
        (one,) = (one for one in view.classes if one.explained)
        assert (one.number, one.logit) == (number, pytest.approx(logits[number]))
        assert view.explained == ("bad", "good")[number]
    zero, one = (viewed(model, LeaveOneOut(AttentionMask()), target=target) for target in "01")
    assert zero.maps != one.maps
    for target, message in {
        str(len(logits)): f"0 to {len(logits) - 1}",
        "goood": "did you mean good",
        "-1": "known: bad, good",
    }.items():
        with pytest.raises(ModelError, match=message):
            viewed(model, FixedMap(), target=target)


def test_a_decoder_lists_the_most_likely_tokens_and_the_explained_one(tmp_path):
    model = load(small_models.save("gpt2", tmp_path))
    logits = model.case(model.encode([TEXT])).run(model)[0]
    least = int(logits.argmin())
    word = small_models.WORDS[least]
    view = viewed(model, LeaveOneOut(AttentionMask()), target=word)
    assert view.explained == repr(word)
    assert [one.number for one in view.classes] == [*logits.topk(5).indices.tolist(), least]
    with pytest.raises(ModelError, match="unknown token; or give its number"):
        viewed(model, FixedMap(), target="zzzzzz")


def test_strengths_are_shares_of_the_largest_word_that_is_not_special(bert):
    document = viewed(load(bert), FixedMap(9, 1, -2, 0, 0.5, 0.25, -9))
    assert [word.strength for word in words_of(document)] == [1.0, 0.5, -1.0, 0.0, 0.25, 0.125, -1.0]
    assert "its own largest value that is not special" in " ".join(plain(document).split())
    nothing = viewed(load(bert), FixedMap(5, 0, 0, 0, 0, 0, 5))
    assert [word.strength for word in words_of(nothing)] == [0.0] * 7


def test_positive_relevance_is_red_negative_is_blue_and_the_strongest_are_bold(bert):
    document = viewed(load(bert), FixedMap(0, 1, -1, 0, 0.4, -0.4, 0))
    text = coloured(document)
    full_red, full_blue = (
        f"48;2;{';'.join(map(str, rgb))}m" for rgb in (colours.POSITIVE_RELEVANCE, colours.NEGATIVE_RELEVANCE)
    )
    white = "38;2;255;255;255;"  # the ink that can be read on every colour of a terminal
    assert re.search(rf"1;{white}{full_red}the\b", text)
    assert re.search(rf"1;{white}{full_blue}quick\b", text)
    assert re.search(rf"\[{white}48;2;[0-9;]*mfox\b", text), "not bold"
    assert re.search(r"(?<!m)brown", text), "no colour for 0"
    page = pages.to_html(document)
    styles = {
        token: style for style, token in re.findall(r'<span class="[^"]*" style="([^"]*)"[^>]*>(\w+)</span>', page)
    }
    red, blue = ("#{:02x}{:02x}{:02x}".format(*rgb) for rgb in (colours.POSITIVE_RELEVANCE, colours.NEGATIVE_RELEVANCE))
    assert f"--light: {red}; --light-ink: #ffffff; --dark: {red}; --dark-ink: #ffffff" in styles["the"]
    assert f"--light: {blue}" in styles["quick"]
    assert styles["brown"] == ""


def test_a_map_without_a_negative_value_has_one_hue(bert):
    document = viewed(load(bert), FixedMap(0, 1, 0.5, 0, 0.25, 0.125, 0))
    assert f"48;2;{';'.join(map(str, colours.UNSIGNED_RELEVANCE))}mthe" in coloured(document)
    assert "#{:02x}{:02x}{:02x}".format(*colours.UNSIGNED_RELEVANCE) in pages.to_html(document)
    assert "#{:02x}{:02x}{:02x}".format(*colours.POSITIVE_RELEVANCE) not in pages.to_html(document)


def test_special_tokens_are_marked_and_every_number_is_shown(bert):
    document = viewed(load(bert), FixedMap(7, 1.125, -2.5, 0, 0.5, 0.25, -9))
    printed = plain(document)
    lines = [line.split() for line in printed.splitlines()]
    assert ["0", "[CLS]", "7", "special"] in lines
    assert ["1", "the", "1.125"] in lines
    assert ["6", "[SEP]", "-9", "special"] in lines
    assert ["2", "quick", "-2.5"] in lines
    page = pages.to_html(document)
    assert len(re.findall(r'<span class="[^"]*\bspecial"', page)) == 2
    assert all(f"<td>{number}</td>" in page for number in ("7", "1.125", "-2.5", "0.25", "-9"))
    assert "\x1b" not in printed


def test_pieces_of_a_word_are_one_word_and_the_tokens_stay_available(bert):
    document = viewed(load(bert), FixedMap(0, 1, -2, 0, 0.5, 0.25, 0))
    assert [table.titles[1] for table in pages.tables(document)[1:]] == ["word"]
    features = [*document.features]
    features[2] = Feature(text="ly", glued=True, special=False)
    document = structs.replace(document, features=features)
    by_word, by_token = pages.tables(document)[1:]
    assert by_word.rows[1] == ("1", "thely", "-1", "")
    assert [row[1] for row in by_token.rows] == ["[CLS]", "the", "ly", "brown", "fox", "jumps", "[SEP]"]
    assert "the sum of the relevance of their tokens" in plain(document)
    assert "The relevance of each token" in pages.to_html(document)


def test_many_outputs_are_counted_and_probabilities_depend_on_the_kind_of_model(bert):
    model = load(bert)
    document = viewed(model, FixedMap(*range(7)))
    assert sum(row.probability for row in document.classes) == pytest.approx(1)
    assert "%" in plain(document)
    first, *others = document.classes
    document = structs.replace(document, classes=[structs.replace(first, probability=None), *others], outputs=50000)
    assert "–" in plain(document)
    assert "largest of 50000 outputs" in pages.to_html(document)


def test_probabilities_are_shown_only_where_the_kind_of_model_has_some(bert):
    model, found = load(bert), {}
    for kind in ("single_label_classification", "multi_label_classification", "regression"):
        model.model.config.problem_type = kind
        found[kind] = viewed(model, FixedMap(*range(7)), target="1")
    of_labels, of_numbers = found["multi_label_classification"], found["regression"]
    for row in of_labels.classes:
        assert row.probability == pytest.approx(1 / (1 + np.exp(-row.logit)))
    assert "do not add up to 1" in " ".join(plain(of_labels).split())
    assert sum(row.probability for row in found["single_label_classification"].classes) == pytest.approx(1)
    assert [row.probability for row in of_numbers.classes] == [None] * len(of_numbers.classes)
    assert of_numbers.what == "the output LABEL_1"
    for shown in (pages.to_html(of_numbers), plain(of_numbers)):
        assert not re.search("probability|%|logit|class LABEL", re.sub("(?s)<(style|script).*?</", "", shown))


NAMES = {  # id2label, label2id and, by the name that is given, the output or what the refusal says
    "id2label alone": (["ok", "bad", "ill"], None, {"bad": 1, "ILL": 2, "2": 2, "number=0": 0, "name=ok": 0}),
    "label2id alone": (["LABEL_0", "LABEL_1", "LABEL_2"], {"ok": 0, "bad": 1}, {"bad": 1, "LABEL_2": 2}),
    "in disagreement": (["ok", "bad", "ill"], {"bad": 0, "ok": 1, "ill": 2}, {"bad": "number=0 .*number=1 ", "ill": 2}),
    "numbers": (["1", "2", "3"], {"1": 0, "2": 1, "3": 2}, {"1": "number=0 .*number=1 ", "3": 2, "0": 0, "name=1": 0}),
    "two of one name": (["ok", "bad", "ok"], None, {"ok": r"number=0 \(ok \(output 0\)\) or number=2", "bad": 1}),
    "two in other cases": (["ok", "Bad", "BAD"], None, {"bad": "number=1 .*number=2 ", "Bad": 1, "number=x": "0 to 2"}),
    "a number in words": (["number=2", "b", "c"], None, {"number=2": 2, "name=number=2": 0, "name=2": "known: "}),
}


@pytest.mark.parametrize("kind", NAMES)
def test_a_name_means_one_output_or_is_refused_with_the_choices(bert, kind):
    model = load(bert)
    named, numbers, expected = NAMES[kind]
    model.model.config.id2label, model.model.config.label2id = dict(enumerate(named)), numbers
    for given, right in expected.items():
        if isinstance(right, int):
            assert with_chosen_output(model, given, None).target == right
        else:
            with pytest.raises(ModelError, match=f"--target={given}.*{right}"):
                with_chosen_output(model, given, None)
    for number in range(3):  # what the page shows can be given
        shown = name_of_output(model, number)
        if f"(output {number})" not in shown:
            assert with_chosen_output(model, f"name={shown}", None).target == number


def test_a_decoders_number_that_is_a_token_too_is_refused_with_both(tmp_path):
    model = load(small_models.save("gpt2", tmp_path))
    tokens = model.tokenizer.get_vocab()
    model.tokenizer.get_vocab = lambda: {**tokens, "3": 7}
    with pytest.raises(ModelError, match=r"--target=3 has several meanings: give number=3 .* or number=7 "):
        with_chosen_output(model, "3", None)
    assert with_chosen_output(model, "number=3", None).target == 3
    assert with_chosen_output(model, "name=3", None).target == 7


def test_the_page_loads_nothing_and_escapes_text(bert):
    view = viewed(load(bert), FixedMap(0, 1, -1, 0, 0.5, -0.5, 0))
    features = [*view.features]
    features[1] = structs.replace(features[1], text="<script>")
    view = structs.replace(view, features=features, notes=["a < b"])
    page = pages.to_html(view)
    assert page.startswith("<!doctype html>")
    assert page.count("<script") == 1, "the page's own"
    assert "&lt;script&gt;" in page
    assert "a &lt; b" in page
    assert not re.search(r"\bsrc=|href=\"[^#]|@import|url\(|http", page)


def test_notes_say_that_a_text_was_cut_or_has_unknown_tokens(bert):
    model = load(bert, max_length=6)
    view = viewed(model, LeaveOneOut(AttentionMask()), text="a quick brown fox jumps over the dog")
    assert [feature.text for feature in view.features] == ["[CLS]", "a", "quick", "brown", "fox", "[SEP]"]
    (note,) = view.notes
    assert "cut to 6 tokens" in note
    assert note in " ".join(plain(view).split())
    assert note in pages.to_html(view)
    assert viewed(model, LeaveOneOut(AttentionMask()), text="a quick fox").notes == []
    (note,) = viewed(model, LeaveOneOut(AttentionMask()), text="a zebra fox").notes
    assert note == "1 of 5 tokens are unknown to the tokenizer."


def test_a_tokenizer_without_an_unknown_token_knows_every_token(tmp_path):
    model = load(small_models.save("gpt2", tmp_path))
    model.tokenizer.unk_token = None
    assert not any("unknown" in note for note in viewed(model, LeaveOneOut(AttentionMask())).notes)


def test_notes_repeat_the_warnings_of_the_explainer(bert):
    (note,) = viewed(load(bert), IntegratedGradients(1)).maps[0].notes
    assert note.startswith("integrated_gradients warned: Integrated Gradients with 1 steps misses completeness")


def test_a_long_table_shows_the_largest_tokens_and_counts_them(bert):
    view = viewed(load(bert), FixedMap(0, 1, -1, 0, 0.5, -0.5, 0))
    features = [structs.replace(view.features[1], text=f"t{i}", word=i) for i in range(90)]
    maps = [structs.replace(view.maps[0], values=[float(i) for i in range(90)])]
    view = structs.replace(view, features=features, maps=maps)
    printed = plain(view)
    rows = [int(number) for number in re.findall(r"^ *(\d+) +t\d+ ", printed, re.MULTILINE)]
    assert rows == list(range(50, 90))
    assert "the 40 largest of 90 words" in printed
    assert pages.to_html(view).count("<td") >= 3 * 90


# --- parts of a text --------------------------------------------------------------------------------------------------


LINES = "the quick\nbrown fox\njumps"


def test_by_line_maps_are_summed_and_loo_removes_each_line(bert):
    """The changes are those of the model's own outputs, a line's tokens masked by hand."""
    model, values = load(bert), (9, 3, 1, -2, 0.5, 1, 9)
    document = viewed(model, LeaveOneOut(AttentionMask()), FixedMap(*values), text=LINES, by="line", target="0")
    inputs = model.tokenizer(LINES, return_tensors="pt")
    lines, singles = ([1, 2], [3, 4], [5]), ([1], [2], [3], [4], [5])

    def change(removed):
        mask = inputs["attention_mask"].clone()
        before = model.model(**inputs).logits[0, 0]
        mask[0, removed] = 0
        return float(before - model.model(input_ids=inputs["input_ids"], attention_mask=mask).logits[0, 0])

    with torch.no_grad():
        changes, alone = [change(line) for line in lines], [change(single) for single in singles]
    sums = [alone[0] + alone[1], alone[2] + alone[3], alone[4]]
    _, by_line, _ = pages.tables(document)
    assert [row[1] for row in by_line.rows] == ["[CLS]", "the quick", "brown fox", "jumps", "[SEP]"]
    assert [word.value for word in words_of(document, 1)] == [9, 4, -1.5, 1, 9]
    assert [word.value for word in words_of(document)[1:-1]] == pytest.approx(changes, abs=1e-5)
    expected = sum(abs(one - other) for one, other in zip(changes, sums, strict=True)) / sum(map(abs, changes))
    assert document.interaction == pytest.approx(expected, rel=1e-3)
    assert document.maps[1].r == pytest.approx(np.corrcoef(changes, [4, -1.5, 1])[0, 1], abs=1e-4)
    printed, page = plain(document), pages.to_html(document)
    assert f"loo  interaction {document.interaction:.2g}" in printed
    assert f"interaction {document.interaction:.2g}</td>" in page
    assert "LOO removes each line as a whole" in " ".join(printed.split())
    assert "The relevance of each line" in page


@pytest.mark.parametrize(("by", "rows"), [("token", 7), ("word", 7), ("sentence", 3), ("paragraph", 3)])
def test_the_command_takes_parts(bert, by, rows, tmp_path, capsys):
    file = tmp_path / "map.json"
    assert main(["explain", TEXT, "--model", str(bert), "--by", by, "--json", str(file)]) == 0
    document = load_document(file, Explanation)
    assert (document.by, len(words_of(document))) == (by, rows)
    assert (document.interaction is None) == (by == "token")
    capsys.readouterr()


# --- targets and contrasts -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return load(small_models.save("gpt2", tmp_path_factory.mktemp("decoder")))


def test_a_contrast_is_the_difference_of_two_outputs_and_its_maps(bert):
    loo = LeaveOneOut(AttentionMask())
    model = load(bert)
    asked = (("0", None), ("1", None), ("0", "1"))
    zero, one, contrast = (viewed(model, loo, target=target, contrast=against) for target, against in asked)
    values = [np.array(document.maps[0].values) for document in (zero, one, contrast)]
    np.testing.assert_allclose(values[2], values[0] - values[1], rtol=1e-4, atol=1e-5)
    assert contrast.change == pytest.approx(zero.change - one.change, abs=1e-5)
    assert [row.logit for row in contrast.classes] == [row.logit for row in zero.classes]
    assert contrast.what == "the logit of the class LABEL_0 minus that of LABEL_1"
    assert (contrast.target, contrast.contrast) == ("0", "1")
    assert contrast.what in pages.to_html(contrast)
    assert (model.target, model.against) == (None, None), "the user's model stays as it is"


def test_a_decoder_without_a_target_explains_the_answer_that_it_generates(gpt2):
    document = viewed(gpt2, LeaveOneOut(AttentionMask()))
    words = [word.strip("'") for word in document.answer]
    assert 1 <= len(words) <= LONGEST_ANSWER
    for count in range(min(3, len(words))):
        said = gpt2.case(gpt2.encode([" ".join([TEXT, *words[:count]])])).target
        assert small_models.WORDS[int(said)] == words[count], "the most likely token each time"
    assert any("generated" in note for note in document.notes)
    features = document.features
    assert [feature.text for feature in features] == [*TEXT.split(), *words]
    assert [feature.special for feature in features] == [False] * 4 + [True] * (1 + len(words))
    (row,) = document.classes
    assert row.probability == pytest.approx(np.exp(row.logit))
    assert "log-likelihood of the answer" in plain(document)


@pytest.mark.parametrize(("target", "contrast"), [("fox runs", "dog jumps over"), ("fox", "lazy dog")])
def test_a_contrast_of_two_answers_is_explained_by_passes_of_each(gpt2, target, contrast):
    """LOO is the change of one log-likelihood less that of the other, which the unmodified model gives."""
    document = viewed(gpt2, LeaveOneOut(AttentionMask()), AttnLRP(), target=target, contrast=contrast)

    def likelihood(answer, removed=None):
        tokens = gpt2.tokenizer(f"{TEXT} {answer}", return_tensors="pt")
        if removed is not None:
            tokens["attention_mask"][0, removed] = 0
        first = len(TEXT.split())
        with torch.no_grad():
            logs = gpt2.model(**tokens).logits[0].log_softmax(1)
        return sum(float(logs[i - 1, tokens["input_ids"][0, i]]) for i in range(first, tokens["input_ids"].shape[1]))

    loo, attnlrp = document.maps
    for i in range(len(TEXT.split())):
        changes = [likelihood(answer) - likelihood(answer, i) for answer in (target, contrast)]
        assert loo.values[i] == pytest.approx(changes[0] - changes[1], abs=1e-4)
    assert [one.text for one in document.features] == [*TEXT.split(), *target.split(), *contrast.split()]
    assert [one.special for one in document.features[5:]] == [True] * len(f"{target} {contrast}".split())
    case = gpt2.case(gpt2.encode([TEXT]))
    first, second = (
        AnswerModel(gpt2.model, gpt2.tokenizer, tuple(gpt2.tokenizer(text)["input_ids"])) for text in (target, contrast)
    )
    lrp = [AttnLRP().attribute(side, side.case(side.encode([TEXT])))[0].tolist() for side in (first, second)]
    n = case.shape[1]
    expected = [a - b for a, b in zip(lrp[0][:n], lrp[1][:n], strict=True)] + lrp[0][n:] + [-b for b in lrp[1][n:]]
    assert attnlrp.values == pytest.approx(expected, abs=1e-5)
    assert [one.logit for one in document.classes] == pytest.approx(
        [likelihood(target), likelihood(contrast)], abs=1e-4
    )
    assert document.explained == f"{target!r} and not {contrast!r}"
    assert document.what.count("log-likelihood") == 2
    assert repr(contrast) in pages.to_html(document).replace("&#39;", "'")


def test_an_answer_that_is_empty_is_refused(gpt2, monkeypatch):
    said = int(gpt2.case(gpt2.encode([TEXT])).target)
    monkeypatch.setattr(gpt2.model.config, "eos_token_id", said)
    with pytest.raises(ModelError, match=r"the model's answer is empty.*by --target"):
        viewed(gpt2, FixedMap())


@pytest.mark.parametrize(
    ("target", "contrast", "message"),
    [
        (None, "dog runs", r"--contrast=dog runs: the tokenizer splits it into 'dog', 'runs': give one of them"),
        ("fox runs", "fox runs", "--contrast=fox runs is the target itself: give another answer"),
        ("fox", "dog " * 28, "more than the 4 tokens that the model takes before this answer"),
        ("fox", "fox", "--contrast=fox is the target itself"),
        ("FOX", None, "--target=FOX: unknown token"),
        ("fox", "16", "--contrast=16: the model has 16 outputs, 0 to 15"),
        ("fox " * 32, None, "the answer has 32 tokens, and GPT2LMHeadModel takes 32 with the text"),
        ("fox " * 28, None, "more than the 4 tokens that the model takes before this answer"),
    ],
)
def test_targets_that_cannot_be_explained_are_refused(gpt2, target, contrast, message):
    with pytest.raises(ValueError, match=message):
        viewed(gpt2, FixedMap(), target=target, contrast=contrast)


def test_a_contrast_with_the_most_likely_output_is_refused(gpt2):
    said = int(gpt2.case(gpt2.encode([TEXT])).target)
    with pytest.raises(ExplainError, match="is the most likely output itself: give another --target"):
        viewed(gpt2, FixedMap(), contrast=str(said))


@pytest.mark.parametrize("target", [None, "fox", "fox runs"])
def test_a_text_that_is_longer_than_a_decoder_takes_is_refused(gpt2, target):
    with pytest.raises(ExplainError, match=r"more than the 3[02] tokens that the model takes"):
        viewed(gpt2, FixedMap(), text="fox " * 33, target=target)


def test_a_text_that_leaves_no_place_for_an_answer_is_refused(gpt2):
    with pytest.raises(ModelError, match="the prompt leaves no place for an answer: give a shorter text"):
        viewed(gpt2, FixedMap(), text="fox " * 32)


# --- refusals --------------------------------------------------------------------------------------------------------


class Refuses(FixedMap):
    def attribute(self, model, case):
        raise Unsupported("no rule for conv")


class Raises(FixedMap):
    def attribute(self, model, case):
        raise RuntimeError("their own bug")


@pytest.mark.parametrize(
    ("explainer", "message"),
    [
        (Refuses(), "fixed cannot explain this model: no rule for conv"),
        (FixedMap(1, 2), "fixed cannot explain this model: expected shape"),
        (FixedMap(*[float("nan")] * 7), "values are NaN or infinite"),
        (Raises(), "fixed raised RuntimeError: their own bug"),
    ],
)
def test_an_explainer_without_a_valid_map_says_why_beside_the_others(bert, explainer, message):
    with pytest.raises(ExplainError, match=message):
        viewed(load(bert), explainer)
    document = viewed(load(bert), LeaveOneOut(AttentionMask()), explainer, GradientTimesInput())
    assert [one.explainer for one in document.maps] == ["loo", "gradient_x_input"]
    (refused,) = document.refused
    assert refused.explainer == "fixed"
    assert re.search(message, refused.why)
    assert document.maps[1].r is not None
    said = " ".join(refused.why.split())
    for page in (plain(document), pages.to_html(document), pages.to_markdown(document)):
        assert said in " ".join(html.unescape(page).split())


def test_without_loo_the_others_are_shown_without_a_correlation(bert):
    class Nothing(LeaveOneOut):
        def attribute(self, model, case):
            raise Unsupported("nothing can be removed")

    document = viewed(load(bert), Nothing(), GradientTimesInput())
    assert [(one.explainer, one.r) for one in document.maps] == [("gradient_x_input", None)]
    assert [one.explainer for one in document.refused] == ["loo"]


def test_the_command_says_of_loo_how_long_it_takes_and_ends_with_0_if_an_explainer_refuses(
    bert, capsys, monkeypatch, tmp_path
):
    (tmp_path / "refusing.py").write_text(REFUSING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output, "LONG", -1.0)
    assert main(["explain", TEXT, "--model", str(bert), "--explainer", "refusing:Refuses"]) == 0
    printed = capsys.readouterr()
    assert re.search(r"faithcheck: loo: 8 forward passes of 7 tokens, about \d+ s\n", printed.err)
    assert "no map: refusing cannot explain this model: no rule for conv" in " ".join(printed.out.split())


REFUSING = """
from faithcheck.explainers import Unsupported

class Refuses:
    name = "refusing"

    def attribute(self, model, case):
        raise Unsupported("no rule for conv")
"""


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_text_is_refused(bert, text, capsys):
    assert main(["explain", text, "--model", str(bert)]) == 2
    assert "the text is empty: give one with at least one word" in capsys.readouterr().err


def test_a_decoder_refuses_a_text_of_one_token(tmp_path):
    model = load(small_models.save("gpt2", tmp_path))
    with pytest.raises(ExplainError, match="a decoder is read at its last token, so give at least two"):
        viewed(model, FixedMap(), text="fox")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "nope"], "--target=nope: unknown output 'nope'"),
    ],
)
def test_the_command_refuses_options_that_it_cannot_use(bert, arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["explain", TEXT, "--model", str(bert), *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert not printed.out


def test_a_missing_model_and_a_model_of_images_are_refused(tmp_path, capsys):
    assert main(["explain", TEXT, "--model", str(tmp_path / "none")]) == 2
    assert f"there is no folder {tmp_path / 'none'}: give one with config.json" in capsys.readouterr().err
    vit = small_models.save("vit", tmp_path)
    assert main(["explain", TEXT, "--model", str(vit)]) == 2
    assert "takes images: faithcheck explain takes a model of text" in capsys.readouterr().err


def test_the_command_prints_the_maps_and_writes_both_files(bert, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    page, file = tmp_path / "map.html", tmp_path / "map.json"
    chosen = ["--explainer", "loo", "--explainer", "gradient_x_input", "--device", "cpu"]
    assert main(["explain", TEXT, "--model", str(bert), *chosen, "--html", str(page), "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("loo\n[CLS] the quick brown fox jumps [SEP]\n")
    assert re.search(r"^gradient_x_input  r [−0-9.]+\n\[CLS\] the quick", printed, re.MULTILINE)
    assert "removed: attention mask 0, as in the paper" in printed
    assert printed.endswith(f"written: {file}\nwritten: {page}\n")
    for label in (
        "sum of loo",
        "f(x) − f(baseline)",
        "with special tokens; minus f(x) − f(baseline)",
        "colours",
        "explained",
        "model",
        "words",
    ):
        assert label in printed
        assert label in page.read_text(encoding="utf-8")
    document = load_document(file, Explanation)
    assert [row.explainer for row in document.maps] == ["loo", "gradient_x_input"]
    assert pages.to_html(document) == page.read_text(encoding="utf-8"), "the page is made from the document alone"


def test_the_document_makes_its_pages_again(tmp_path, capsys):
    document = documents.typed(documents.explanation())
    save(document, tmp_path / "map.json")
    assert main(["report", str(tmp_path / "map.json"), "--html", "--md"]) == 0
    assert (tmp_path / "map.html").read_text(encoding="utf-8") == pages.to_html(document)
    assert "| grinning |" in (tmp_path / "map.md").read_text(encoding="utf-8")
    capsys.readouterr()
    assert main(["report", str(tmp_path / "map.json"), "--exit-code"]) == 0
    assert "attnlrp  r 0.500\n[CLS] grinning films [SEP]" in capsys.readouterr().out
    maps = [structs.replace(document.maps[0], left_behind="hooks"), *document.maps[1:]]
    save(structs.replace(document, maps=maps), tmp_path / "map.json")
    assert main(["report", str(tmp_path / "map.json"), "--exit-code"]) == 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"schema_version": 2}, "explanation schema version 2, this faithcheck reads 1: run faithcheck explain again"),
        ({"text": 1}, "damaged explanation document: text: Expected `str`, got `int`"),
        ({"features": []}, "damaged explanation document: maps[0].values has 5 numbers for 0 features"),
        ({"classes": []}, "damaged explanation document: classes has 0 explained outputs, not 1"),
    ],
)
def test_a_damaged_document_is_refused_in_a_line(damage, message, tmp_path, capsys):
    (tmp_path / "map.json").write_text(json.dumps({**documents.explanation(), **damage}))
    assert main(["report", str(tmp_path / "map.json")]) == 2
    assert capsys.readouterr().err == f"faithcheck: {tmp_path / 'map.json'}: {message}\n"


def test_the_text_can_come_from_standard_input(bert, capsys, monkeypatch):
    class Stdin:
        buffer = io.BytesIO(b"the quick brown\n")

    monkeypatch.setattr("sys.stdin", Stdin)
    assert main(["explain", "-", "--model", str(bert), "--explainer", "loo"]) == 0
    assert capsys.readouterr().out.startswith("loo\n[CLS] the quick brown [SEP]\n")
    Stdin.buffer = io.BytesIO(b"caf\xe9")
    assert main(["explain", "-", "--model", str(bert)]) == 2
    assert "standard input is not UTF-8: if it is Latin-1, pipe it through iconv" in capsys.readouterr().err


def test_of_two_parts_there_is_no_correlation():
    """Any two points lie on a line."""
    assert explanation._r([1.0, 2.0], [3.0, 4.0], 0.0) is None
    assert explanation._r([1.0, 2.0, 3.0], [3.0, 4.0, 5.0], 0.0) == pytest.approx(1)
