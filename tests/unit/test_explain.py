"""``faithcheck explain``: the map, its colours, its page, and the options that are refused."""

import io
import json
import re

import pytest
import torch
from rich.console import Console

from faithcheck.explainers import IntegratedGradients, LeaveOneOut, Unsupported
from faithcheck.explainers.loo.removal import AttentionMask
from faithcheck.explainers.protocol import attribution_of
from faithcheck.models.case import output_difference
from faithcheck.models.pretrained.loading import load
from faithcheck.models.pretrained.next_token_model import NextTokenModel
from faithcheck.reports import explanation
from faithcheck.reports.commands.main import main
from faithcheck.reports.explanation import ExplainError
from faithcheck.reports.pages import colours
from faithcheck.reports.pages import explanation as pages
from faithcheck.tests.helpers import small_models

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


def viewed(model, explainer, text=TEXT, target=None):
    return {**explanation.explain(model, text, explainer, target), "model": "small"}


def plain(view, width=100):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    pages.print_to(console, view)
    return console.file.getvalue()


def coloured(view):
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="truecolor", highlight=False)
    console.print(pages.coloured(view["tokens"]))
    return console.file.getvalue()


def test_the_view_holds_the_map_its_sum_and_the_change_of_the_output(model):
    explainer = LeaveOneOut(AttentionMask())
    view = viewed(model, explainer)
    case = model.case(model.encode([TEXT]))
    expected = attribution_of(explainer, model, case)[0]
    assert [token["value"] for token in view["tokens"]] == expected.tolist()
    assert view["sum"] == pytest.approx(float(expected.sum()), abs=1e-6)
    assert view["change"] == pytest.approx(float(output_difference(model, case)))
    assert [token["special"] for token in view["tokens"]] == case.special_tokens_mask[0].tolist()
    (explained,) = (one for one in view["classes"] if one["explained"])
    assert explained["logit"] == pytest.approx(max(case.run(model)[0].tolist()))
    assert view["decoder"] == isinstance(model, NextTokenModel)
    json.dumps(view, allow_nan=False)


def test_target_chooses_the_explained_output_by_number_or_name(bert):
    model = load(bert)
    model.model.config.id2label, model.model.config.label2id = {0: "bad", 1: "good"}, {"bad": 0, "good": 1}
    logits = model.case(model.encode([TEXT])).run(model)[0].tolist()
    for target, number in {"0": 0, "1": 1, "bad": 0, "GOOD": 1}.items():
        view = viewed(model, LeaveOneOut(AttentionMask()), target=target)
        (one,) = (one for one in view["classes"] if one["explained"])
        assert (one["number"], one["logit"]) == (number, pytest.approx(logits[number]))
        assert view["explained"] == ("bad", "good")[number]
    zero, one = (viewed(model, LeaveOneOut(AttentionMask()), target=target) for target in "01")
    assert zero["tokens"] != one["tokens"]
    for target, message in {
        str(len(logits)): f"0 to {len(logits) - 1}",
        "goood": "did you mean good",
        "-1": "known: bad, good",
    }.items():
        with pytest.raises(ExplainError, match=message):
            viewed(model, FixedMap(), target=target)


def test_a_decoder_lists_the_most_likely_tokens_and_the_explained_one(tmp_path):
    model = load(small_models.save("gpt2", tmp_path))
    logits = model.case(model.encode([TEXT])).run(model)[0]
    least = int(logits.argmin())
    word = small_models.WORDS[least]
    view = viewed(model, LeaveOneOut(AttentionMask()), target=word)
    assert view["explained"] == repr(word)
    assert [one["number"] for one in view["classes"]] == [*logits.topk(5).indices.tolist(), least]
    with pytest.raises(ExplainError, match="unknown token; or give its number"):
        viewed(model, FixedMap(), target="zzzzzz")


