"""Models derived from a model: an axiom states how their attributions relate to those of the model."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from faithcheck.models.case import Case, input_gradient

OUTPUT_WEIGHTS = (2.0, -3.0)
"""α and β, the weights of a model's first two outputs in `WeightedOutputs`."""

SHIFT = 1.0
"""What `Shifted` subtracts from every input."""

UNIT, GAIN = 2.0, 3.0
"""What `Rescaled` divides every input by, and multiplies every output by."""


class Derived(nn.Module):
    """A module around a model, called like the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model  # of any class, whose attributes a wrapper may read


class WeightedOutputs(Derived):
    """αf₀ + βf₁ as the model's only output, by a linear head on its outputs: ``(batch, 1)``."""

    def forward(self, inputs: Tensor, **forward_arguments: Tensor) -> Tensor:
        outputs = self.model(inputs, **forward_arguments)
        weights = torch.zeros(1, outputs.shape[1]).to(outputs)
        weights[0, :2] = torch.tensor(OUTPUT_WEIGHTS)
        return functional.linear(outputs, weights)


class SummedOutputs(Derived):
    """The sum of the model's outputs as its only output: ``(batch, 1)``."""

    def forward(self, inputs: Tensor, **forward_arguments: Tensor) -> Tensor:
        outputs: Tensor = self.model(inputs, **forward_arguments)
        return outputs.sum(1, keepdim=True)


class Shifted(Derived):
    """f(x − c), c = `SHIFT`."""

    def forward(self, inputs: Tensor, **forward_arguments: Tensor) -> Tensor:
        return self.model(inputs - SHIFT, **forward_arguments)


class Rescaled(Derived):
    """s·f(x/c), s = `GAIN` and c = `UNIT`."""

    def forward(self, inputs: Tensor, **forward_arguments: Tensor) -> Tensor:
        return self.model(inputs / UNIT, **forward_arguments) * GAIN


def affine_case(case: Case, *, factor: float = 1.0, offset: float = 0.0) -> Case:
    """The case in other coordinates, x → factor·x + offset: inputs, baseline and replacements."""
    return replace(
        case,
        inputs=case.inputs * factor + offset,
        baseline=case.baseline * factor + offset,
        replacements={name: value * factor + offset for name, value in case.replacements.items()},
    )


def gradient_under_shift(model: nn.Module, case: Case) -> Tensor:
    """What gradient × input gains when inputs are shifted by c = `SHIFT`: c ⊙ ∇f(x), shaped like ``inputs``."""
    return SHIFT * input_gradient(model, case)
