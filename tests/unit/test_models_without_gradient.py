"""Models without a gradient: 0 where an output does not depend on the inputs, a refusal where torch has none."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from faithcheck.explainers import AttnLRP, GradientTimesInput, IntegratedGradients, LeaveOneOut, builtin_explainers
from faithcheck.explainers.protocol import CompletenessWarning, Unsupported, attribution_of, in_standard_modes
from faithcheck.models.case import Case, InvalidOutput

GRADIENTS = GradientTimesInput(), IntegratedGradients(4)


class Model(nn.Module):
    """A function of a linear map and the inputs."""

    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.map, self.how = nn.Linear(4, 2, bias=False, dtype=torch.float64), how

    def forward(self, x):
        return self.how(self.map, x)


class Cube(torch.autograd.Function):
    """x³, without a backward pass."""

    @staticmethod
    def forward(ctx, x):
        return x**3


def case():
    x = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return Case(x, torch.tensor([0, 1]), torch.zeros_like(x))


CONSTANT = {
    "constant": lambda f, x: f.weight.sum(1).expand(len(x), 2),
    "made without weights": lambda f, x: torch.ones(len(x), 2, dtype=x.dtype),
    "detached": lambda f, x: f(x.detach()),
    "detached, of the data": lambda f, x: f(x).data,
    "no_grad": lambda f, x: torch.no_grad()(f)(x),
    "inference_mode": lambda f, x: torch.inference_mode()(f)(x),
    "argmax": lambda f, x: torch.eye(2, dtype=x.dtype)[f(x).argmax(1)],
    "comparison": lambda f, x: (f(x) > 0).to(x.dtype),
    "by NumPy": lambda f, x: torch.from_numpy(np.tanh(f(x).detach().numpy())),
}


@pytest.mark.parametrize("how", CONSTANT)
def test_an_output_that_is_constant_or_detached_has_gradient_0(how):
    for explainer in GRADIENTS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CompletenessWarning)  # the outputs at both ends differ
            found = attribution_of(explainer, Model(CONSTANT[how]), case())
        assert torch.equal(found, torch.zeros_like(case().inputs))
    with pytest.raises(Unsupported, match="no relevance reaches the inputs"):
        AttnLRP().attribute(Model(CONSTANT[how]), case())


def test_a_part_that_is_detached_has_no_gradient():
    model = Model(lambda f, x: f(x) + 3 * f(x).detach())
    for explainer in (GradientTimesInput(), AttnLRP()):
        torch.testing.assert_close(explainer.attribute(model, case()), case().inputs * model.map.weight[[0, 1]])


WRITING = {
    "multiplied": lambda f, x: f(x.mul_(2)),
    "a view": lambda f, x: (x[:, :2].mul_(2), x[:, 2:].mul_(2), f(x))[-1],
    "an entry set": lambda f, x: (x.__setitem__((slice(None), 0), 2 * x[:, 0]), f(x * x.new_tensor([1, 2, 2, 2])))[-1],
    "by data": lambda f, x: (x.view(-1).mul_(2), f(x))[-1],
}


@pytest.mark.parametrize("how", WRITING)
def test_a_model_may_write_to_its_inputs(how):
    model, written = Model(WRITING[how]), case()
    for explainer in GRADIENTS:
        found = attribution_of(explainer, model, written)
        torch.testing.assert_close(found, 2 * case().inputs * model.map.weight[[0, 1]])
    assert torch.equal(written.inputs, case().inputs)


REFUSED = {
    "reentrant checkpoint": (lambda f, x: checkpoint(f, x, use_reentrant=True), "use_reentrant=False"),
    "reentrant in part": (lambda f, x: f(x) + checkpoint(f, x, use_reentrant=True), "use_reentrant=False"),
    "no backward": (lambda f, x: f(Cube.apply(x)), "no gradient.*Leave-One-Out"),
    "to NumPy": (lambda f, x: torch.from_numpy(np.tanh(f(x).numpy())), "no gradient.*Leave-One-Out"),
    "overwritten": (lambda f, x: overwritten(f(x)), "no gradient.*Leave-One-Out"),
}


def overwritten(x):
    """sin x, whose derivative needs an x that is 0 by then."""
    result = x.sin()
    x.zero_()
    return result


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # from a reentrant checkpoint without
@pytest.mark.parametrize("how", REFUSED)
@pytest.mark.parametrize("explainer", builtin_explainers().values(), ids=lambda explainer: explainer.name)
def test_no_error_of_torchs_reaches_the_user(explainer, how):
    model, why = Model(REFUSED[how][0]), REFUSED[how][1]
    if explainer in GRADIENTS[:1]:
        with pytest.raises(Unsupported, match=why):
            attribution_of(explainer, model, case())
    try:
        attribution_of(explainer, model, case())
    except Unsupported:
        assert not isinstance(explainer, LeaveOneOut)


def test_outputs_that_are_whole_numbers_are_refused():
    for explainer in (*GRADIENTS, AttnLRP(), LeaveOneOut()):
        with pytest.raises(InvalidOutput, match="real numbers"):
            attribution_of(explainer, Model(lambda f, x: f(x).argmax(1, keepdim=True)), case())


def test_a_fault_of_the_explainers_is_no_refusal():
    class Broken(GradientTimesInput):
        def attribute(self, model, case):
            return in_standard_modes(lambda *_: torch.ones(2) @ torch.ones(3))(self, model, case)

    with pytest.raises(RuntimeError, match="size"):
        Broken().attribute(Model(lambda f, x: f(x)), case())


def test_an_error_of_the_models_stays_its_own():
    def failing(f, x):
        raise RuntimeError("no such table")

    for explainer in (*GRADIENTS, AttnLRP(), LeaveOneOut()):
        with pytest.raises(RuntimeError, match="no such table"):
            explainer.attribute(Model(failing), case())
