"""The message for an unknown name, with the nearest known names: "did you mean …?"."""

import difflib
import re
from collections.abc import Iterable


def unknown_name(kind: str, name: str, known: Iterable[str], groups: Iterable[str] = ()) -> str:
    """The message for an unknown name of some kind: the nearest known names; if none is near, their groups or all."""
    known = sorted(known)
    near = nearest(name, known)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(groups or known)}"
    return f"unknown {kind} {name!r}: {hint}"


def families(names: Iterable[str]) -> list[str]:
    """The families of pairs as globs, ``product.*``; any other name as it is."""
    return sorted({re.sub(r"\..*", ".*", name) for name in names})


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names that a wrong one may have meant, the nearest first; at most three."""
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
