"""The shape of a JSON document as plain data, and the first place where a document has another one.

A shape is a type; a tuple of alternatives; a set of the strings allowed; ``[shape]``, a list of such items; a mapping
from keys to shapes, in which a key that ends in ``?`` may be missing and further keys are allowed; or
``{...: shape}``, a mapping from any keys to such values.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Shape: TypeAlias = Any

NOT_FINITE = frozenset({"nan", "inf", "-inf"})
"""How a document writes numbers that JSON does not have, see `faithcheck.reports.results.plain`."""
NUMBER = (int, float, NOT_FINITE, None)
"""A figure that may be undefined."""

_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
}


def mismatch(value: object, shape: Shape, where: str = "") -> str | None:
    """A sentence on the first place where the value has another shape, such as ``records[2].gap is a list, …``."""
    if isinstance(shape, dict) and isinstance(value, dict):
        return _in_mapping(value, shape, where)
    if isinstance(shape, list) and isinstance(value, list):
        found = (mismatch(item, shape[0], f"{where}[{i}]") for i, item in enumerate(value))
        return next(filter(None, found), None)
    if any(_fits(value, one) for one in (shape if isinstance(shape, tuple) else (shape,))):
        return None
    got = repr(value) if isinstance(value, str) and len(value) < 40 else _name(value)
    return f"{where or 'the document'} is {got}, not {_described(shape)}"


def _in_mapping(value: dict[str, Any], shape: dict[Any, Shape], where: str) -> str | None:
    if ... in shape:
        shape = dict.fromkeys(value, shape[...])
    for key, expected in shape.items():
        name = key.removesuffix("?")
        place = f"{where}.{name}" if where else name
        if name in value:
            if (found := mismatch(value[name], expected, place)) is not None:
                return found
        elif name == key:
            return f"{place} is missing"
    return None


def _fits(value: object, shape: Shape) -> bool:
    if shape is None:
        return value is None
    if isinstance(shape, frozenset):
        return isinstance(value, str) and value in shape
    if isinstance(shape, type):
        return isinstance(value, shape) and (shape in (bool, object) or not isinstance(value, bool))
    return False


def _described(shape: Shape) -> str:
    if isinstance(shape, tuple):
        return " or ".join(map(_described, shape))
    if isinstance(shape, frozenset):
        return " or ".join(map(repr, sorted(shape)))
    return "null" if shape is None else _NAMES[shape if isinstance(shape, type) else type(shape)]


def _name(value: object) -> str:
    return "null" if value is None else _NAMES[type(value)]
