"""The finite mask gate: each attention row exactly without the feature, in one forward and one backward pass."""

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
class FiniteMaskGate:
    """Σ over rows j of S_j · (O_j − O_j without i), S_j the gradient at O_j: one forward and one backward pass.

    Assumes that the layers above respond linearly, and that the changes in several layers add up. It is weakest on
    special tokens that draw much attention: without them O changes by much. Derived in `faithcheck.explainers.gates`.

    Attributes:
        removal: see `MaskGate`; with removal by the baseline the result equals that of `MaskGate`, because these gates
            scale the input linearly.
    """

    label: ClassVar[str] = "Finite mask gate"
    summary: ClassVar[str] = "like mask_gate, with each row of attention renormalised exactly; derived here"

    removal: GateRemoval | None = None
    name: str = "finite_mask_gate"
    claims: frozenset[str] = GATE_CLAIMS

    @property
    def expected(self) -> Mapping[tuple[str, str], Expectation]:
        """What theory expects on the suite's models, where gates remove by the baseline."""
        return {} if self.removal == "attention_mask" else TANGENT

    @property
    def settings(self) -> str:
        """The settings in words, for reports."""
        return removal_in_words(self.removal)

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The finite effects ``(batch, features)``, 0 at padding; raises as `MaskGate`."""
        if not gates_attention(case, self.removal):
            return gradient_times_difference(model, case)
        effects, _ = attention_gate_effects(model, case, "finite")
        return (effects * case.unpadded).to(case.inputs.dtype)
