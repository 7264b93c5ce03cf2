"""A record: one measurement, settled, in plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from faithcheck.axioms.measure.statuses import PASSING


@dataclass(frozen=True)
class Record:
    """One measurement, settled; plain values only.

    Attributes:
        id: ``axiom/explainer-subject``.
        axiom: its name.
        explainer: its name; None where the pair itself is measured.
        subject: the pair, or with ``.f`` or ``.g`` one of its models.
        gap: relative size of the violation; None where there was nothing to measure.
        tol: the largest gap that round-off explains.
        predicted: the gap that the closed form predicts, on the same scale.
        prediction_error: how far the measured values are from the closed form, relative.
        floor: the least gap of an expected violation without a closed form.
        ceiling: the largest gap of such a violation, or of an axiom that is expected to hold up to it.
        expected: ``HOLDS``, ``VIOLATES``, ``UNCLAIMED`` or ``ERROR``.
        status: how it settled: the label of a `faithcheck.axioms.measure.statuses.Status`.
        why: the reason for the expectation.
        cite: its source.
        seed: the seed of pair and case.
        detail: further figures.
        traceback: the explainer's own, where it raised.
        rules: the operations that LRP computed by its rules.
        reused: whether what was measured on f for another check was used again; equal records may differ in it.
        seconds: how long the check took, including what it built for later ones; equal records may differ in it.
        evidence: what a red check compared, see `faithcheck.axioms.measure.evidence`; None where there is nothing.
    """

    id: str
    axiom: str
    explainer: str | None
    subject: str
    gap: float | None
    tol: float | None
    predicted: float | None
    prediction_error: float | None
    floor: float | None
    expected: str
    status: str
    why: str
    cite: str
    seed: int
    detail: dict[str, object] = field(default_factory=dict)
    traceback: str | None = None
    ceiling: float | None = None
    rules: tuple[str, ...] = ()
    reused: bool = field(default=False, compare=False)
    seconds: float | None = field(default=None, compare=False)
    evidence: dict[str, Any] | None = None

    @property
    def passed(self) -> bool:
        """Whether the check is green."""
        return self.status in PASSING

    def to_json(self) -> dict[str, Any]:
        """The record as JSON's types; without the key ``evidence`` where there is none."""
        content = asdict(self)
        return content if self.evidence else {key: value for key, value in content.items() if key != "evidence"}
