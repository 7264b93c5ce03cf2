"""The colours of a map: readable, the strongest strongest; and words from tokens."""

import pytest

from faithcheck.reports.documents.words import Feature, relevance_of, words
from faithcheck.reports.pages import colours, relevance

SHARES = [i / 100 for i in range(-100, 101)]


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("where", ["light", "dark", "terminal"])
def test_text_on_every_relevance_has_contrast(where, signed):
    for share in SHARES if signed else SHARES[100:]:
        found = (
            relevance.on_terminal(share, signed)
            if where == "terminal"
            else relevance.on_page(share, signed, where == "dark")
        )
        assert found is None or relevance.contrast(*found) >= colours.CONTRAST, (share, found)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("where", ["light", "dark", "terminal"])
def test_a_stronger_word_is_further_from_what_it_stands_on(where, signed):
    def background(share):
        if where == "terminal":
            return relevance.on_terminal(share, signed)[0]
        return relevance.on_page(share, signed, where == "dark")[0]

    first = background(0.05)
    distances = [sum(abs(a - b) for a, b in zip(background(s / 100), first, strict=True)) for s in range(5, 101)]
    assert distances == sorted(distances)
    assert distances[-1] > 100


def test_the_terminal_starts_from_grey_and_leaves_the_faintest_plain():
    assert relevance.on_terminal(0.0, True) is None
    assert relevance.on_terminal(relevance.FAINT, True) is not None
    assert relevance.on_terminal(1.0, True)[0] == colours.POSITIVE_RELEVANCE
    assert relevance.on_terminal(-1.0, True)[0] == colours.NEGATIVE_RELEVANCE
    assert relevance.on_terminal(1.0, False)[0] == colours.UNSIGNED_RELEVANCE


def test_strengths_are_shares_of_the_largest_that_is_not_special():
    assert relevance.strengths([9.0, 1.0, -2.0, 0.0], [True, False, False, False]) == [1.0, 0.5, -1.0, 0.0]
    assert relevance.strengths([5.0, 0.0], [True, False]) == [0.0, 0.0]


def features(*texts):
    """A text that begins with + is glued, one in brackets special."""
    return [Feature(text=t.removeprefix("+"), glued=t[0] == "+", special=t[0] == "[") for t in texts]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["[CLS]", "grin", "+ning", "[SEP]"], ["[CLS]", "grinning", "[SEP]"]),
        (["film", "+s", "+,", "+and"], ["films", ",", "and"]),
        (["don", "+'", "+t"], ["don't"]),
        (["كت", "+اب"], ["كتاب"]),
        (["+a"], ["a"]),
    ],
)
def test_pieces_of_a_word_are_joined_and_punctuation_is_not(tokens, expected):
    assert [word.text for word in words(features(*tokens))] == expected


def test_the_relevance_of_a_word_is_the_sum_of_its_pieces():
    found = words(features("[CLS]", "grin", "+ning", "."))
    assert relevance_of(found, [1.0, 2.0, -0.5, 4.0]) == [1.0, 1.5, 4.0]
    assert [word.features for word in found] == [[0], [1, 2], [3]]