def test_strengths_are_shares_of_the_largest_token_that_is_not_special(bert):
    view = viewed(load(bert), FixedMap(9, 1, -2, 0, 0.5, 0.25, -9))
    assert view["largest"] == 2
    assert [token["strength"] for token in view["tokens"]] == [1.0, 0.5, -1.0, 0.0, 0.25, 0.125, -1.0]
    assert "full at ±2, the largest of the tokens that are not special" in " ".join(plain(view).split())
    nothing = viewed(load(bert), FixedMap(5, 0, 0, 0, 0, 0, 5))
    assert [token["strength"] for token in nothing["tokens"]] == [0.0] * 7
    assert "every token that is not special has relevance 0" in pages.colours(nothing)


def test_positive_relevance_is_red_and_negative_is_blue(bert):
    view = viewed(load(bert), FixedMap(0, 1, -1, 0, 0.5, -0.5, 0))
    text = coloured(view)
    full_red, full_blue = (
        f"48;2;{';'.join(map(str, rgb))}m" for rgb in (colours.POSITIVE_RELEVANCE, colours.NEGATIVE_RELEVANCE)
    )
    white, black = "38;2;255;255;255;", "38;2;0;0;0;"  # the ink that can be read on the colour
    assert re.search(rf"{white}{full_red}the\b", text)
    assert re.search(rf"{white}{full_blue}quick\b", text)
    assert re.search(rf"{black}48;2;[0-9;]*mfox\b", text)
    assert re.search(rf"{black}48;2;[0-9;]*mjumps\b", text)
    assert re.search(r"(?<!m)brown", text), "no colour for 0"
    page = pages.to_html(view)
    spans = re.findall(r'<span style="([^"]*)"[^>]*>(\w+)</span>', page)
    styles = {token: style for style, token in spans}
    red, blue = (" ".join(map(str, rgb)) for rgb in (colours.POSITIVE_RELEVANCE, colours.NEGATIVE_RELEVANCE))
    assert f"rgb({red} / 1.000)" in styles["the"]
    assert f"rgb({blue} / 1.000)" in styles["quick"]
    assert f"rgb({red} / 0.500)" in styles["fox"]
    assert f"rgb({blue} / 0.500)" in styles["jumps"]


def test_special_tokens_are_marked_and_every_number_is_shown(bert):
    view = viewed(load(bert), FixedMap(7, 1.125, -2.5, 0, 0.5, 0.25, -9))
    printed = plain(view)
    lines = [line.split() for line in printed.splitlines()]
    assert ["0", "[CLS]", "7", "special"] in lines
    assert ["1", "the", "1.12"] in lines
    assert ["6", "[SEP]", "-9", "special"] in lines
    assert ["2", "quick", "-2.5"] in lines
    page = pages.to_html(view)
    assert page.count('class="special"') == 2
    assert all(f"<td>{number}</td>" in page for number in ("7", "1.125", "-2.5", "0.25", "-9"))
    assert "\x1b" not in printed


def test_the_page_loads_nothing_and_escapes_text(bert):
    view = viewed(load(bert), FixedMap(0, 1, -1, 0, 0.5, -0.5, 0))
    view["tokens"][1]["text"], view["notes"] = "<script>", ["a < b"]
    page = pages.to_html(view)
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "a &lt; b" in page
    assert not re.search(r"\bsrc=|href=|@import|url\(|http", page)


def test_notes_say_that_a_text_was_cut_or_has_unknown_tokens(bert):
    model = load(bert, max_length=6)
    view = viewed(model, LeaveOneOut(AttentionMask()), "a quick brown fox jumps over the dog")
    assert [token["text"] for token in view["tokens"]] == ["[CLS]", "a", "quick", "brown", "fox", "[SEP]"]
    (note,) = view["notes"]
    assert "cut to 6 tokens" in note
    assert note in " ".join(plain(view).split())
    assert note in pages.to_html(view)
    assert viewed(model, LeaveOneOut(AttentionMask()), "a quick fox")["notes"] == []
    (note,) = viewed(model, LeaveOneOut(AttentionMask()), "a zebra fox")["notes"]
    assert note == "1 of 5 tokens are unknown to the tokenizer."


