"""Explainers that do not follow the protocol, in each of the supported forms, against this project's own explainers."""

import pytest
import torch
from torch import nn

from faithcheck.explainers import GradientTimesInput, IntegratedGradients, LeaveOneOut
from faithcheck.explainers.adapters import NotAnExplainer, as_explainer, from_captum, from_function
from faithcheck.explainers.protocol import Explainer, InvalidAttribution, attribution_of
from faithcheck.explainers.registry import load_explainer, origin
from faithcheck.models import Case, registered_pairs

CPU, DOUBLE = torch.device("cpu"), torch.float64


def gradient(model, inputs, target):
    """Gradient × input without a case: the attribution is shaped like the inputs."""
    point = inputs.detach().clone().requires_grad_()
    explained = model(point).gather(1, target[:, None]).sum()
    return inputs * torch.autograd.grad(explained, point)[0]


class CallableObject:
    def __call__(self, model, inputs, target=None):
        return gradient(model, inputs, target)


class Method:
    def attribute(self, model, inputs, target):
        return gradient(model, inputs, target)


class LikeCaptum:
    """Made for a model; ablates the coordinates with the same number in the feature mask together."""

    def __init__(self, forward_func):
        self.forward_func = forward_func

    def attribute(self, inputs, baselines=None, target=None, feature_mask=None):
        assert inputs.requires_grad
        values = torch.zeros_like(inputs)
        for feature in feature_mask.unique():
            without = torch.where(feature_mask == feature, baselines, inputs)
            difference = self.forward_func(inputs) - self.forward_func(without)
            explained = difference.gather(1, target[:, None]).reshape(-1, *[1] * (inputs.dim() - 1))
            values = values + torch.where(feature_mask == feature, explained, 0.0)  # in each coordinate, like captum
        return values.detach()


def ablation_of(model):
    return LikeCaptum(model)


def keyword_only(model, inputs, *, target):
    return gradient(model, inputs, target)


def baselines_before_target(model, inputs, baselines=None, target=None):
    assert baselines is None
    return gradient(model, inputs, target)


def model_and_case(name):
    pair = registered_pairs()[name]
    return pair.build(0, DOUBLE, CPU)[0], pair.case(0, DOUBLE, CPU)


def assert_close(attribution, expected):
    torch.testing.assert_close(attribution, expected, rtol=1e-9, atol=1e-12)


PAIRS = ["product.x1x2x3", "control.bert"]
FUNCTION_GUESS = "called as (model, inputs, target), judged by its parameters"
METHOD_GUESS = f"attribute {FUNCTION_GUESS}"
KEYWORD_GUESS = "called as (model, inputs, target=target), judged by its parameters"
CAPTUM_GUESS = (
    "attribute called as (inputs, target=target); attribute is passed baselines and feature_mask if it has these "
    "parameters, judged by its parameters"
)


# --- told how to call the object ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRS)
def test_from_function_calls_model_inputs_target(name):
    model, case = model_and_case(name)
    explainer = from_function(gradient, name="mine")
    assert_close(attribution_of(explainer, model, case), attribution_of(GradientTimesInput(), model, case))
    assert (explainer.name, explainer.guessed) == ("mine", "")


@pytest.mark.parametrize("arguments", [None, ("baselines", "feature_mask")], ids=["by parameters", "named"])
@pytest.mark.parametrize("make", [LikeCaptum, ablation_of])
@pytest.mark.parametrize("name", PAIRS)
def test_from_captum_makes_the_object_for_each_model(make, arguments, name):
    model, case = model_and_case(name)
    explainer = from_captum(make, arguments=arguments)
    assert_close(attribution_of(explainer, model, case), attribution_of(LeaveOneOut(), model, case))
    assert explainer.name == make.__name__
    assert bool(explainer.guessed) == (arguments is None)


def test_from_captum_passes_only_the_named_arguments():
    passed = []

    class Recorder:
        def __init__(self, model):
            pass

        def attribute(self, inputs, **arguments):
            passed.append(set(arguments))
            return inputs

    model, case = model_and_case("product.x1x2x3")
    for arguments in ((), ("baselines",), ("feature_mask",)):
        from_captum(Recorder, arguments=arguments).attribute(model, case)
    assert passed == [{"target"}, {"target", "baselines"}, {"target", "feature_mask"}]
    with pytest.raises(ValueError, match="unknown argument of attribute 'baseline': did you mean baselines"):
        from_captum(Recorder, arguments=["baseline"])


