"""The evidence of a red record, ready to draw: images, coloured words, expression trees or bars, each with a text."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from faithcheck.reports.pages import wording
from faithcheck.reports.pages.colours import NEGATIVE_RELEVANCE, POSITIVE_RELEVANCE
from faithcheck.reports.results import Json

ROWS = 12
"""The most features in a table of numbers."""
LEAVES = 16
"""The most leaves of an expression that is drawn as a tree; a larger one is written out."""


def view(record: Json) -> Json | None:
    """What a page shows of a red record's evidence; None where it has none."""
    evidence = record.get("evidence")
    if not evidence or not evidence["maps"]:
        return None
    rows = list(_rows(evidence))
    names = _names(evidence, len(rows[0][1]))
    largest = max((abs(value) for _, values in rows for value in values), default=0.0)
    maps = [_map(of, values, names, largest) for of, values in rows]
    trees = [_tree(term, shown) for term, shown in zip(evidence.get("terms", []), maps, strict=False)]
    image = evidence.get("image", [])
    if len(image) == 2 and min(image) > 0 and math.prod(image) == len(names):
        layout = "images"
        for shown in maps:
            shown["image"] = _png([cell["strength"] for cell in shown["cells"]], columns=image[1])
    elif len(trees) == 2:
        layout = "trees"
    else:
        layout = "words" if evidence.get("names") else "bars"
    return {
        "layout": layout,
        "maps": maps,
        "trees": trees,
        "facts": _facts(record, evidence),
        "table": _table(maps, names, evidence["features"]),
        "positive": " ".join(map(str, POSITIVE_RELEVANCE)),
        "negative": " ".join(map(str, NEGATIVE_RELEVANCE)),
    }


def _rows(evidence: Json) -> Iterator[tuple[str, list[float]]]:
    """The maps, with their difference and the predicted one, as far as they have one length."""
    maps = [(one["of"], [_finite(value) for value in one["values"]]) for one in evidence["maps"]]
    length = len(maps[0][1])
    maps = [one for one in maps if len(one[1]) == length]
    yield from maps
    if len(maps) == 2:
        yield "the difference", [a - b for a, b in zip(maps[0][1], maps[1][1], strict=True)]
    if len(predicted := evidence.get("predicted", [])) == length:
        yield "the predicted difference", [_finite(value) for value in predicted]


