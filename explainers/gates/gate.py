"""What gates have in common: the removal that they estimate, the axioms that they claim, and gates on the inputs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from faithcheck.explainers.gates.expectations import TANGENT
from faithcheck.explainers.loo.removal import at_features, default_removal
from faithcheck.explainers.protocol import in_standard_modes, per_feature
from faithcheck.explainers.refused_modules import flex_attention, quantised_weights, refuse_modules
from faithcheck.models.case import Case, output_and_input_gradient
from faithcheck.models.expectation import Expectation, Expectations

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
    """Whether the gates scale attention: as the removal says, or by default if Leave-One-Out removes by the mask."""
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


def input_gate_effects(model: nn.Module, case: Case, halfway: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The first-order effects of gates on the inputs, (x − x′) ⊙ ∂f, at x or with some features halfway to x′.

    Returns the effect of each coordinate, shaped like the inputs, and the explained output, ``(batch,)``.
    """
    point = case.inputs
    if halfway is not None:
        point = torch.where(at_features(halfway, point), (point + case.baseline) / 2, point)
    output, gradient = output_and_input_gradient(model, replace(case, inputs=point))
    return (case.inputs - case.baseline) * gradient, output


def gradient_times_difference(model: nn.Module, case: Case) -> Tensor:
    """(x − x′) ⊙ ∂f(x), ``(batch, features)``: on the inputs, the first-order and the finite effect are the same."""
    return per_feature(input_gate_effects(model, case)[0])


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

    @in_standard_modes
    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The effects of the gates ``(batch, features)``, 0 at padding.

        Raises Unsupported if the model has no softmax attention over the features, hides it (flex attention) or has
        quantised weights, or as `attention_effects` does.
        """
        refuse_modules(model, flex_attention, quantised_weights)
        if not gates_attention(case, self.removal):
            return gradient_times_difference(model, case)
        return (self.attention_effects(model, case) * case.unpadded).to(case.inputs.dtype)

    @abstractmethod
    def attention_effects(self, model: nn.Module, case: Case) -> Tensor:
        """The effects of the gates in the attention ``(batch, features)``; those of padding do not count."""
