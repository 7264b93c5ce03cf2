"""Closed forms that hold for every model: gradient × input, Leave-One-Out, and what they miss.

All are computed from the model and the case alone: no explainer runs. Expectations predict violations by them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from faithcheck.models.case import Case, input_gradient, output_difference, select_target

ClosedForm: TypeAlias = Callable[[nn.Module, Case], Tensor]
"""A function of a model and a case: of a map ``(batch, features)``, or of one number for each example ``(batch,)``."""


@torch.no_grad()
def explained_output(model: nn.Module, case: Case) -> Tensor:
    """f(x), the explained outputs, ``(batch,)``."""
    return select_target(case.run(model), case.target)


def gradient_times_input(model: nn.Module, case: Case) -> Tensor:
    """(x − x′) ⊙ ∇f(x), summed over the axes of a feature: ``(batch, features)``."""
    product = (case.inputs - case.baseline) * input_gradient(model, case)
    return product.reshape(*case.shape, -1).sum(2)


def partly_removed(case: Case, feature: int, part: float) -> Case:
    """The case with a part in [0, 1] of one feature removed: its mask is multiplied by 1 − part.

    Without an attention mask the feature goes this part of the way to its baseline.
    """
    if "attention_mask" in case.forward_arguments:
        mask = case.forward_arguments["attention_mask"]
        gates = torch.ones(case.shape[1]).to(case.inputs if 0 < part < 1 else mask)  # not every model takes fractions
        gates[feature] = 1 - part
        mask = mask * gates
        return replace(case, forward_arguments={**case.forward_arguments, "attention_mask": mask})
    inputs = case.inputs.clone()
    inputs[:, feature] = (1 - part) * case.inputs[:, feature] + part * case.baseline[:, feature]
    return replace(case, inputs=inputs)


def leave_one_out_of(model: nn.Module, case: Case, feature: int) -> Tensor:
    """f(x) − f(x without this feature), ``(batch,)``; see `partly_removed`."""
    return explained_output(model, case) - explained_output(model, partly_removed(case, feature, 1))


def leave_one_out(model: nn.Module, case: Case, part: float = 1.0) -> Tensor:
    """f(x) − f(x without feature i, or without a part of it) for every feature i: ``(batch, features)``."""
    without = [explained_output(model, partly_removed(case, feature, part)) for feature in range(case.shape[1])]
    return explained_output(model, case).unsqueeze(1) - torch.stack(without, 1)


def chord_minus_tangent(model: nn.Module, case: Case) -> Tensor:
    """Leave-One-Out minus gradient × input, ``(batch, features)``: how far Leave-One-Out is from its limit."""
    return leave_one_out(model, case) - gradient_times_input(model, case)


def completeness_error(attribution: ClosedForm) -> ClosedForm:
    """Σ_i a_i − (f(x) − f(x′)), ``(batch,)``, of a map in closed form."""

    def predict(model: nn.Module, case: Case) -> Tensor:
        return attribution(model, case).sum(1) - output_difference(model, case)

    return predict


def loo_disagreement(attribution: ClosedForm) -> ClosedForm:
    """1 − Pearson's r between a map in closed form and Leave-One-Out, ``(batch,)``."""

    def predict(model: nn.Module, case: Case) -> Tensor:
        maps = (attribution(model, case), leave_one_out(model, case))
        a, b = (nn.functional.normalize(values - values.mean(1, keepdim=True)) for values in maps)
        return 1 - (a * b).sum(1)

    return predict


def quadrature(of: Callable[[float], Tensor], nodes: int = 32) -> Tensor:
    """∫₀¹ ``of(α)`` dα by Gauss–Legendre quadrature, as Integrated Gradients does; exact to degree 2·nodes − 1."""
    places, weights = np.polynomial.legendre.leggauss(nodes)
    terms = [float(weight) / 2 * of((float(place) + 1) / 2) for place, weight in zip(places, weights, strict=True)]
    return torch.stack(terms).sum(0)