def test_notes_repeat_the_warnings_of_the_explainer(bert):
    (note,) = viewed(load(bert), IntegratedGradients(1))["notes"]
    assert note.startswith("integrated_gradients warned: Integrated Gradients with 1 steps misses completeness")


def test_a_long_table_shows_the_largest_tokens_and_counts_them(bert):
    view = viewed(load(bert), FixedMap(0, 1, -1, 0, 0.5, -0.5, 0))
    view["tokens"] = [{**view["tokens"][1], "value": float(i), "text": f"t{i}"} for i in range(90)]
    printed = plain(view)
    rows = [int(number) for number in re.findall(r"^ *(\d+) +t\d+ ", printed, re.MULTILINE)]
    assert rows == list(range(50, 90))
    assert "the 40 largest of 90 tokens" in printed
    assert pages.to_html(view).count("<td") >= 3 * 90


@pytest.mark.parametrize(
    ("names", "read"),
    [
        (["[CLS]", "un", "##fl", "##inching", "film", "[SEP]"], "[CLS] unflinching film [SEP]"),
        (["A", "Ġfilm", "s", "Ġ,", "."], "A films ,."),
        (["▁A", "▁film", "s"], "A films"),
    ],
)
def test_tokens_are_joined_to_words(bert, names, read):
    model = load(bert)
    model.tokenizer = type("Tokenizer", (), {"all_special_tokens": ["[CLS]", "[SEP]"]})()
    model.tokenizer.convert_tokens_to_string = lambda tokens: tokens[0].replace("Ġ", " ").replace("▁", " ")
    tokens = [{**piece, "special": False, "value": 0.0, "strength": 0.0} for piece in explanation._pieces(model, names)]
    assert pages.coloured(tokens).plain == read


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
        (Raises(), "fixed raised:\nTraceback"),
    ],
)
def test_an_explainer_without_a_valid_map_is_refused(bert, explainer, message):
    with pytest.raises(ExplainError, match=message):
        viewed(load(bert), explainer)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_text_is_refused(bert, text, capsys):
    assert main(["explain", text, "--model", str(bert)]) == 2
    assert "the text is empty: give one with at least one word" in capsys.readouterr().err


def test_a_decoder_refuses_a_text_of_one_token(tmp_path):
    model = load(small_models.save("gpt2", tmp_path))
    with pytest.raises(ExplainError, match="a decoder is read at its last token, so give at least two"):
        viewed(model, FixedMap(), "fox")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--explainer", "nope"], "unknown explainer 'nope'"),
        (["--target", "nope"], "--target=nope: unknown output 'nope'"),
        (["--html", "none/page.html"], "the folder none does not exist"),
        (["--explainer", "epsilon_lrp"], "epsilon_lrp cannot explain this model: "),
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
    assert "neither a local folder nor a model" in capsys.readouterr().err
    vit = small_models.save("vit", tmp_path)
    assert main(["explain", TEXT, "--model", str(vit)]) == 2
    assert "takes images: faithcheck explain takes a model of text" in capsys.readouterr().err


def test_the_command_prints_the_map_and_writes_the_page(bert, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    page = tmp_path / "map.html"
    assert main(["explain", TEXT, "--model", str(bert), "--explainer", "loo", "--html", str(page)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("[CLS] the quick brown fox jumps [SEP]\n")
    assert "loo: removed: attention mask 0, as in the paper" in printed
    assert printed.endswith(f"written: {page}\n")
    assert "attention mask 0" in page.read_text(encoding="utf-8")
    for label in ("sum of the map", "f(x) − f(baseline)", "difference", "colours", "explained", "model"):
        assert label in printed
        assert label in page.read_text(encoding="utf-8")
