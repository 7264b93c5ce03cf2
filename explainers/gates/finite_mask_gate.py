"""The finite mask gate: each attention row exactly without the feature, in one forward and one backward pass."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.gates.attention_gates import attention_gate_effects, changes_from
from faithcheck.explainers.gates.expectations import FINITE
from faithcheck.explainers.gates.gate import GATE_CLAIMS, OnePassGate
from faithcheck.explainers.gates.sinks import sink_shares, with_exact_values
from faithcheck.models.case import Case
from faithcheck.models.expectation import Expectations


@builtin("gate")
@dataclass(frozen=True)
class FiniteMaskGate(OnePassGate):
    """Σ over rows j of S_j · (O_j − O_j without i), S_j the gradient at O_j: one forward and one backward pass.

    Assumes that the layers above respond linearly, and that the changes in several layers add up. It is weakest on
    special tokens that draw much attention: without them O changes by much. Attention sinks have their exact values,
    see `faithcheck.explainers.gates.sinks`. Derived in `faithcheck.explainers.gates`.
    """

    label: ClassVar[str] = "Finite mask gate"
    summary: ClassVar[str] = "like mask_gate, with each row of attention renormalised exactly; derived here"
    on_masked_models: ClassVar[Expectations] = FINITE

    name: str = "finite_mask_gate"
    claims: frozenset[str] = GATE_CLAIMS | {"bounds", "full_removal"}

    def attention_effects(self, model: nn.Module, case: Case) -> Tensor:
        """The finite effects, ``(batch, features)``; warns of sinks."""
        effects, output, weights = attention_gate_effects(model, case, "finite")
        shares, exact_change = sink_shares(weights, case), changes_from(output, model, case)
        return with_exact_values(case, effects * case.unpadded, shares, exact_change)
