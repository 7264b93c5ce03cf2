"""The words, sentences, lines and paragraphs of a text, and which of them each token belongs to.

Words and sentences are those of Unicode, UAX #29: a word is what lies between two word boundaries and is not white
space, a sentence what lies between two sentence boundaries. Sentences follow more than the default rules, as UAX #29
allows: no sentence ends at the full stop of an abbreviation (`ABBREVIATIONS`) or of single letters, as in initials, and
an opening bracket begins one, as in 。「. A paragraph ends at a blank line.

UAX #29 finds no words in scripts that write them without spaces, see `without_words`: there a character is a word.

A token belongs to the part in which its first character lies that is not white space; white space alone to the part
that follows. A special token is a part of its own at every level, as it is no part of the text.
"""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence

import regex

LEVELS = ("word", "sentence", "line", "paragraph")
"""The parts of a text, the smallest first."""

ABBREVIATIONS = frozenset("mr mrs ms dr prof st jr sr vs etc cf no vol fig eq approx inc ltd co".split())
"""Words, in lower case and without their last full stop, after which a sentence does not end."""

SCRIPTS_WITHOUT_SPACES = (
    *("Han", "Hiragana", "Thai", "Lao", "Khmer", "Myanmar", "Tai Le", "New Tai Lue", "Tai Tham", "Tai Viet", "Ahom"),
)
"""Scripts whose words only a dictionary finds; Katakana is not among them, since a run of it is a word in UAX #29."""

_BLANK_LINE = regex.compile(r"\n[^\S\n]*\n\s*")
_END_OF_WORD = regex.compile(r"(?w)\b")
_END_OF_SENTENCE = regex.compile(
    r"""(?x)  # the rules SB3 to SB11 of UAX #29, by the names of the values of the property Sentence_Break
    (?: \p{SB=AT} (?&ignored)
        (?! \p{SB=NU} )                                                                 # SB6
        (?! (?<= [\p{SB=UP}\p{SB=LO}] [\p{SB=EX}\p{SB=FO}]* \p{SB=AT} ) \p{SB=UP} )      # SB7
        (?&closing)
        (?! [^\p{SB=LE}\p{SB=UP}\p{SB=LO}\p{SB=SE}\p{SB=CR}\p{SB=LF}\p{SB=ST}\p{SB=AT}]*+ \p{SB=LO} )  # SB8
      | \p{SB=ST} (?&ignored) (?&closing)
    )
    (?! [\p{SB=SC}\p{SB=ST}\p{SB=AT}] ) (?&line)?                                      # SB8a to SB11
    | (?&line)                                                                         # SB4
    (?(DEFINE)
        (?<ignored> [\p{SB=EX}\p{SB=FO}]*+ )
        (?<closing> (?: (?!\p{Ps}) \p{SB=CL} (?&ignored) )*+ (?: \p{SB=SP} (?&ignored) )*+ )
        (?<line> \r\n | [\p{SB=SE}\p{SB=CR}\p{SB=LF}] )
    )"""
)
_LAST_WORD = regex.compile(r"\w+(?:\.\w+)*$")
_SINGLE_LETTERS = regex.compile(r"[^\W\d_](?:\.[^\W\d_])*")


def without_words(text: str) -> list[str]:
    """The scripts of a text in which Unicode finds no words without a dictionary."""
    return [script for script in SCRIPTS_WITHOUT_SPACES if regex.search(rf"\p{{Script={script}}}", text)]


def segments(
    text: str, places: Sequence[int], special: Sequence[bool], level: str, breaks: Sequence[int] = ()
) -> list[int]:
    """Which part of a text each token belongs to at a level of `LEVELS`: numbers 0, 1, … in the order of the tokens.

    ``places`` is the first character of each token that is not white space, ``special`` whether it is special, and
    ``breaks`` are characters that begin a part at every level, such as the messages of a chat.
    """
    if level not in LEVELS:
        raise ValueError(f"unknown level {level!r}: choose {', '.join(LEVELS)}")
    starts = sorted({*_STARTS[level](text), *breaks})
    return numbered([bisect_right(starts, place) for place in places], special)


def numbered(keys: Sequence[Hashable], special: Sequence[bool]) -> list[int]:
    """A number for each key, in the order of the tokens, and for each special token one of its own."""
    numbers: dict[tuple[bool, Hashable], int] = {}
    return [
        numbers.setdefault((is_special, i if is_special else key), len(numbers))
        for i, (key, is_special) in enumerate(zip(keys, special, strict=True))
    ]


def _paragraphs(text: str) -> list[int]:
    """The first characters of the paragraphs."""
    return [0, *(match.end() for match in _BLANK_LINE.finditer(text))]


def _sentences(text: str) -> list[int]:
    """The first characters of the sentences; a paragraph begins one."""
    ends = (match for match in _END_OF_SENTENCE.finditer(text) if not _is_abbreviation(text, match))
    return sorted({*_paragraphs(text), *(match.end() for match in ends)})


def _is_abbreviation(text: str, end: regex.Match[str]) -> bool:
    """Whether a full stop ends an abbreviation or single letters, and no sentence; "I" is a word."""
    word = _LAST_WORD.search(text, max(0, end.start() - 20), end.start())
    if end.group().rstrip(" \t") != "." or word is None:
        return False
    letters = word.group().lower()
    return letters in ABBREVIATIONS or (letters != "i" and _SINGLE_LETTERS.fullmatch(letters) is not None)


def _words(text: str) -> list[int]:
    """The first characters of the words."""
    return [match.start() for match in _END_OF_WORD.finditer(text) if text[match.start() :][:1].strip()]


_STARTS: dict[str, Callable[[str], list[int]]] = {
    "word": _words,
    "sentence": _sentences,
    "line": lambda text: [0, *(match.end() for match in regex.finditer("\n", text))],
    "paragraph": _paragraphs,
}
