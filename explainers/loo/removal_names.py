"""The names of the removals, for the command line: nothing here imports torch, which takes seconds."""

import ast
from functools import cache
from pathlib import Path


@cache
def removal_names() -> tuple[str, ...]:
    """The names of all removals, in alphabetical order: the ``names`` that the classes of ``removal.py`` state."""
    found: list[str] = []
    for node in ast.walk(ast.parse(Path(__file__).with_name("removal.py").read_text(encoding="utf-8"))):
        match node:
            case ast.Assign(targets=[ast.Name(id="names")], value=value):
                found += ast.literal_eval(value)
    return tuple(sorted(found))
