"""Faults of gradient × input and Integrated Gradients."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from faithcheck.explainers.gradients import input_gradient
from faithcheck.explainers.protocol import per_feature
from faithcheck.models.case import Case
from faithcheck.tests.helpers.faults.fault import Constant, Fault, Settings, around


def gradient_of_all_outputs(model, case):
    """The gradient of the sum of all outputs."""
    with torch.enable_grad():
        point = case.inputs.detach().clone().requires_grad_()
        return torch.autograd.grad(replace(case, inputs=point).run(model).sum(), point)[0]


def gradient_of_the_prediction(model, case):
    """The gradient of the largest output."""
    return input_gradient(model, replace(case, target=case.run(model).argmax(1)))


def gradient_of_the_probability(model, case):
    """The gradient of the softmax of the outputs."""
    with torch.enable_grad():
        point = case.inputs.detach().clone().requires_grad_()
        probabilities = replace(case, inputs=point).run(model).softmax(1)
        return torch.autograd.grad(probabilities.gather(1, case.target.unsqueeze(1)).sum(), point)[0]


def without_arguments(model, case):
    """The gradient of the model without its forward arguments, such as the attention mask."""
    return input_gradient(model, replace(case, forward_arguments={}))


def in_train_mode(explainer, model, case) -> Tensor:
    """A few modules are left in the mode of training while the gradient is computed."""
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        return explainer.attribute(model, case)
    finally:
        for module, training in modes.items():
            module.training = training


def norm_of_coordinates(attribution: Tensor) -> Tensor:
    """The norm over the coordinates of a feature, not their sum."""
    return attribution if attribution.dim() == 2 else attribution.flatten(2).norm(dim=2)


def mean_of_coordinates(attribution: Tensor) -> Tensor:
    """The mean over the coordinates of a feature, not their sum."""
    return attribution if attribution.dim() == 2 else attribution.flatten(2).mean(2)


def first_coordinate(attribution: Tensor) -> Tensor:
    """The first coordinate of a feature, not their sum."""
    return attribution if attribution.dim() == 2 else attribution.flatten(2)[:, :, 0]


def smoothed(explainer, model, case: Case) -> Tensor:
    """The mean over inputs with drawn noise of 1 %, without a seed."""
    draws = [case.inputs + 0.01 * torch.randn_like(case.inputs) for _ in range(4)]
    return torch.stack([per_feature(case.inputs * input_gradient(model, replace(case, inputs=x))) for x in draws]).mean(
        0
    )


def mean_over_outputs(explainer, model, case: Case) -> Tensor:
    """The gradient of the mean of the outputs that the target selects from: 1/m of that of the sum."""
    with torch.no_grad():
        outputs = case.run(model).shape[1]
    return explainer.attribute(model, case) / outputs


def sign_of_the_output(explainer, model, case: Case) -> Tensor:
    """Relevance is seeded with |f| in place of f."""
    with torch.no_grad():
        sign = case.run(model).gather(1, case.target.unsqueeze(1)).sign()
    return explainer.attribute(model, case) * sign


GRADIENT_TIMES_INPUT = [
    *(
        Fault(name, "gradient_x_input", Constant("gradients:input_gradient", function), why)
        for name, function, why in (
            ("the gradient of all outputs", gradient_of_all_outputs, "the outputs are summed before the gradient"),
            ("the gradient of the prediction", gradient_of_the_prediction, "the largest output, not the target"),
            ("the gradient of the probability", gradient_of_the_probability, "after a softmax of the outputs"),
            ("the mask not passed on", without_arguments, "the forward arguments are forgotten"),
        )
    ),
    *(
        Fault(name, "gradient_x_input", Constant("gradients:per_feature", function), why)
        for name, function, why in (
            ("the norm of the coordinates", norm_of_coordinates, "‖·‖ over the coordinates of a token, not Σ"),
            ("the mean of the coordinates", mean_of_coordinates, "a token's value falls with its width"),
            ("the first coordinate", first_coordinate, "the other coordinates of a token are forgotten"),
        )
    ),
    Fault("the mean over the outputs", "gradient_x_input", around(mean_over_outputs), "divided by their number"),
    Fault("the sign of the output", "gradient_x_input", around(sign_of_the_output), "the seed |f| has no sign"),
    Fault("smoothed without a seed", "gradient_x_input", around(smoothed), "drawn noise differs from call to call"),
    Fault("in train mode", "gradient_x_input", around(in_train_mode), "dropout and batch statistics of training"),
]


INTEGRATED_GRADIENTS = [
    Fault("2 steps", "integrated_gradients", Settings({"steps": 2}), "the quadrature is too coarse"),
    Fault("5 steps", "integrated_gradients", Settings({"steps": 5}), "the quadrature is too coarse"),
]


FAULTS = [*GRADIENT_TIMES_INPUT, *INTEGRATED_GRADIENTS]
