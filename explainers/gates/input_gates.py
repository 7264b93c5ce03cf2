"""Gates on the inputs, x′_i + m_i (x_i − x′_i): the effects of removal by the baseline."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from faithcheck.explainers.loo.removal import at_features
from faithcheck.explainers.protocol import per_feature
from faithcheck.models.case import Case, select_target


@torch.enable_grad()
def input_gate_effects(model: nn.Module, case: Case, halfway: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The first-order effects of gates on the inputs, (x − x′) ⊙ ∂f, at x or with some features halfway to x′.

    Args:
        model: maps a case to ``(batch, outputs)``.
        case: the examples.
        halfway: ``(batch, features)`` bool, the features that are halfway to the baseline; by default none.

    Returns:
        The effect of each coordinate, shaped like the inputs; and the explained output, ``(batch,)``.
    """
    point = case.inputs.detach().clone()
    if halfway is not None:
        point = torch.where(at_features(halfway, point), (point + case.baseline) / 2, point)
    point.requires_grad_()
    output = select_target(replace(case, inputs=point).run(model), case.target)
    (gradient,) = torch.autograd.grad(output.sum(), point)
    return (case.inputs - case.baseline) * gradient, output.detach()


def gradient_times_difference(model: nn.Module, case: Case) -> Tensor:
    """(x − x′) ⊙ ∂f(x), ``(batch, features)``: on the inputs, the first-order and the finite effect are the same."""
    return per_feature(input_gate_effects(model, case)[0])
