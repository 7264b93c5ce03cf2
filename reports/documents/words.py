"""The features of a text or an image, and the words of a text: the pieces of one word together, relevance summed."""

import math
from collections.abc import Sequence

from msgspec import Struct, structs


class Feature(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token of a text or a patch of an image."""

    text: str  # of a token, empty if it continues the character before it; of a patch its place, such as r0c1
    glued: bool  # no space is between it and the feature before it
    special: bool  # such as [SEP]
    word: int | None = None  # the number of its word, sentence, … that Leave-One-Out removes; None if not known
    role: str = ""  # in a chat that of its message, or "template" or "answer"; else empty


class Word(Feature, frozen=True, kw_only=True):
    """A word, or a feature that stays alone, with the indices of its ``features``."""

    features: list[int]


def words(features: Sequence[Feature]) -> list[Word]:
    """The words of these features.

    Pieces belong together if they have one number. Without numbers, as in documents of older versions, a piece belongs
    to the word before it if no space and no punctuation is between them. Special tokens stay alone.
    """
    found, numbered = list[Word](), dict[int, int]()
    for one in alone(features):
        if one.word is not None and not one.special:
            at = numbered.setdefault(one.word, len(found))
        else:
            at = len(found) - (found != [] and _continues(found[-1], one))
        if at == len(found):
            found.append(one)
        else:
            text = f"{found[at].text}{'' if one.glued else ' '}{one.text}".strip() or found[at].text
            found[at] = structs.replace(found[at], text=text, features=found[at].features + one.features)
    return found


def alone(features: Sequence[Feature]) -> list[Word]:
    """Each feature as a word of its own."""
    return [
        Word(text=one.text, glued=one.glued, special=one.special, word=one.word, role=one.role, features=[index])
        for index, one in enumerate(features)
    ]


def label(text: str) -> str:
    """The text of a word or token in a table, where white space and nothing are not seen."""
    return text if text.strip() else repr(text) if text else "…"


def relevance_of(found: Sequence[Word], values: Sequence[float]) -> list[float]:
    """The relevance of each word: the sum of its features' values."""
    return [math.fsum(values[index] for index in word.features) for word in found]


def _continues(word: Word, piece: Word) -> bool:
    return not (word.special or piece.special) and piece.glued and _in_word(word.text[-1:]) and _in_word(piece.text[:1])


def _in_word(character: str) -> bool:
    return character in "'’" or character.isalnum()
