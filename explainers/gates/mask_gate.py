"""The mask gate: the first-order effect of removing each feature, in one forward and one backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.gates.attention_gates import attention_gate_effects
from faithcheck.explainers.gates.expectations import TANGENT
from faithcheck.explainers.gates.gate_removal import GATE_CLAIMS, GateRemoval, gates_attention, removal_in_words
from faithcheck.explainers.gates.input_gates import gradient_times_difference
from faithcheck.models.case import Case
from faithcheck.models.expectation import Expectation


@builtin
@dataclass(frozen=True)
class MaskGate:
    """∂f/∂m_i at m = 1: one forward and one backward pass. Derived in `faithcheck.explainers.gates`.

    Attributes:
        removal: what the gates scale: "attention_mask", the attention to a feature, or "baseline", the difference of a
            feature to its baseline. By default the first if the case has an attention mask, else the second. Models
            that take no mask can be gated in their attention as well.
    """

    label: ClassVar[str] = "Mask gate"
    summary: ClassVar[str] = "first-order effect on the output of removing a token from the attention; derived here"

    removal: GateRemoval | None = None
    name: str = "mask_gate"
    claims: frozenset[str] = GATE_CLAIMS | {"linearity"}

    @property
    def expected(self) -> Mapping[tuple[str, str], Expectation]:
        """What theory expects on the suite's models, where gates remove by the baseline."""
        return {} if self.removal == "attention_mask" else TANGENT

    @property
    def settings(self) -> str:
        """The settings in words, for reports."""
        return removal_in_words(self.removal)

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The derivatives ``(batch, features)``, 0 at padding.

        Raises:
            Unsupported: the model has no softmax attention over the features, or hides it.
            ValueError: no such removal.
        """
        if not gates_attention(case, self.removal):
            return gradient_times_difference(model, case)
        effects, _ = attention_gate_effects(model, case, "first-order")
        return (effects * case.unpadded).to(case.inputs.dtype)
