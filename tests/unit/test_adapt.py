"""Anyone's explainer, in each of the ways that it may be written, against the closed form or our own."""

import pytest
import torch
from torch import nn

from faithcheck.axioms import check_explainer
from faithcheck.explainers import GradientTimesInput, IntegratedGradients, LeaveOneOut
from faithcheck.explainers.adapters import NotAnExplainer, as_explainer
from faithcheck.explainers.protocol import InvalidAttribution, attribution_of
from faithcheck.models import Case, registered_pairs

CPU, DOUBLE = torch.device("cpu"), torch.float64


def gradient(model, inputs, target):
    """Gradient × input, as a stranger writes it: no case, and the attribution shaped like the inputs."""
    point = inputs.detach().clone().requires_grad_()
    picked = model(point).gather(1, target[:, None]).sum()
    return inputs * torch.autograd.grad(picked, point)[0]


class Called:
    def __call__(self, model, inputs, target=None):
        return gradient(model, inputs, target)


class Method:
    def attribute(self, model, inputs, target):
        return gradient(model, inputs, target)


class LikeCaptum:
    """Made for a model, and ablates by a mask: without one, single coordinates."""

    def __init__(self, forward_func):
        self.forward_func = forward_func

    def attribute(self, inputs, baselines=None, target=None, feature_mask=None):
        assert inputs.requires_grad
        values = torch.zeros_like(inputs)
        for feature in feature_mask.unique():
            without = torch.where(feature_mask == feature, baselines, inputs)
            change = self.forward_func(inputs) - self.forward_func(without)
            picked = change.gather(1, target[:, None]).reshape(-1, *[1] * (inputs.dim() - 1))
            values = values + torch.where(feature_mask == feature, picked, 0.0)  # in each coordinate, as captum's
        return values.detach()


def made(model):
    return LikeCaptum(model)


def on(name, side=0):
    pair = registered_pairs()[name]
    return pair.build(0, DOUBLE, CPU)[side], pair.case(0, DOUBLE, CPU)


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("found", [gradient, Called, Called(), Method, Method()], ids=range(5))
@pytest.mark.parametrize("name", ["product.x1x2x3", "control.bert"])
def test_whatever_is_called_with_a_model_inputs_and_a_target(found, name):
    model, case = on(name)
    close(attribution_of(as_explainer(found), model, case), attribution_of(GradientTimesInput(), model, case))


@pytest.mark.parametrize(
    "found", [LikeCaptum, made, LikeCaptum(nn.Linear(3, 1)), lambda model: made(model)], ids=range(4)
)
@pytest.mark.parametrize("name", ["product.x1x2x3", "control.bert"])
def test_whatever_is_made_for_a_model(found, name):
    model, case = on(name)
    ours = attribution_of(LeaveOneOut(), model, case)
    close(attribution_of(as_explainer(found), model, case), ours)


class Masked(nn.Module):
    """Adds up what the attention mask leaves, so that a wrong row of it changes the output."""

    def forward(self, inputs, attention_mask):
        return (inputs.sum(2) * attention_mask).sum(1, keepdim=True) ** 2


def steps_in_one_batch(model, inputs, target):
    """Integrated gradients whose steps are rows of one batch, repeated in an order of its own."""
    steps = (torch.arange(16, dtype=inputs.dtype) + 0.5) / 16
    points = (inputs[:, None] * steps[:, None, None]).flatten(0, 1).requires_grad_()
    picked = model(points).gather(1, target.repeat_interleave(16)[:, None]).sum()
    (slopes,) = torch.autograd.grad(picked, points)
    return inputs * slopes.unflatten(0, (-1, 16)).mean(1)


def test_a_context_follows_the_rows_of_its_example():
    inputs = torch.randn(3, 4, 2, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    case = Case(
        inputs, torch.zeros(3, dtype=torch.int64), torch.zeros_like(inputs), forward_arguments={"attention_mask": mask}
    )
    ours = attribution_of(IntegratedGradients(), Masked(), case)
    assert ours.abs().min(1).values[0] > 0
    close(attribution_of(as_explainer(steps_in_one_batch), Masked(), case), ours)


def test_names_and_claims_come_along():
    def mine(model, inputs, target):
        return inputs

    mine.claims = {"invariance"}
    explainer = as_explainer(mine)
    assert (explainer.name, explainer.claims, explainer.expected) == ("mine", {"invariance"}, {})
    assert as_explainer(LikeCaptum).name == "LikeCaptum"
    assert as_explainer(Called(), name="called").name == "called"
    ours = GradientTimesInput()
    assert as_explainer(ours) is ours


class OfALayer:
    def __init__(self, forward_func, layer):
        self.forward_func, self.layer = forward_func, layer

    def attribute(self, inputs, target=None):
        raise NotImplementedError


class Nameless:
    def attribute(self, model, case):
        raise NotImplementedError


PERCEPTRON = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (7, "expected `attribute.*found int 7"),
        ({}, "found dict {}"),
        (lambda a, b, c, d: a, "expected `attribute.*found function"),
        (Nameless, "without a string `name`"),
        (OfALayer, r"OfALayer is made of \(forward_func, layer\): give an object"),
        (OfALayer(PERCEPTRON, PERCEPTRON[0]), r"made for a part of one model \(layer\): give a function"),
        (LikeCaptum(PERCEPTRON.forward), "not made for a module"),
        (PERCEPTRON, "found Sequential"),
    ],
    ids=range(8),
)
def test_what_is_no_explainer_is_refused(found, message):
    with pytest.raises(NotAnExplainer, match=message):
        as_explainer(found)


@pytest.mark.parametrize("context", [{}, {"attention_mask": torch.ones(2, 3)}], ids=["plain", "in context"])
def test_what_is_no_attribution_is_refused(context):
    inputs = torch.ones(2, 3, dtype=DOUBLE)
    case = Case(inputs, torch.zeros(2, dtype=torch.int64), inputs * 0, forward_arguments=context)
    with pytest.raises(InvalidAttribution, match="expected a tensor, got NoneType"):
        attribution_of(as_explainer(lambda model, inputs, target: None), nn.Identity(), case)


def test_it_is_judged_without_pytest():
    gradient.claims = {"invariance"}
    try:
        records = check_explainer(gradient, ["invariance", "trace"], ["product.x1*", "control.mlp"])
    finally:
        del gradient.claims
    assert {record.status for record in records} == {"holds"}
    assert {record.subject for record in records} >= {"product.x1x2x3", "control.mlp", "control.mlp.f"}
    with pytest.raises(ValueError, match=r"unknown subject 'product.x1x2x9': did you mean product.x1x2x3"):
        check_explainer(gradient, ["invariance"], ["product.x1x2x9"])
