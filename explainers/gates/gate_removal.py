"""What all gates have in common: the removal that they estimate, the axioms that they claim, the length of a text."""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import Tensor

from faithcheck.explainers.loo.removal import default_removal
from faithcheck.models.case import Case

GateRemoval: TypeAlias = Literal["attention_mask", "baseline"]
"""What a gate scales: attention to a feature, or the difference of a feature to its baseline."""

LONG_TEXT = 128
"""From this number of features on, padding not counted, a text is long."""

GATE_CLAIMS = frozenset("invariance shift scale determinism batching".split())
"""The axioms that a gate claims for either removal.

Dummy and symmetry are not among them: a dummy or a symmetry of the function need not be one of its attention. Nor is
linearity: where two functions are read at different rows, the finite gate of their sum is not the sum of their gates.
"""


def gates_attention(case: Case, removal: GateRemoval | None) -> bool:
    """Whether the gates scale attention: as the removal says, or by default if Leave-One-Out removes by the mask.

    Raises:
        ValueError: no such removal.
    """
    if removal not in (None, "attention_mask", "baseline"):
        raise ValueError(f"a gate removes by 'attention_mask' or 'baseline', got {removal!r}")
    return (removal or default_removal(case).name) == "attention_mask"


def removal_in_words(removal: GateRemoval | None) -> str:
    """The setting ``removal`` of a gate, for reports."""
    if removal is None:
        return "gates in the attention where the case has an attention mask, else on the inputs"
    return "gates in the attention" if removal == "attention_mask" else "gates on the inputs, towards the baseline"


def is_long_text(case: Case) -> Tensor:
    """Which examples are long texts, ``(batch,)`` bool."""
    return case.unpadded.sum(1) >= LONG_TEXT
