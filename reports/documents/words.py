"""The features of a text or an image, and the words of a text: the pieces of one word together, relevance summed."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

from msgspec import Struct

WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
"""How Unicode begins the names of letters of scripts that put no spaces between words: there a piece stays alone."""


class Feature(Struct, frozen=True, kw_only=True):
    """A token of a text or a patch of an image.

    Attributes:
        text: the token; of a patch its place, such as ``r0c1``.
        glued: whether no space is between it and the feature before it.
        special: whether it is a special token, such as ``[SEP]``.
    """

    text: str
    glued: bool
    special: bool


class Word(Feature, frozen=True, kw_only=True):
    """A word, or a feature that stays alone, with the indices of its ``features``."""

    features: list[int]


def words(features: Sequence[Feature]) -> list[Word]:
    """The words of these features.

    A piece belongs to the word before it if no space and no punctuation is between them. Special tokens stay alone.
    """
    found: list[Word] = []
    for one in alone(features):
        if found and _continues(found[-1], one):
            whole = found.pop()
            one = Word(
                text=whole.text + one.text,
                glued=whole.glued,
                special=whole.special,
                features=whole.features + one.features,
            )
        found.append(one)
    return found


def alone(features: Sequence[Feature]) -> list[Word]:
    """Each feature as a word of its own."""
    return [
        Word(text=one.text, glued=one.glued, special=one.special, features=[index])
        for index, one in enumerate(features)
    ]


def relevance_of(found: Sequence[Word], values: Sequence[float]) -> list[float]:
    """The relevance of each word: the sum of its features' values."""
    return [math.fsum(values[index] for index in word.features) for word in found]


def _continues(word: Word, piece: Word) -> bool:
    special = word.special or piece.special
    return piece.glued and not special and _in_word(word.text[-1:]) and _in_word(piece.text[:1])


def _in_word(character: str) -> bool:
    return character in "'’" or (character.isalnum() and not unicodedata.name(character, "").startswith(WITHOUT_SPACES))
