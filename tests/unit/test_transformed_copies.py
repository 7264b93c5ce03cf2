"""Transforms of any model of transformers: each is found where it changes the function, or where an explainer errs.

`make architectures` applies all of them to every class.
"""

import re
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from faithcheck.explainers import CPLRP, AttnLRP, GradientTimesInput, LeaveOneOut, Unsupported
from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.protocol import attribution_of
from faithcheck.tests.helpers.architecture_checks import holding, outcome
from faithcheck.tests.helpers.installed.classes import installed_classes
from faithcheck.tests.helpers.installed.small_model import small_model
from faithcheck.tests.helpers.installed.transforms import TRANSFORMS, DoesNotApply, InstalledTransform, is_exact
from faithcheck.tests.helpers.transformed_copies import (
    FLOAT64,
    TOGETHER,
    TransformedCopies,
    names,
    without_each_token,
)

BY_NAME = {transform.name: transform for transform in TRANSFORMS}
APPLY_TO = {
    "GPT2LMHeadModel": "sdpa, cache, last token alone, own weights, Conv1D as linear, LayerNorm in parts",
    "BertForSequenceClassification": "sdpa, chunks of tokens, frozen weights, shared activations, activations as "
    "products, linear maps as products, low-rank adapters, linear maps in blocks, computed weights",
    "MixtralForCausalLM": "experts at once",
    "ResNetForImageClassification": "convolutions in halves, BatchNorm as affine",
}
EXPLAINERS = [AttnLRP(), CPLRP(), LeaveOneOut()]


def small(name):
    """The model and the case of the first class of this name."""
    return small_model(next(kind for kind in installed_classes() if kind.name == name))


@pytest.fixture(scope="module")
def bert():
    return small("BertForSequenceClassification")


def test_every_transform_is_tested_on_a_class():
    assert {name for listed in APPLY_TO.values() for name in listed.split(", ")} == set(BY_NAME)


@pytest.mark.parametrize(("model_class", "listed"), APPLY_TO.items(), ids=APPLY_TO)
def test_each_transform_alone_leaves_function_and_maps_alone(model_class, listed):
    model, case = small(model_class)
    maps = [attribution_of(explainer, model, case) for explainer in EXPLAINERS]
    for name in listed.split(", "):
        copies = TransformedCopies(model, case, [BY_NAME[name]])
        assert names(copies.applied) == (name,), copies.reasons
        for explainer, attribution in zip(EXPLAINERS, maps, strict=True):
            gaps, refused = copies.gaps(lambda g, e=explainer: attribution_of(e, g, case), attribution, FLOAT64)
            assert (refused, max(gaps.values()) < FLOAT64) == ({}, True), (name, explainer.name)


def test_the_readout_gate_reads_the_whole_of_an_adapter_behind_the_layers():
    """The head's first map reads all hidden states: beside an adapter, so do the map and the module of both."""
    model, case = small("ModernBertDecoderForSequenceClassification")
    copies = TransformedCopies(model, case, [BY_NAME["low-rank adapters"]])
    assert "low-rank adapters" in holding({"": outcome(ReadoutGate(), model, case, copies)})[""]


def changed(change, name="faulty", operation=""):
    """A transform, made up for a test."""
    return InstalledTransform(name, change, operation)


def larger(model):
    """A fault: a bias is changed, which no transform replaces."""
    model.model.classifier.bias.mul_(1 + 1e-6)


def blind(model):
    """A fault in what is seen without a token alone."""
    forward = model.forward
    model.forward = lambda inputs, attention_mask, **others: forward(inputs, torch.ones_like(attention_mask), **others)


def flat(model):
    """A fault that a gradient sees alone."""
    forward = model.forward
    model.forward = lambda inputs, **others: forward(inputs.detach(), **others) + 0 * inputs.sum()


def without_gradient(model):
    """A fault: the model writes over what its gradient needs."""
    forward = model.forward
    model.forward = lambda inputs, **others: forward(inputs.exp().mul_(1).log(), **others)