@pytest.mark.parametrize("adapt", [from_function, from_captum])
def test_the_adapters_take_the_description_and_refuse_what_cannot_be_called(adapt):
    described = {"claims": {"invariance"}, "expected": {}, "label": "Mine", "summary": "what it computes"}
    explainer = adapt(lambda *_: None, name="mine", **described)
    assert {key: getattr(explainer, key) for key in described} == described
    assert isinstance(explainer, Explainer)
    assert adapt(lambda *_: None, name="mine").label == "mine"
    with pytest.raises(NotAnExplainer, match="got int 7"):
        adapt(7)


# --- judged by the parameters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidate", "guess"),
    [
        (gradient, FUNCTION_GUESS),
        (CallableObject, FUNCTION_GUESS),
        (CallableObject(), FUNCTION_GUESS),
        (Method, METHOD_GUESS),
        (Method(), METHOD_GUESS),
        (keyword_only, KEYWORD_GUESS),
        (baselines_before_target, KEYWORD_GUESS),
    ],
    ids=range(7),
)
@pytest.mark.parametrize("name", PAIRS)
def test_a_call_with_model_inputs_and_target_is_recognised_and_said(candidate, guess, name):
    model, case = model_and_case(name)
    explainer = as_explainer(candidate)
    assert_close(attribution_of(explainer, model, case), attribution_of(GradientTimesInput(), model, case))
    assert explainer.guessed == guess


@pytest.mark.parametrize(
    ("candidate", "guess"),
    [
        (LikeCaptum, "made as LikeCaptum(model)"),
        (ablation_of, "called with each model to make it"),
        (LikeCaptum(nn.Linear(3, 1)), "copied, with each checked model as its forward_func"),
        (lambda model: ablation_of(model), "called with each model to make it"),
    ],
    ids=range(4),
)
@pytest.mark.parametrize("name", PAIRS)
def test_an_object_made_for_a_model_is_recognised_and_said(candidate, guess, name):
    model, case = model_and_case(name)
    explainer = as_explainer(candidate)
    assert_close(attribution_of(explainer, model, case), attribution_of(LeaveOneOut(), model, case))
    assert explainer.guessed == f"{guess}; {CAPTUM_GUESS}"


def test_the_origin_in_the_report_says_what_was_guessed(tmp_path, monkeypatch):
    (tmp_path / "my_adapted.py").write_text(
        "from faithcheck.explainers import from_function\n"
        "def judged(model, inputs, target):\n    return inputs\n"
        "told = from_function(judged, name='told')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert origin("my_adapted:judged", load_explainer("my_adapted:judged")) == f"my_adapted:judged; {FUNCTION_GUESS}"
    assert origin("my_adapted:told", load_explainer("my_adapted:told")) == "my_adapted:told"


class Masked(nn.Module):
    """The squared sum of the tokens that the attention mask keeps, so that a wrong row of it changes the output."""

    def forward(self, inputs, attention_mask):
        return (inputs.sum(2) * attention_mask).sum(1, keepdim=True) ** 2


def steps_in_one_batch(model, inputs, target):
    """Integrated gradients whose steps are rows of one batch, example by example."""
    steps = (torch.arange(16, dtype=inputs.dtype) + 0.5) / 16
    points = (inputs[:, None] * steps[:, None, None]).flatten(0, 1).requires_grad_()
    explained = model(points).gather(1, target.repeat_interleave(16)[:, None]).sum()
    (gradients,) = torch.autograd.grad(explained, points)
    return inputs * gradients.unflatten(0, (-1, 16)).mean(1)


def test_forward_arguments_are_repeated_for_the_rows_of_their_example():
    inputs = torch.randn(3, 4, 2, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    case = Case(
        inputs, torch.zeros(3, dtype=torch.int64), torch.zeros_like(inputs), forward_arguments={"attention_mask": mask}
    )
    expected = attribution_of(IntegratedGradients(), Masked(), case)
    assert expected.abs().min(1).values[0] > 0
    assert_close(attribution_of(as_explainer(steps_in_one_batch), Masked(), case), expected)


def test_an_adapted_explainer_keeps_its_name_and_claims():
    def mine(model, inputs, target):
        return inputs

    mine.claims = {"invariance"}
    explainer = as_explainer(mine)
    assert (explainer.name, explainer.claims, explainer.expected) == ("mine", {"invariance"}, {})
    assert as_explainer(LikeCaptum).name == "LikeCaptum"
    assert as_explainer(CallableObject(), name="mine").name == "mine"
    protocol_explainer = GradientTimesInput()
    assert as_explainer(protocol_explainer) is protocol_explainer


class ForALayer:
    def __init__(self, forward_func, layer):
        self.forward_func, self.layer = forward_func, layer

    def attribute(self, inputs, target=None):
        raise NotImplementedError


class Nameless:
    def attribute(self, model, case):
        raise NotImplementedError


PERCEPTRON = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        (7, "expected `attribute.*found int 7"),
        ({}, "found dict {}"),
        (lambda a, b, c, d: a, "expected `attribute.*found function"),
        (lambda inputs, layer, target: inputs, "expected `attribute.*found function"),
        (Nameless, "without a string `name`"),
        (ForALayer, r"ForALayer is made of \(forward_func, layer\): give an object"),
        (ForALayer(PERCEPTRON, PERCEPTRON[0]), r"made for a part of one model \(layer\): give a function"),
        (LikeCaptum(PERCEPTRON.forward), "not made for a module"),
        (PERCEPTRON, "found Sequential"),
    ],
    ids=range(9),
)
def test_an_object_that_is_no_explainer_is_refused(candidate, message):
    with pytest.raises(NotAnExplainer, match=message):
        as_explainer(candidate)