def _finite(value: object) -> float:
    """A number to draw; 0 for what is none."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _names(evidence: Json, length: int) -> list[str]:
    names = evidence.get("names", [])
    return names if len(names) == length else [f"x{i + 1}" for i in range(length)]


def _map(of: str, values: Sequence[float], names: Sequence[str], largest: float) -> Json:
    """One map; ``strength`` is a value as a part of the largest one that is shown, in [−1, 1]."""
    cells: list[Json] = [
        {
            "name": name,
            "text": wording.number(value, 3),
            "value": value,
            "strength": value / largest if largest else 0.0,
        }
        for name, value in zip(names, values, strict=True)
    ]
    first = sorted(cells, key=lambda cell: -abs(cell["value"]))[:3]
    said = ", ".join(f"{cell['name']} {cell['text']}" for cell in first)
    more = f"; {len(cells) - 3} others are smaller" if len(cells) > 3 else ""
    return {"of": of, "cells": cells, "text": f"{of}: {said}{more}"}


def _facts(record: Json, evidence: Json) -> list[tuple[str, str]]:
    """The sums and the gap, in words."""
    facts = [(name, wording.number(value, 4)) for name, value in evidence.get("figures", {}).items()]
    gap, tol = record["gap"], record["tol"]
    if isinstance(gap, int | float) and isinstance(tol, int | float) and tol > 0:
        size = f"{wording.number(gap, 3)}, {wording.number(gap / tol)} × the tolerance of {wording.number(tol)}"
        facts.append(("gap", size))
    if evidence["examples"] > 1:
        facts.append(("example", f"{evidence['example'] + 1} of {evidence['examples']}, the one that differs most"))
    return facts


def _table(maps: Sequence[Json], names: Sequence[str], features: int) -> Json:
    """The numbers of the features that differ most: ``columns``, ``rows`` and a ``note`` on what is left out."""
    decisive = maps[2 if len(maps) > 2 else 0]["cells"]
    chosen = sorted(sorted(range(len(names)), key=lambda i: -abs(decisive[i]["value"]))[:ROWS])
    note = f"{len(chosen)} of {features} features, those with the largest numbers" if len(chosen) < features else ""
    if len(names) < features:
        note += f"; the document keeps the first {len(names)}"
    return {
        "columns": [shown["of"] for shown in maps],
        "rows": [(names[i], [shown["cells"][i] for shown in maps]) for i in chosen],
        "note": note,
    }


# --- expression trees ------------------------------------------------------------------------------------------------


def _tree(term: Any, shown: Json) -> Json:
    """A term as points and lines to draw, with the relevance of each input below its leaf.

    Points are in units of leaves from the left and of operations from the top.
    """
    relevance = {cell["name"]: cell for cell in shown["cells"]}
    nodes: list[Json] = []
    lines: list[tuple[float, float, float, float]] = []
    leaves = iter(range(10**6))

    def place(part: Any, depth: int) -> float:
        if not isinstance(part, list) or not part:
            x = float(next(leaves))
            name = str(part)
            nodes.append({"x": x, "y": depth, "text": name, "leaf": relevance.get(name)})
            return x
        below = [place(operand, depth + 1) for operand in part[1:]] or [float(next(leaves))]
        x = sum(below) / len(below)
        lines.extend((x, depth, child, depth + 1) for child in below)
        nodes.append({"x": x, "y": depth, "text": "·" if part[0] == "*" else str(part[0]), "leaf": None})
        return x

    text = _written(term)
    if _depth(term) <= LEAVES:
        place(term, 0)
    drawn = 0 < sum(node["leaf"] is not None for node in nodes) <= LEAVES
    return {
        "of": shown["of"],
        "nodes": nodes if drawn else [],
        "lines": lines if drawn else [],
        "width": 1 + max((node["x"] for node in nodes), default=0),
        "height": 1 + max((node["y"] for node in nodes), default=0),
        "text": text,
    }


def _depth(term: Any) -> int:
    """How deep a term is nested; it comes from a file."""
    depth, level = 0, [term]
    while level := [part for one in level if isinstance(one, list) for part in one]:
        depth += 1
    return depth


def _written(term: Any) -> str:
    """A term as a formula, ``x1·(x2·x3)``; of one that is nested too deeply its length."""
    if _depth(term) > LEAVES:
        return "an expression that is nested too deeply to be drawn"
    if not isinstance(term, list) or not term:
        return str(term)
    operands = [_written(operand) for operand in term[1:]]
    if len(operands) == 2 and term[0] in ("*", "+", "-"):
        sign = "·" if term[0] == "*" else f" {term[0]} "
        binary = (isinstance(part, list) and len(part) == 3 for part in term[1:])
        return sign.join(f"({text})" if within else text for text, within in zip(operands, binary, strict=True))
    return f"{term[0]}({', '.join(operands)})"


# --- images ----------------------------------------------------------------------------------------------------------


def _png(strengths: Sequence[float], columns: int) -> str:
    """An image of a map as the address of a picture: white for 0, red for and blue against the output."""
    pixels = [bytes(_colour(strength)) for strength in strengths]
    lines = [b"\0" + b"".join(pixels[i : i + columns]) for i in range(0, len(pixels), columns)]

    def part(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", columns, len(lines), 8, 2, 0, 0, 0)  # 8 bits of red, green and blue
    content = part(b"IHDR", header) + part(b"IDAT", zlib.compress(b"".join(lines))) + part(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + content).decode()


def _colour(strength: float) -> list[int]:
    full = POSITIVE_RELEVANCE if strength > 0 else NEGATIVE_RELEVANCE
    return [round(255 + abs(strength) * (channel - 255)) for channel in full]
