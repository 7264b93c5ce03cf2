"""Where the tokens of a text lie in it, and how they are shown: by its characters, not by those of a vocabulary."""

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

import regex
from transformers import PreTrainedTokenizerBase

UNFINISHED = "\ufffd"
"""What a tokenizer decodes bytes to that are only a part of a character."""
SPACES = ("Ġ", "▁")
"""Tokens of a space alone. A tokenizer that puts a space before a text says that it lies at the first character."""
_BYTE = regex.compile(r"<0x([0-9A-F]{2})>")
_MARKS = regex.compile(r"\p{M}*")

Offsets = list[tuple[int, int]]  # the first character of each token, and the one after its last


class TokenText(NamedTuple):
    """What is shown of a token: its characters, without white space around them, unless it is white space alone.

    Of the tokens of one character, the first has it, and the others are empty. A special token is shown as the
    vocabulary writes it.
    """

    place: int  # the character of the text that it begins with, white space left out
    name: str
    glued: bool  # no white space is between it and the token before it, and neither is special


def token_texts(text: str, offsets: Offsets, tokens: Sequence[str], special: Sequence[bool]) -> list[TokenText]:
    """What is shown of each token of a text; ``tokens`` are as the vocabulary writes them."""
    found, end, offsets = list[TokenText](), 0, _by_bytes(text, offsets, tokens)
    for i, (token, (start, after)) in enumerate(zip(tokens, offsets, strict=True)):
        first = end if text[end:start].isspace() else max(start, end)
        if (i + 1 == len(tokens) or offsets[i + 1][0] != after) and (marks := _MARKS.match(text, after)):
            after = marks.end()  # an accent that the tokenizer leaves out
        piece = text[first:after]
        letters = piece.lstrip()
        if token in SPACES and not special[i]:
            piece, letters = piece[: len(piece) - len(letters)], ""
        place = first + len(piece) - len(letters) if letters else start
        place += len(text[place:]) - len(text[place:].lstrip())
        glued = i > 0 and not (special[i - 1] or special[i] or text[end:first] or piece[:1].isspace())
        found.append(TokenText(place, token if special[i] else piece.strip() or piece, glued))
        end = max(end, first + len(piece))
    return found


def decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> tuple[str, Offsets]:
    """The text that tokens stand for, and where they lie in it, of a tokenizer that does not give offsets."""
    text, offsets, before, first = "", Offsets(), 0, 0
    for i in range(len(ids)):
        # A token is decoded after the one before it, since decoding strips the space from the first one.
        context, whole = (str(tokenizer.decode(list(ids[before:stop]))) for stop in (first, i + 1))
        if (whole == context or whole.endswith(UNFINISHED)) and i + 1 < len(ids):
            continue  # the token that finishes the character says which one it is
        if not whole.startswith(context):
            context, whole = "", str(tokenizer.decode(list(ids[first : i + 1])))
        start, text = len(text), text + whole[len(context) :]
        offsets += [(start, len(text))] * (i + 1 - first)
        before, first = first, i + 1
    return text, offsets


def _by_bytes(text: str, offsets: Offsets, tokens: Sequence[str]) -> Offsets:
    """The offsets where tokens are bytes of characters, such as ``<0xE4>``, and all have those of their whole run."""
    result = Offsets()
    of_tokens = [(offset, _BYTE.fullmatch(token)) for offset, token in zip(offsets, tokens, strict=True)]
    for (place, is_byte), run in groupby(of_tokens, lambda of: (of[0], of[1] is not None)):
        matches = [match for _, match in run]
        values = bytes(int(match[1], 16) for match in matches if match)
        if is_byte and values == text[slice(*place)].encode("utf-8", "surrogatepass"):
            begun = accumulate(value & 0xC0 != 0x80 for value in values)
            result += [(place[0] + count - 1, place[0] + count) for count in begun]
        else:
            result += [place] * len(matches)
    return result
