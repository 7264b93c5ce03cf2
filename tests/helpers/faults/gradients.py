"""Faults of gradient × input, Integrated Gradients and DeepLIFT."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from faithcheck.explainers.gradients import input_gradient
from faithcheck.explainers.protocol import per_feature
from faithcheck.models.case import Case
from faithcheck.tests.helpers.faults.fault import Constant, Fault, Line, Settings, around

GXI = "gradients:GradientTimesInput.attribute"
IG = "gradients:IntegratedGradients.attribute_with_error"
DEEPLIFT = "deeplift:DeepLiftRescale.attribute"


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


def _gxi(name: str, old: str, new: str, why: str) -> Fault:
    return Fault(name, "gradient_x_input", Line(GXI, old, new), why)


GRADIENT_TIMES_INPUT = [
    _gxi("the input twice", "case.inputs * ", "case.inputs.square() * ", "x² ⊙ ∂f is no first-order effect"),
    _gxi("the gradient alone", "case.inputs * ", "", "∂f without the factor x"),
    _gxi(
        "the difference from the baseline",
        "case.inputs *",
        "(case.inputs - case.baseline) *",
        "another method",
    ),
    _gxi(
        "the absolute gradient", "checked_gradient(model, case)", "checked_gradient(model, case).abs()", "no sign of ∂f"
    ),
    _gxi("the squared gradient", "checked_gradient(model, case)", "checked_gradient(model, case).square()", "(∂f)²"),
    _gxi(
        "the sign of the gradient", "checked_gradient(model, case)", "checked_gradient(model, case).sign()", "sign ∂f"
    ),
    _gxi(
        "negative gradients cut off",
        "checked_gradient(model, case)",
        "checked_gradient(model, case).clamp(min=0)",
        "max(∂f, 0)",
    ),
    _gxi(
        "the gradient of another class",
        "checked_gradient(model, case)",
        "input_gradient(model, __import__('dataclasses').replace(case, target=0 * case.target))",
        "class 0 is explained, whatever the target",
    ),
    _gxi(
        "the gradient rounded",
        "checked_gradient(model, case)",
        "checked_gradient(model, case).float()",
        "float32 inside",
    ),
    _gxi(
        "the gradient at zero",
        "checked_gradient(model, case)",
        "input_gradient(model, __import__('dataclasses').replace(case, inputs=0 * case.inputs))",
        "∂f is taken at 0, not at x",
    ),
    _gxi(
        "the gradient of the batch's mean",
        "checked_gradient(model, case)",
        "checked_gradient(model, case) / len(case.inputs)",
        "the loss is averaged over the batch, so that each example's share depends on the others",
    ),
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


def _ig(name: str, old: str, new: str, why: str, escapes: str = "") -> Fault:
    return Fault(name, "integrated_gradients", Line(IG, old, new), why, escapes)


INTEGRATED_GRADIENTS = [
    Fault("2 steps", "integrated_gradients", Settings({"steps": 2}), "the quadrature is too coarse"),
    Fault("5 steps", "integrated_gradients", Settings({"steps": 5}), "the quadrature is too coarse"),
    Fault(
        "right ends of the steps",
        "integrated_gradients",
        Line(IG, "gauss_legendre(self.steps)", "gauss_legendre(1)"),
        "one node in the middle of the path",
    ),
    _ig(
        "a Riemann sum",
        "gauss_legendre(self.steps)",
        "((2 * np.arange(1, self.steps + 1) / self.steps - 1), np.full(self.steps, 2 / self.steps))",
        "right ends of equal steps: an error of 1/steps",
    ),
    _ig("nodes on half of the path", "(nodes[part] + 1) / 2", "(nodes[part] + 1) / 4", "α ends at ½"),
    _ig("nodes not moved to [0, 1]", "(nodes[part] + 1) / 2", "nodes[part]", "α is in [−1, 1]"),
    _ig("weights of another interval", "weights[part] / 2", "weights[part]", "twice the integral"),
    _ig(
        "the path from zero", "points = case.baseline +", "points = 0 * case.baseline +", "x′ is left out of the points"
    ),
    _ig("the baseline ignored", "path = case.inputs - case.baseline", "path = case.inputs", "x in place of x − x′"),
    _ig("the path backwards", "path = case.inputs - case.baseline", "path = case.baseline - case.inputs", "x′ − x"),
    _ig("x in place of the path", "per_feature(path * gradient)", "per_feature(case.inputs * gradient)", "x ⊙ ∫∂f"),
    _ig(
        "the first part of the steps alone", "range(0, self.steps, nodes_per_pass)", "(0,)", "memory bounds the result"
    ),
    _ig("the absolute path", "per_feature(path * gradient)", "per_feature((path * gradient).abs())", "no signs"),
    _ig(
        "a baseline that is drawn",
        "path = case.inputs - case.baseline",
        "path = case.inputs - case.baseline - 1e-3 * torch.randn_like(case.inputs)",
        "the path differs from call to call",
    ),
    _ig(
        "targets in another order",
        "replace(rows, inputs=points.flatten(0, 1))",
        "replace(rows, inputs=points.flatten(0, 1), target=rows.target.flip(0))",
        "the targets do not fit the rows",
    ),
]


def _deeplift(name: str, function: str, old: str, new: str, why: str) -> Fault:
    return Fault(name, "deeplift_rescale", Line(f"deeplift:{function}", old, new), why)


DEEPLIFT_RESCALE = [
    _deeplift("the baseline ignored", "DeepLiftRescale.attribute", "(case.inputs - case.baseline)", "case.inputs", "x"),
    _deeplift(
        "the sum backwards",
        "DeepLiftRescale.attribute",
        "(case.inputs - case.baseline)",
        "(case.baseline - case.inputs)",
        "x′ − x",
    ),
    _deeplift(
        "the slope at zero", "slope_between", "slope = (value - value_0) / change", "slope = value / x", "no ΔOutput"
    ),
    _deeplift(
        "the plain gradient",
        "slope_between",
        "return torch.where(change == 0, derivative, slope)",
        "return derivative",
        "the derivative at x in place of the slope",
    ),
    _deeplift(
        "the gradient at the baseline",
        "slope_between",
        "return torch.where(change == 0, derivative, slope)",
        "return derivative_0",
        "the derivative at x′ in place of the slope",
    ),
    _deeplift("half of the slope", "rescale", "gradient * slope", "gradient * slope / 2", "½ ΔOutput/ΔInput"),
    _deeplift(
        "1 % of the slope", "rescale", "gradient * slope", "gradient * slope * 1.01", "an activation passes on 1 % more"
    ),
    _deeplift(
        "the absolute slope",
        "rescale",
        "gradient * slope",
        "gradient * slope.abs()",
        "a falling activation counts as rising",
    ),
    _deeplift(
        "the baseline is the input",
        "DeepLiftRescale.attribute",
        "replace(case, inputs=case.baseline)",
        "replace(case, inputs=0.5 * (case.baseline + case.inputs))",
        "the baseline's pass runs halfway",
    ),
    _deeplift(
        "activations of the wrong call",
        "rescale",
        "calls.get((call.name, call.number))",
        "calls.get((call.name, 0))",
        "every activation has the first one's baseline",
    ),
]

FAULTS = [*GRADIENT_TIMES_INPUT, *INTEGRATED_GRADIENTS, *DEEPLIFT_RESCALE]
