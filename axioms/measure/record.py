"""A record: one measurement, settled. This module imports no torch, so that pages are made from a document at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, to_builtins
from msgspec.structs import asdict, replace

from faithcheck.axioms.measure.error_text import encodable
from faithcheck.axioms.measure.statuses import PASSING, Group, group_of

if TYPE_CHECKING:
    Number: TypeAlias = float
else:
    from numbers import Real as Number  # msgspec hands values of a type that it does not know to a function
"""A figure, which may be NaN or infinite. JSON has no such numbers: a document says ``"nan"``, ``"inf"``, ``"-inf"``.
One that may be undefined is ``Number | None``."""


NOT_COMPARED = {"reused": False, "seconds": None}
"""What two records of one measurement may differ in."""


class AttributionMap(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The map of one example."""

    of: str  # such as "the map of f"
    values: list[Number]  # an attribution for each feature


class Relation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The simplest way in which the first side follows from the second on every example.

    ``kind`` is ``zero``; ``mistake`` (``of`` names it); ``place`` (the two differ at ``of`` alone); ``factor``
    (``value``); ``offset`` (``value``); ``absolute``, ``positive`` (the first is the absolute value, or the positive
    part); ``factor of each example``; ``sum`` (the first is a sum, and ``value`` on every example); ``shifted`` (by
    ``value`` features); ``order`` (the same numbers in another order); ``example`` (one map on every example).
    """

    kind: str
    first: str
    second: str
    of: str = ""
    value: Number | None = None


class Evidence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a red check compared, on the example that differs most."""

    example: int  # its place in the batch
    examples: int  # how many were compared
    features: int  # how many a map has; the record keeps the first of them
    maps: list[AttributionMap]  # those compared, or the one whose sum was
    predicted: list[Number] = []  # the difference, by the closed form; empty without one
    figures: dict[str, Number] = {}  # further numbers by name, such as the two sums
    terms: list[object] = []  # the two expressions that were explained, as JSON; empty if they are none
    names: list[str] = []  # of the features; empty if they have none
    image: list[int] = []  # height and width, if the features are pixels
    relation: Relation | None = None  # of the two sides; None if it is not simple


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True, eq=False):
    """One measurement, settled. Two records are equal if they differ in nothing but ``reused`` and ``seconds``.

    Attributes:
        id: ``axiom/explainer-subject``.
        explainer: None where the pair itself is measured.
        subject: the pair, or with ``.f`` or ``.g`` one of its models.
        gap: relative size of the violation; None where there was nothing to measure.
        tol: the largest gap that round-off explains.
        predicted: the gap that the closed form predicts, on the same scale.
        prediction_error: how far the measured values are from the closed form, relative.
        floor: the least gap of an expected violation without a closed form.
        expected: ``HOLDS``, ``VIOLATES``, ``UNCLAIMED`` or ``ERROR``.
        status: how it settled: the label of a `faithcheck.axioms.measure.statuses.Status`.
        why: the reason for the expectation.
        cite: its source.
        detail: further figures, texts and numbers, by name.
        ceiling: the largest gap of a violation without a closed form, or of an axiom that holds up to it.
        rules: the operations that LRP computed by its rules; a document has them once for all records.
        reused: whether what was measured on f for another check was used again; no document holds it.
        seconds: how long the check took, including what it built for later ones; no document holds it.
        evidence: what a red check compared; None where there is nothing.
        degenerate: in which way all maps of a check that holds are degenerate, so that it says little: ``zero``,
            ``constant``, ``one-hot``, or several joined by "or"; empty if they are not.
    """

    id: str
    axiom: str
    explainer: str | None
    subject: str
    gap: Number | None
    tol: Number | None
    predicted: Number | None
    prediction_error: Number | None
    floor: Number | None
    expected: str
    status: str
    why: str
    cite: str
    seed: int
    detail: dict[str, object]
    traceback: str | None
    ceiling: Number | None = None
    rules: tuple[str, ...] = ()
    reused: bool = False
    seconds: float | None = None
    evidence: Evidence | None = None
    degenerate: str = ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return asdict(self) | NOT_COMPARED == asdict(other) | NOT_COMPARED

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def group(self) -> Group:
        """The group of its status. A status that this version does not know counts as red."""
        return group_of(self.status)

    @property
    def passed(self) -> bool:
        """Whether the check is green."""
        return self.status in PASSING

    @property
    def pair(self) -> str:
        """The pair of the subject, without the side of a model, ``.f`` or ``.g``."""
        return self.subject[:-2] if self.subject.endswith((".f", ".g")) else self.subject

    @property
    def family(self) -> str:
        """The part of the subject's name before the first dot: ``product`` of ``product.x1x2x3``."""
        return self.subject.partition(".")[0]

    def as_measured(self) -> Record:
        """The record without what two runs of one check may differ in, and what a document holds once for all."""
        return replace(self, rules=(), reused=False, seconds=None)


def to_json(value: object) -> Any:
    """The value in the types of JSON alone, which pytest-xdist can transport too.

    Structs become mappings. Numbers that are not finite become ``"nan"``, ``"inf"`` and ``"-inf"``: null would hide
    them. Strings become ``str`` without lone surrogates, NumPy's scalars and tensors of one element Python's numbers.
    """
    if isinstance(value, Struct):
        value = to_builtins(value, enc_hook=to_json)
    if isinstance(value, Mapping):
        return {to_json(str(key)): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(item) for item in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, int):
        return int(value)
    if hasattr(value, "item") and not isinstance(value, float):
        return to_json(value.item())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    return encodable(str(value))
