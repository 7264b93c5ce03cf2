"""A perceptron without biases, and the closed form of LRP on it when inputs are shifted."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.networks.derived import SHIFT


def bias_free_perceptron() -> nn.Sequential:
    """W₂ tanh(W₁x) with random weights: ``(batch, 8)`` to ``(batch, 3)``."""
    return nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 3, bias=False))


def lrp_under_shift(model: nn.Module, case: Case) -> Tensor:
    """What LRP gains when inputs are shifted by c = `SHIFT`: c ⊙ the modified gradient, ``(batch, 8)``.

    The identity rule of tanh replaces its slope by tanh z/z, so the modified gradient is W₁ᵀ(tanh z/z ⊙ W₂ₜ) with
    z = W₁x and W₂ₜ the row of the explained output.
    """
    first, last = (model.get_parameter(name).detach() for name in ("0.weight", "2.weight"))
    z = case.inputs @ first.T
    return SHIFT * (last[case.target] * torch.tanh(z) / z) @ first
