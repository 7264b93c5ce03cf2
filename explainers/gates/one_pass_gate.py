"""What the gates of one forward and one backward pass have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from faithcheck.explainers.gates.expectations import TANGENT
from faithcheck.explainers.gates.gate_removal import GateRemoval, gates_attention, removal_in_words
from faithcheck.explainers.gates.input_gates import gradient_times_difference
from faithcheck.explainers.refused_modules import flex_attention, quantised_weights, refuse_modules
from faithcheck.models.case import Case
from faithcheck.models.expectation import Expectation, Expectations


@dataclass(frozen=True)
class OnePassGate(ABC):
    """A gate in the attention; with removal by the baseline its effect is (x − x′) ⊙ ∇f(x), whatever the gate.

    Attributes:
        removal: what the gates scale: "attention_mask", the attention to a feature, or "baseline", the difference of a
            feature to its baseline. By default the first if the case has an attention mask, else the second. Models
            that take no mask can be gated in their attention as well.
    """

    on_masked_models: ClassVar[Expectations]
    """What theory expects of the gate where the suite's cases remove features by the attention mask."""

    removal: GateRemoval | None = None

    @property
    def expected(self) -> Mapping[tuple[str, str], Expectation]:
        """What theory expects on the suite's models."""
        if self.removal is None:
            return {**TANGENT, **self.on_masked_models}
        return TANGENT if self.removal == "baseline" else {}

    @property
    def settings(self) -> str:
        """The settings in words, for reports."""
        return removal_in_words(self.removal)

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The effects of the gates ``(batch, features)``, 0 at padding.

        Raises:
            Unsupported: the model has no softmax attention over the features, or hides it (flex attention), or has
                quantised weights, or see `attention_effects`.
            ValueError: no such removal.
        """
        refuse_modules(model, flex_attention, quantised_weights)
        if not gates_attention(case, self.removal):
            return gradient_times_difference(model, case)
        return (self.attention_effects(model, case) * case.unpadded).to(case.inputs.dtype)

    @abstractmethod
    def attention_effects(self, model: nn.Module, case: Case) -> Tensor:
        """The effects of the gates in the attention ``(batch, features)``; those of padding do not count."""