def failing(model):
    """A fault: the model no longer runs."""
    model.model = nn.Identity()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (changed(larger), r"another function: \S+ in its outputs$"),
        (changed(blind), r"another function: \S+ in its outputs without a token$"),
        (changed(flat), r"another function: \S+ in its gradient$"),
        (changed(without_gradient), "it has no gradient"),
        (changed(failing), "AttributeError: 'Identity' object has no attribute"),
        (changed(lambda model: None, operation="fft_fft2"), "no further fft_fft2 runs"),
    ],
    ids=["outputs", "without a token", "gradient", "no gradient", "error", "no operation"],
)
def test_a_transform_that_changes_the_function_is_named_and_left_out(fault, reason, bert):
    copies = TransformedCopies(*bert, [BY_NAME["sdpa"], BY_NAME["computed weights"], fault])
    assert names(copies.applied) == ("sdpa", "computed weights")
    assert re.match(reason, copies.reasons["faulty"])


def test_a_transform_that_changes_the_function_together_with_another_is_an_error(bert):
    def once(model):
        model.calls = getattr(model, "calls", 0) + 1
        if model.calls == 2:
            larger(model)

    with pytest.raises(ValueError, match="each transform leaves the function alone, but not all of them"):
        TransformedCopies(*bert, [changed(once, "first"), changed(once, "second")])


@dataclass
class CountingParameters:
    """Gradient × input, times the number of parameters that require a gradient."""

    name: str = "counting_parameters"

    def attribute(self, model, case):
        count = sum(weight.requires_grad for weight in model.parameters())
        return GradientTimesInput().attribute(model, case) * count


def test_an_explainer_that_reads_parameters_fails_under_the_transforms_that_change_them(bert):
    model, case = bert
    copies = TransformedCopies(model, case)
    held = holding({"": outcome(CountingParameters(), model, case, copies)})[""]
    fails = set(names(copies.applied)) - set(held)
    assert fails == {"frozen weights", "low-rank adapters", "computed weights"}
    assert "copy" in held
    assert TOGETHER not in held
    assert set(names(copies.applied)) | {TOGETHER} <= set(holding({"": outcome(AttnLRP(), model, case, copies)})[""])


@dataclass
class Refusing:
    """Gradient × input that refuses models of some kind."""

    refuses: object
    name: str = "refusing"

    def attribute(self, model, case):
        if self.refuses(model):
            raise Unsupported("no rule for this")
        return GradientTimesInput().attribute(model, case)


def is_frozen(model):
    return not all(weight.requires_grad for weight in model.parameters())


def is_sdpa(model):
    return model.model.config._attn_implementation == "sdpa"


def test_a_transform_that_an_explainer_refuses_is_named_and_the_others_are_checked(bert):
    model, case = bert
    copies = TransformedCopies(model, case)
    found = outcome(Refusing(is_frozen), model, case, copies)
    assert found["refused"] == {"frozen weights": "no rule for this"}
    assert "frozen weights" not in found["checks"]
    assert {"sdpa", "computed weights", TOGETHER} <= set(holding({"": found})[""])


def test_a_refusal_of_transforms_together_is_no_refusal_of_the_class(bert):
    model, case = bert
    found = outcome(Refusing(lambda m: is_frozen(m) and is_sdpa(m)), model, case, TransformedCopies(model, case))
    assert "it takes each transform, and refuses them together" in found["crashes"]


def test_a_refusal_in_a_check_is_no_refusal_of_the_class(bert):
    model, case = bert
    refuses_one_example = Refusing(lambda _: False)
    refuses_one_example.attribute = lambda m, c: (
        GradientTimesInput().attribute(m, c) if len(c.inputs) > 1 else Refusing(lambda _: True).attribute(m, c)
    )
    assert "it runs, but refuses in a check" in outcome(refuses_one_example, model, case)["crashes"]


def test_what_a_transform_needs_is_named():
    model, case = small("ResNetForImageClassification")
    reasons = TransformedCopies(model, case).reasons
    assert reasons["sdpa"] == "transformers has no SDPA for it"
    assert reasons["cache"] == "no cache"
    with pytest.raises(DoesNotApply, match="no Conv1D"):
        BY_NAME["Conv1D as linear"].change(model)


def test_the_form_of_gelu_with_tanh_is_another_function():
    assert is_exact(nn.GELU())
    assert not is_exact(nn.GELU(approximate="tanh"))


def test_each_token_is_masked_once(bert):
    case = without_each_token(bert[1])
    assert torch.equal(case.forward_arguments["attention_mask"], 1 - torch.eye(8, dtype=torch.int64))
    assert torch.equal(case.inputs, bert[1].inputs[:1].expand(8, -1, -1))
