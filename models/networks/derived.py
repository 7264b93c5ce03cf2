"""Models made from a model, in whose attributions an axiom says what must be the same, or changed in a known way."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from faithcheck.models.case import Case

MIXTURE = (2.0, -3.0)
"""α and β, the weights of a model's first two outputs in `WeightedOutputs`."""

SHIFT = 1.0
"""What `Shifted` subtracts from every input."""

UNIT, GAIN = 2.0, 3.0
"""What `Rescaled` divides every input by, and multiplies every output by."""


class Derived(nn.Module):
    """A module around a model, called as the model is."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class WeightedOutputs(Derived):
    """αf₀ + βf₁ as the model's only output, by a linear head on its outputs: ``(batch, 1)``."""

    def forward(self, inputs: Tensor, **context: Tensor) -> Tensor:
        """Mix the first two outputs."""
        outputs = self.model(inputs, **context)
        weights = torch.zeros(1, outputs.shape[1]).to(outputs)
        weights[0, :2] = torch.tensor(MIXTURE)
        return functional.linear(outputs, weights)


class Shifted(Derived):
    """f(x − c), c = `SHIFT`."""

    def forward(self, inputs: Tensor, **context: Tensor) -> Tensor:
        """Take the shift back, then run the model."""
        outputs: Tensor = self.model(inputs - SHIFT, **context)
        return outputs


class Rescaled(Derived):
    """s·f(x/c), s = `GAIN` and c = `UNIT`."""

    def forward(self, inputs: Tensor, **context: Tensor) -> Tensor:
        """Back to the model's own unit, then its outputs in another."""
        outputs: Tensor = self.model(inputs / UNIT, **context) * GAIN
        return outputs


def moved(case: Case, *, times: float = 1.0, plus: float = 0.0) -> Case:
    """The case in other coordinates, x → times·x + plus: inputs, baseline and references."""
    return replace(
        case,
        inputs=case.inputs * times + plus,
        baseline=case.baseline * times + plus,
        replacements={name: value * times + plus for name, value in case.replacements.items()},
    )
