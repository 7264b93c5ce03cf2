"""The words, sentences and paragraphs of a text, and which of them each token belongs to.

The rules, from the largest to the smallest; each part lies within a larger one:

* A *paragraph* ends at a blank line.
* A *sentence* ends at a full stop, an exclamation or question mark or an ellipsis, with the marks right after it and
  closing quotes and brackets, where white space follows. It does not end at the full stop of an abbreviation
  (`ABBREVIATIONS`) or of single letters, as in initials and in U.S.
* A *word* is a run of letters and digits, which may hold apostrophes, hyphens and full stops between them; every other
  character that is not white space is a word of its own.

A token belongs to the part in which its first character lies that is not white space. A special token is a part of its
own at every level, as it is no part of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

LEVELS = ("word", "sentence", "paragraph")
"""The parts of a text, the smallest first."""

ABBREVIATIONS = frozenset("mr mrs ms dr prof st jr sr vs etc cf no vol fig eq approx inc ltd co".split())
"""Words, in lower case and without their last full stop, after which a sentence does not end."""

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_END_OF_SENTENCE = re.compile(r"[.!?…]+(?:[ \t]*[.!?…])*[\"'”’)\]]*(?=\s)\s*")
_WORD = re.compile(r"\w+(?:['’.\-]\w+)*|[^\w\s]")
_LAST_WORD = re.compile(r"\w+(?:\.\w+)*$")
_SINGLE_LETTERS = re.compile(r"[^\W\d_](?:\.[^\W\d_])*")


def segments_by_level(text: str, offsets: Sequence[tuple[int, int]], special: Sequence[bool]) -> dict[str, Tensor]:
    """`segments` at every level, int64 ``(tokens,)``."""
    return {level: torch.tensor(segments(text, offsets, special, level), dtype=torch.int64) for level in LEVELS}


def segments(text: str, offsets: Sequence[tuple[int, int]], special: Sequence[bool], level: str) -> list[int]:
    """Which part of a text each token belongs to: numbers 0, 1, … in the order of the tokens.

    Args:
        text: the text.
        offsets: the first character and the one after the last of each token, as a tokenizer gives them.
        special: whether each token is special.
        level: "word", "sentence" or "paragraph".

    Raises:
        ValueError: an unknown level.
    """
    if level not in LEVELS:
        raise ValueError(f"unknown level {level!r}: choose word, sentence or paragraph")
    starts = _STARTS[level](text)
    numbers: dict[tuple[bool, int], int] = {}
    result = []
    for i, ((start, end), is_special) in enumerate(zip(offsets, special, strict=True)):
        blank = len(text[start:end]) - len(text[start:end].lstrip())
        part = (True, i) if is_special else (False, bisect_right(starts, start + blank))
        result.append(numbers.setdefault(part, len(numbers)))
    return result


def _paragraphs(text: str) -> list[int]:
    """The first characters of the paragraphs."""
    return [0, *(match.end() for match in _BLANK_LINE.finditer(text))]


def _sentences(text: str) -> list[int]:
    """The first characters of the sentences; a paragraph begins one."""
    ends = (match for match in _END_OF_SENTENCE.finditer(text) if not _is_abbreviation(text, match))
    return sorted({*_paragraphs(text), *(match.end() for match in ends)})


def _is_abbreviation(text: str, end: re.Match[str]) -> bool:
    """Whether a full stop ends an abbreviation or single letters, and no sentence; "I" is a word."""
    word = _LAST_WORD.search(text, max(0, end.start() - 20), end.start())
    if end.group().rstrip() != "." or word is None:
        return False
    letters = word.group().lower()
    return letters in ABBREVIATIONS or (letters != "i" and _SINGLE_LETTERS.fullmatch(letters) is not None)


def _words(text: str) -> list[int]:
    """The first characters of the words."""
    return [match.start() for match in _WORD.finditer(text)]


_STARTS: dict[str, Callable[[str], list[int]]] = {
    "word": _words,
    "sentence": _sentences,
    "paragraph": _paragraphs,
}
