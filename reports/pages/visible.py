"""Text from outside, such as names, messages and tokens, made safe to show: what acts unseen is written out.

A control character moves a terminal's cursor or changes its colours, a bidi control reorders the text around it, and
half of a surrogate pair cannot be encoded. Every text that a terminal or a page shows goes through `visible`.
"""

import dataclasses
import re
import unicodedata
from typing import Any

import msgspec

_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of controls, format characters, surrogates, and separators of lines and paragraphs."""
_UNUSUAL = re.compile(r"[^ -~\n\t]")
_JOINERS = "\u200c\u200d"
"""Format characters that belong to words of Persian and Indic scripts, and to emoji."""


def visible(content: Any) -> Any:
    r"""The same content, in which characters that act unseen are written as Python writes them: ``\x1b``, ``\u202e``.

    Line breaks and tabs stay. Texts and keys in lists, tuples, mappings, structs and data classes are rewritten too.
    """
    if isinstance(content, str):
        return _UNUSUAL.sub(lambda found: _shown(found[0]), content)
    if isinstance(content, dict):
        return {visible(key): visible(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        rewritten = map(visible, content)
        return type(content)(*rewritten) if hasattr(content, "_fields") else type(content)(rewritten)
    if isinstance(content, msgspec.Struct):
        return msgspec.structs.replace(content, **visible(msgspec.structs.asdict(content)))
    if dataclasses.is_dataclass(content) and not isinstance(content, type):
        fields = {field.name: getattr(content, field.name) for field in dataclasses.fields(content)}
        return dataclasses.replace(content, **visible(fields))
    return content


def _shown(character: str) -> str:
    acts = unicodedata.category(character) in _UNSEEN and character not in _JOINERS
    return ascii(character)[1:-1] if acts else character


def anchor(name: str) -> str:
    """The name as the id of an element; different names give different ones. Links and their targets derive it so.

    It stands as it is in an ``id`` and after the ``#`` of a link: a character with a meaning in HTML or in an address
    is written as its code, ``~20~`` for a blank.
    """
    return re.sub(r"[^A-Za-z0-9._/-]", lambda found: f"~{ord(found[0]):x}~", visible(name))


def record_anchor(record_id: str) -> str:
    """The id of a record's cell in the report: ``record-invariance/attnlrp-product.x1x2x3``."""
    return f"record-{anchor(record_id)}"
