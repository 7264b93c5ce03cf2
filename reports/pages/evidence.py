"""The evidence of a red record, ready to draw: images, coloured words, expression trees or bars, each with a text."""

import base64
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from faithcheck.axioms.measure.record import Evidence, Record
from faithcheck.reports.pages import wording
from faithcheck.reports.pages.colours import NEGATIVE_RELEVANCE, POSITIVE_RELEVANCE

ROWS = 12
"""The most features in a table of numbers."""
LEAVES = 16
"""The most leaves of an expression that is drawn as a tree; a larger one is written out."""


@dataclass(frozen=True)
class Cell:
    """A feature of a map; ``strength`` is its value as a part of the largest one that is shown, in [−1, 1]."""

    name: str
    value: float
    strength: float

    @property
    def text(self) -> str:
        """The value in a few characters."""
        return wording.number(self.value, 3)


@dataclass(frozen=True)
class ShownMap:
    """A map: what it is of, its cells, its largest values in words, and, of an image, the address of the picture."""

    of: str
    cells: list[Cell]
    text: str
    image: str = ""


@dataclass(frozen=True)
class Node:
    """A part of an expression: its place, in leaves from the left and operations from the top; the cell of an input."""

    x: float
    y: int
    text: str
    leaf: Cell | None


@dataclass(frozen=True)
class Tree:
    """An expression as a formula, and as nodes and lines; none of those if it is too large to draw."""

    of: str
    text: str
    nodes: list[Node] = field(default_factory=list)
    lines: list[tuple[float, int, float, int]] = field(default_factory=list)

    @property
    def width(self) -> float:
        """In leaves."""
        return 1 + max((node.x for node in self.nodes), default=0)

    @property
    def height(self) -> int:
        """In operations."""
        return 1 + max((node.y for node in self.nodes), default=0)


@dataclass(frozen=True)
class Numbers:
    """The numbers of the features that differ most: a row for each, a column for each map."""

    columns: list[str]
    rows: list[tuple[str, list[Cell]]]
    note: str


@dataclass(frozen=True)
class Shown:
    """What a page shows of a red record's evidence."""

    layout: str  # ``images``, ``trees``, ``words`` or ``bars``
    maps: list[ShownMap]  # those that were compared, their difference, and the predicted one
    trees: list[Tree]  # the two expressions; none if there are none
    facts: list[tuple[str, str]]  # the sums and the gap, as labels and texts
    table: Numbers  # of the features that differ most
    positive: str = " ".join(map(str, POSITIVE_RELEVANCE))
    negative: str = " ".join(map(str, NEGATIVE_RELEVANCE))


def shown(record: Record) -> Shown | None:
    """What a page shows of a red record's evidence; None where it has none."""
    evidence = record.evidence
    if evidence is None or not evidence.maps:
        return None
    rows = list(_rows(evidence))
    length = len(rows[0][1])
    names = evidence.names if len(evidence.names) == length else [f"x{i + 1}" for i in range(length)]
    largest = max((abs(value) for _, values in rows for value in values), default=0.0)
    image = evidence.image
    is_image = len(image) == 2 and min(image) > 0 and math.prod(image) == length
    maps = [_map(of, values, names, largest, image[1] if is_image else 0) for of, values in rows]
    trees = [_tree(term, one) for term, one in zip(evidence.terms, maps, strict=False)]
    without_image = "trees" if len(trees) == 2 else "words" if evidence.names else "bars"
    layout = "images" if is_image else without_image
    return Shown(layout, maps, trees, _facts(record, evidence), _numbers(maps, names, evidence.features))


def _rows(evidence: Evidence) -> Iterator[tuple[str, list[float]]]:
    """The maps, with their difference and the predicted one, as far as they have one length."""
    maps = [(one.of, [_finite(value) for value in one.values]) for one in evidence.maps]
    length = len(maps[0][1])
    maps = [one for one in maps if len(one[1]) == length]
    yield from maps
    if len(maps) == 2:
        yield "the difference", [a - b for a, b in zip(maps[0][1], maps[1][1], strict=True)]
    if len(evidence.predicted) == length:
        yield "the predicted difference", [_finite(value) for value in evidence.predicted]


def _finite(value: float) -> float:
    """A number to draw; 0 for NaN and infinity."""
    return float(value) if math.isfinite(value) else 0.0


def _map(of: str, values: Sequence[float], names: Sequence[str], largest: float, width: int) -> ShownMap:
    """One map; of an image this many pixels wide, if the width is not 0."""
    cells = [Cell(name, value, value / largest if largest else 0.0) for name, value in zip(names, values, strict=True)]
    first = sorted(cells, key=lambda cell: -abs(cell.value))[:3]
    said = ", ".join(f"{cell.name} {cell.text}" for cell in first)
    more = f"; {len(cells) - 3} others are smaller" if len(cells) > 3 else ""
    image = _png([cell.strength for cell in cells], width) if width else ""
    return ShownMap(of, cells, f"{of}: {said}{more}", image)


def _facts(record: Record, evidence: Evidence) -> list[tuple[str, str]]:
    facts = [(name, wording.number(value, 4)) for name, value in evidence.figures.items()]
    if record.gap is not None and record.tol is not None and record.tol > 0:
        times = f"{wording.number(record.gap / record.tol)} × the tolerance of {wording.number(record.tol)}"
        facts.append(("gap", f"{wording.number(record.gap, 3)}, {times}"))
    if evidence.examples > 1:
        facts.append(("example", f"{evidence.example + 1} of {evidence.examples}, the one that differs most"))
    return facts


def _numbers(maps: Sequence[ShownMap], names: Sequence[str], features: int) -> Numbers:
    decisive = maps[2 if len(maps) > 2 else 0].cells
    chosen = sorted(sorted(range(len(names)), key=lambda i: -abs(decisive[i].value))[:ROWS])
    note = f"{len(chosen)} of {features} features, those with the largest numbers" if len(chosen) < features else ""
    if len(names) < features:
        note += f"; the document keeps the first {len(names)}"
    rows = [(names[i], [one.cells[i] for one in maps]) for i in chosen]
    return Numbers([one.of for one in maps], rows, note)


# --- expression trees ------------------------------------------------------------------------------------------------


def _tree(term: object, of: ShownMap) -> Tree:
    """A term as points and lines to draw, with the relevance of each input below its leaf."""
    relevance = {cell.name: cell for cell in of.cells}
    nodes: list[Node] = []
    lines: list[tuple[float, int, float, int]] = []
    leaves = iter(range(10**6))

    def place(part: object, depth: int) -> float:
        if not isinstance(part, list) or not part:
            x = float(next(leaves))
            nodes.append(Node(x, depth, str(part), relevance.get(str(part))))
            return x
        below = [place(operand, depth + 1) for operand in part[1:]] or [float(next(leaves))]
        x = sum(below) / len(below)
        lines.extend((x, depth, child, depth + 1) for child in below)
        nodes.append(Node(x, depth, "·" if part[0] == "*" else str(part[0]), None))
        return x

    text = _written(term)
    if _depth(term) <= LEAVES:
        place(term, 0)
    drawn = 0 < sum(node.leaf is not None for node in nodes) <= LEAVES
    return Tree(of.of, text, nodes, lines) if drawn else Tree(of.of, text)


def _depth(term: object) -> int:
    """How deep a term is nested; it comes from a file."""
    depth, level = 0, [term]
    while level := [part for one in level if isinstance(one, list) for part in one]:
        depth += 1
    return depth


def _written(term: object) -> str:
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
