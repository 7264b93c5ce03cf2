"""Words of a text from the tokens of a model: the pieces of one word together, their relevance summed."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

from faithcheck.reports.results import Json

WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
"""How Unicode begins the names of letters of scripts that put no spaces between words: there a piece stays alone."""


def words(features: Sequence[Json]) -> list[Json]:
    """The words of these features, each with ``text``, ``glued``, ``special`` and the indices of its ``features``.

    A piece belongs to the word before it if no space and no punctuation is between them. Special tokens stay alone.

    Args:
        features: each with ``text``, ``glued`` (no space before it) and ``special``.
    """
    found: list[Json] = []
    for index, feature in enumerate(features):
        if found and _continues(found[-1], feature):
            found[-1]["text"] += feature["text"]
            found[-1]["features"].append(index)
        else:
            found.append({**{key: feature[key] for key in ("text", "glued", "special")}, "features": [index]})
    return found


def relevance_of(found: Sequence[Json], values: Sequence[float]) -> list[float]:
    """The relevance of each word of `words`: the sum of its features' values."""
    return [math.fsum(values[index] for index in word["features"]) for word in found]


def _continues(word: Json, feature: Json) -> bool:
    special = word["special"] or feature["special"]
    return bool(feature["glued"]) and not special and _in_word(word["text"][-1:]) and _in_word(feature["text"][:1])


def _in_word(character: str) -> bool:
    return character in "'’" or (character.isalnum() and not unicodedata.name(character, "").startswith(WITHOUT_SPACES))
