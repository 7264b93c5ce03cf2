"""Faults that authors make, and the likely cause that the first card of their report must name.

An author reads the first card and mends what it says. So it must be right, name the cause among few, or say that the
records name no single one; it must not mislead.
"""

import re
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from faithcheck import check_explainer
from faithcheck.explainers import GradientTimesInput, IntegratedGradients
from faithcheck.reports.causes import causes

pytestmark = pytest.mark.slow

PAIRS = "product.x1x2x3 control.mlp probe.linear probe.perceptron probe.tokens probe.padded probe.products".split()
GRADIENT, INTEGRATED = GradientTimesInput(), IntegratedGradients()
NO_SINGLE_CAUSE = "no single cause"


def summed(values):
    """Over the coordinates of each feature."""
    return values.flatten(2).sum(2) if values.dim() > 2 else values


def chosen(case):
    return lambda outputs: outputs.gather(1, case.target[:, None]).sum()


def gradient(model, case, score):
    """The gradient of a score of the outputs with respect to the inputs, and the inputs."""
    inputs = case.inputs.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(score(model(inputs, **case.forward_arguments)), inputs)
    return found, inputs.detach()


def times_input(model, case, score):
    return summed(torch.mul(*gradient(model, case, score)))


def after(change, explainer=GRADIENT):
    """An explainer whose map is changed."""
    return explainer, lambda model, case: change(explainer.attribute(model, case))


def instead(attribute, explainer=GRADIENT):
    """A function that is said to compute the same as an explainer."""
    return explainer, attribute


def noisy(model, case):
    return GRADIENT.attribute(model, case) + 0.01 * torch.rand(case.shape, dtype=case.inputs.dtype)


def growing():
    calls = [0]

    def attribute(model, case):
        calls[0] += 1
        return GRADIENT.attribute(model, case) * calls[0]

    return attribute


def leaving(change):
    def attribute(model, case):
        found = GRADIENT.attribute(model, case)
        change(model, case)
        return found

    return attribute


FAULTS = {
    "divided by the largest of the batch": (after(lambda a: a / a.abs().max()), "whole batch|divided by"),
    "divided by the sum of the batch": (after(lambda a: a / a.sum()), "whole batch|divided by"),
    "divided by its largest": (after(lambda a: a / a.abs().amax(1, keepdim=True)), "normalised|largest value"),
    "softmax": (after(lambda a: a.softmax(1)), "normalised"),
    "sum to one": (after(lambda a: a / a.sum(1, keepdim=True), INTEGRATED), "normalised"),
    "half": (after(lambda a: a / 2), "a mean in place of a sum"),
    "counted twice": (after(lambda a: 2 * a), "counted twice"),
    "mean over features": (after(lambda a: a / a.shape[1]), "a mean"),
    "sign": (after(lambda a: -a), "the sign is wrong"),
    "one feature further": (after(lambda a: a.roll(1, 1)), "one feature further"),
    "features reversed": (after(lambda a: a.flip(1)), "in the wrong order"),
    "absolute values": (after(torch.abs), "absolute values"),
    "negative values cut off": (after(lambda a: a.clamp(min=0)), "cut off"),
    "centred": (after(lambda a: a - a.mean(1, keepdim=True)), "centring"),
    "a constant added": (after(lambda a: a + 1), "a constant is added|reads padding"),
    "squared": (after(torch.square), NO_SINGLE_CAUSE),
    "the last feature dropped": (after(lambda a: a.index_fill(1, torch.tensor(-1), 0)), NO_SINGLE_CAUSE),
    "zeros": (after(torch.zeros_like), "all zeros"),
    "NaN": (after(lambda a: a / 0 * 0), "NaN"),
    "the first example for all": (after(lambda a: a[:1].expand_as(a).clone()), "the first one is used for all"),
    "examples reversed": (after(lambda a: a.flip(0)), "examples are in the wrong order"),
    "float32": (after(lambda a: a.float().double()), "wrong dtype"),
    "cross-entropy": (
        instead(lambda m, c: times_input(m, c, lambda y: cross_entropy(y, c.target, reduction="sum"))),
        "cross-entropy",
    ),
    "probability": (instead(lambda m, c: times_input(m, c, lambda y: chosen(c)(y.softmax(1)))), "probability"),
    "minus the output": (instead(lambda m, c: times_input(m, c, lambda y: -chosen(c)(y))), "the sign is wrong"),
    "output 0": (instead(lambda m, c: times_input(m, c, lambda y: y[:, 0].sum())), "output"),
    "mean over the batch": (instead(lambda m, c: times_input(m, c, torch.mean)), "a mean over the batch"),
    "gradient alone": (instead(lambda m, c: summed(gradient(m, c, chosen(c))[0])), "multiplied by the input"),
    "coordinates not summed": (instead(lambda m, c: torch.mul(*gradient(m, c, chosen(c)))), "Sum over the coordinates"),
    "mask left out": (
        instead(lambda m, c: GRADIENT.attribute(m, replace(c, forward_arguments={}))),
        "reads padding",
    ),
    "path from zero": (
        instead(lambda m, c: INTEGRATED.attribute(m, replace(c, baseline=torch.zeros_like(c.inputs))), INTEGRATED),
        "minus the baseline|wrong baseline",
    ),
    "four steps": (instead(IntegratedGradients(4).attribute, INTEGRATED), "steps of an integral"),
    "noise": (instead(noisy), "another map each time"),
    "grows with each call": (instead(growing()), "another map each time"),
    "a hook left": (instead(leaving(lambda m, c: m.register_forward_hook(lambda *_: None))), "handle.remove"),
    "train mode left": (instead(leaving(lambda m, c: m.train())), "train"),
    "backward": (
        instead(leaving(lambda m, c: [p.requires_grad and setattr(p, "grad", p.detach()) for p in m.parameters()])),
        "torch.autograd.grad",
    ),
}


class Mine:
    """What an author hands in."""

    name = "mine"

    def __init__(self, claims, attribute):
        self.claims, self._attribute = claims, attribute

    def attribute(self, model, case):
        return self._attribute(model, case)


@pytest.mark.parametrize("name", FAULTS)
def test_the_first_card_names_the_cause(name):
    (explainer, attribute), cause = FAULTS[name]
    report = check_explainer(Mine(explainer.claims, attribute), pairs=PAIRS, like=explainer.name, progress=False)
    first, *_ = causes(report.document)
    assert re.search(cause, first.likely), f"{first.title}: {first.likely}"
