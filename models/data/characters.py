"""Which strings are texts: a tokenizer takes whole characters alone."""

from __future__ import annotations


def has_half_a_character(text: str) -> bool:
    """Whether a string has half of a surrogate pair: from JSON's escape, or a byte of the command line not in UTF-8."""
    return any("\ud800" <= character <= "\udfff" for character in text)
