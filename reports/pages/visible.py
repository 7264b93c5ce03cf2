"""Text from outside, such as names, messages and tokens, made safe to show: what acts unseen is written out.

A control character moves a terminal's cursor or changes its colours, a bidi control reorders the text around it, and
half of a surrogate pair cannot be encoded. Every text that a terminal or a page shows goes through `visible`.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from msgspec import Struct

_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of controls, format characters, surrogates, and separators of lines and paragraphs."""
_UNUSUAL = re.compile(r"[^ -~\n\t]")
_JOINERS = "\u200c\u200d"
"""Format characters that belong to words of Persian and Indic scripts, and to emoji."""


def visible(content: Any) -> Any:
    r"""The same content, in which characters that act unseen are written as Python writes them: ``\x1b``, ``\u202e``.

    Line breaks and tabs stay.

    Args:
        content: text, or a document or view of structs, lists, tuples and mappings, whose texts and keys are
            rewritten; any other value stays as it is.
    """
    if isinstance(content, str):
        return _UNUSUAL.sub(lambda found: _shown(found[0]), content)
    if isinstance(content, dict):
        return {visible(key): visible(value) for key, value in content.items()}
    if isinstance(content, Struct):
        return type(content)(**{name: visible(getattr(content, name)) for name in content.__struct_fields__})
    if isinstance(content, list | tuple):
        return type(content)(map(visible, content))
    return content


def _shown(character: str) -> str:
    acts = unicodedata.category(character) in _UNSEEN and character not in _JOINERS
    return ascii(character)[1:-1] if acts else character