class Unchanged(nn.Module):
    def forward(self, inputs, attention_mask=None):
        return inputs


@pytest.mark.parametrize("forward_arguments", [{}, {"attention_mask": torch.ones(2, 3)}], ids=["none", "a mask"])
def test_a_result_that_is_no_attribution_is_refused(forward_arguments):
    inputs = torch.ones(2, 3, dtype=DOUBLE)
    case = Case(inputs, torch.zeros(2, dtype=torch.int64), inputs * 0, forward_arguments=forward_arguments)
    with pytest.raises(InvalidAttribution, match="expected a tensor, got NoneType"):
        attribution_of(as_explainer(lambda model, inputs, target: None), Unchanged(), case)


# --- what is missing, and what is not meant ---------------------------------------------------------------------------


class WithoutTarget:
    """Like a class of captum, but it explains no output in particular."""

    def __init__(self, forward_func):
        self.forward_func = forward_func

    def attribute(self, inputs, baselines=None):
        return inputs


@pytest.mark.parametrize("candidate", [WithoutTarget, WithoutTarget(PERCEPTRON)], ids=["class", "object"])
def test_a_class_without_a_target_is_refused_and_the_target_is_named(candidate):
    message = r"WithoutTarget.attribute\(inputs, baselines\) has no parameter `target`.*: add `target=None`"
    with pytest.raises(NotAnExplainer, match=message):
        as_explainer(candidate)


def with_a_mask(model, input_ids, attention_mask):
    return input_ids


class MethodWithAMask:
    name = "with_a_mask"

    def attribute(self, model, inputs, token_type_ids):
        return inputs


@pytest.mark.parametrize(
    ("candidate", "name"), [(with_a_mask, "attention_mask"), (MethodWithAMask(), "token_type_ids")], ids=["f", "method"]
)
def test_a_third_parameter_that_is_no_target_is_refused_by_name(candidate, name):
    with pytest.raises(NotAnExplainer, match=f"is '{name}', and it would get the target: name it `target`"):
        as_explainer(candidate)


@pytest.mark.parametrize(
    "candidate",
    [lambda model, x, y: x, lambda model, x, label: x, lambda model, x, class_idx: x, lambda model, x, *, target: x],
    ids=["y", "label", "class_idx", "keyword"],
)
def test_names_of_targets_are_taken(candidate):
    assert "judged by its parameters" in as_explainer(candidate).guessed


class InFloat32(LikeCaptum):
    """Like captum's Lime: whatever the inputs are, the attribution is float32."""

    def attribute(self, inputs, target=None):
        return inputs.float()


def test_a_result_in_float32_is_refused_with_the_way_out_and_cast_on_request():
    inputs = torch.ones(2, 3, dtype=DOUBLE)
    case = Case(inputs, torch.zeros(2, dtype=torch.int64), inputs * 0)
    with pytest.raises(InvalidAttribution, match=r"got torch.float32: from_captum\(…, cast=True\) converts it"):
        attribution_of(as_explainer(InFloat32), nn.Identity(), case)
    cast = from_captum(InFloat32, cast=True)
    assert attribution_of(cast, nn.Identity(), case).dtype == DOUBLE
    assert origin("mine:cast", cast).endswith("its attributions are cast to the dtype of the inputs")
