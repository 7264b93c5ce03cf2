"""``-m``: the marker expression of pytest, which names the axioms of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable

from faithcheck.models.unknown_name import unknown_name
from faithcheck.options import OptionError


def check_markers(expression: str, registered: Iterable[str]) -> None:
    """Refuse an expression with an unknown marker: pytest would select no test and say nothing.

    Raises:
        OptionError: names the marker.
    """
    known = set(registered)
    for name in marker_names(expression):
        if name not in known:
            raise OptionError(f"-m {expression!r}: {unknown_name('marker', name, known)}")


def marker_names(expression: str) -> list[str]:
    """The names of the markers in an expression, without the arguments of ``marker(key=value)``."""
    without_arguments = re.sub(r"\([^()]*=[^()]*\)", "", expression)
    return [
        name
        for name in re.findall(r"[A-Za-z_][\w.\-]*", without_arguments)
        if name not in {"and", "or", "not", "True", "False", "None"}
    ]
