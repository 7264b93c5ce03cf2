"""The mask gate: the first-order effect of removing each feature, in one forward and one backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.gates.attention_gates import attention_gate_effects
from faithcheck.explainers.gates.expectations import FIRST_ORDER
from faithcheck.explainers.gates.gate_removal import GATE_CLAIMS
from faithcheck.explainers.gates.one_pass_gate import OnePassGate
from faithcheck.models.case import Case
from faithcheck.models.expectation import Expectations


@builtin("gate")
@dataclass(frozen=True)
class MaskGate(OnePassGate):
    """∂f/∂m_i at m = 1: one forward and one backward pass. Derived in `faithcheck.explainers.gates`."""

    label: ClassVar[str] = "Mask gate"
    summary: ClassVar[str] = "first-order effect on the output of removing a token from the attention; derived here"
    on_masked_models: ClassVar[Expectations] = FIRST_ORDER

    name: str = "mask_gate"
    claims: frozenset[str] = GATE_CLAIMS | {"linearity", "additivity", "antisymmetry", "local_limit"}

    def attention_effects(self, model: nn.Module, case: Case) -> Tensor:
        """The derivatives, ``(batch, features)``."""
        return attention_gate_effects(model, case, "first-order")[0]
