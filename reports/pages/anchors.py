"""The ids of a page's elements: links and the elements that they lead to derive them by this one function."""

from __future__ import annotations

import re
from typing import Any

from faithcheck.reports.pages.visible import visible
from faithcheck.reports.results import Json


def of_record(record: Json) -> str:
    """The id of a record's cell in the report: ``record-invariance/attnlrp-product.x1x2x3``."""
    return f"record-{anchor(record['id'])}"


def anchor(name: Any) -> str:
    """The name as the id of an element; different names give different ones.

    It stands as it is in an ``id`` and after the ``#`` of a link: a character with a meaning in HTML or in an address
    is written as its code, ``~20~`` for a blank.
    """
    return re.sub(r"[^A-Za-z0-9._/-]", lambda found: f"~{ord(found[0]):x}~", visible(str(name)))
