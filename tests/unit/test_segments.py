"""The parts of a text: which characters begin one, which tokens belong to it, and that cases carry them."""

from dataclasses import replace

import pytest
import torch

from faithcheck.axioms.batching import without_padding
from faithcheck.explainers.loo.removal import Deletion
from faithcheck.memory.predicted_memory import with_length
from faithcheck.models import Case
from faithcheck.models.pretrained import SENTIMENT
from faithcheck.models.pretrained.loading import load
from faithcheck.models.pretrained.segments import LEVELS, segments, without_words

TEXT = 'Mr. Smith saw it. "Why?!" he asked ... it cost 3.5 m\n\n  A U.S. film, isn\'t it'
PARTS = {
    "line": ['Mr. Smith saw it. "Why?!" he asked ... it cost 3.5 m', "A U.S. film, isn't it"],
    "paragraph": ['Mr. Smith saw it. "Why?!" he asked ... it cost 3.5 m', "A U.S. film, isn't it"],
    "sentence": ["Mr. Smith saw it.", '"Why?!"', "he asked ... it cost 3.5 m", "A U.S. film, isn't it"],
    "word": 'Mr . Smith saw it . " Why ? ! " he asked . . . it cost 3.5 m A U.S . film , isn\'t it'.split(),
}


@pytest.mark.parametrize("level", LEVELS)
def test_the_parts_of_a_text(level):
    """Each character is a token; the text of a part is that of its tokens."""
    assert parts(TEXT, level) == PARTS[level]


@pytest.mark.parametrize(
    ("text", "level", "expected"),
    [
        ("这部电影很好看。演员很好！", "sentence", ["这部电影很好看。", "演员很好！"]),
        ("映画は良い。「本当？」彼は", "sentence", ["映画は良い。", "「本当？」", "彼は"]),
        ("यह अच्छी है। हाँ॥ फ़िल्म", "sentence", ["यह अच्छी है।", "हाँ॥", "फ़िल्म"]),
        ("هل أعجبك؟ نعم، جدا.", "sentence", ["هل أعجبك؟", "نعم، جدا."]),
        ("Version 3.5 is out. v. good", "sentence", ["Version 3.5 is out. v. good"]),
        ("看カタカナだ", "word", ["看", "カタカナ", "だ"]),
        ("यह फ़िल्म है।", "word", ["यह", "फ़िल्म", "है", "।"]),
        ("cafe\u0301 nai\u0308ve", "word", ["cafe\u0301", "nai\u0308ve"]),
        ("well-known 한국어 👩‍👧 🇩🇪🇫🇷", "word", ["well", "-", "known", "한국어", "👩‍👧", "🇩🇪", "🇫🇷"]),
        ("ก็ดี", "word", ["ก็", "ดี"]),
    ],
)
def test_words_and_sentences_are_those_of_unicode(text, level, expected):
    """By hand from the rules of UAX #29: SB8 for "out. v.", WB13 for Katakana, WB4 for marks, WB15 for flags."""
    assert parts(text, level) == expected


def test_scripts_without_words_are_named():
    assert without_words("Der Film, फ़िल्म, 영화") == []
    assert without_words("หนัง ຮູບ and 电影") == ["Han", "Thai", "Lao"]


def parts(text, level):
    """The text of each part, if each character is a token; white space around it left out."""
    following = [i + len(text[i:]) - len(text[i:].lstrip()) for i in range(len(text))]
    numbers = segments(text, following, [False] * len(text), level)
    return [
        "".join(letter for letter, number in zip(text, numbers, strict=True) if number == part).strip()
        for part in range(max(numbers) + 1)
    ]


def test_a_special_token_belongs_to_no_sentence():
    special = [True, False, False, False, True, False, True]
    assert segments("One. Two a", [0, 0, 3, 5, 0, 9, 0], special, "sentence") == [0, 1, 1, 2, 3, 2, 4]


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="unknown level 'page': choose word, sentence, line, paragraph"):
        segments("a", [0], [False], "page")


@pytest.fixture(scope="module")
def case():
    model = load(SENTIMENT)
    return model.case(list(model.encode(["It is good. It isn't bad!", "So so."])))


def test_a_case_of_texts_has_the_parts_of_each_token_and_none_at_padding(case):
    assert case.segments["sentence"].tolist() == [
        [0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3],
        [0, 1, 1, 1, 2, -1, -1, -1, -1, -1, -1, -1],
    ]
    assert case.segments["word"][0].tolist() == [0, 1, 2, 3, 4, 5, 6, 6, 6, 7, 8, 9]


def test_what_changes_the_features_of_a_case_changes_its_parts(case):
    sentence = case.segments["sentence"]
    second = case.select(torch.tensor([1]))
    assert torch.equal(second.segments["sentence"], sentence[1:])
    assert torch.equal(without_padding(second).segments["sentence"], sentence[1:, :5])
    assert torch.equal(with_length(case, 14).segments["sentence"][0], torch.cat([sentence[0], sentence[0, :2]]))
    without = Deletion().remove(second, torch.arange(12).unsqueeze(0) == 1)
    assert without.segments["sentence"].tolist() == [[0, 1, 1, 2]]
    assert torch.equal(case.copy().segments["sentence"], sentence)


def test_parts_of_another_shape_or_type_are_refused(case):
    for wrong in (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 12)):
        with pytest.raises(ValueError, match=r"segments\['sentence'\] must be int64 \(batch, features\)"):
            replace(case, segments={"sentence": wrong})


def test_the_parts_of_a_case_lie_where_its_inputs_do():
    inputs = torch.zeros(1, 2)
    parts = {"word": torch.zeros(1, 2, dtype=torch.int64, device="meta")}
    with pytest.raises(ValueError, match="one device"):
        Case(inputs, torch.zeros(1, dtype=torch.int64), inputs, segments=parts)
