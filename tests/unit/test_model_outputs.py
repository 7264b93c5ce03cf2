"""What a model returns: whatever is not ``(batch, outputs)`` is refused in one sentence, and blamed on the model."""

import re

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput

from faithcheck.explainers.protocol import attribution_of
from faithcheck.explainers.registry import load_explainer
from faithcheck.models.case import InvalidOutput
from faithcheck.models.pair import Pair, copies, random_points
from faithcheck.python_api import check_explainer
from faithcheck.reports.likely_causes import likely_cause

RETURNED = {  # what the model makes of its outputs (3, 2), and what the message says of it
    "one number each": (lambda y: y[:, 0], r"float64 \(\d+,\) on cpu.*give \.unsqueeze\(1\) of it"),
    "tuple": (lambda y: (y, None), r"a tuple of float64 \(\d+, 2\) on cpu, a NoneType.*one entry"),
    "list of numbers": (lambda y: y[:, 0].tolist(), "a list of a float, a float, a float"),
    "dict": (lambda y: {"logits": y}, "a dict of 'logits'.*one entry"),
    "ModelOutput": (lambda y: SequenceClassifierOutput(logits=y), r"SequenceClassifierOutput,.*give \.logits of it"),
    "ModelOutput without logits": (lambda y: SequenceClassifierOutput(loss=y.sum()), "of 'loss'.*one entry"),
    "an output a token": (lambda y: y.unsqueeze(1).repeat(1, 4, 1), r"\(\d+, 4, 2\).*at one token"),
    "scalar": (lambda y: y.sum(), r"float64 \(\) on cpu.*a row of outputs for each example"),
    "one row": (lambda y: y[:1], r"\(1, 2\).*a row of outputs for each example"),
    "classes": (lambda y: y.argmax(1, keepdim=True), "int64.*such as the logits"),
    "complex": (lambda y: y.to(torch.complex64), "complex64.*such as the logits"),
    "array": (lambda y: y.detach().numpy(), "a ndarray.*give a tensor"),
    "nothing": (lambda y: None, "a NoneType.*give a tensor"),
    "too few outputs": (lambda y: y[:, :1], "1 outputs, and the case explains the outputs .*from 0 to 0"),
    "float16 that overflows": (
        lambda y: (y * 1e6).half(),
        "float16.*NaN or infinite: run it in float32",
    ),
    "not a number": (lambda y: y * torch.nan, "values are NaN or infinite: mend it"),
}


class Returning(nn.Module):
    """A small model that returns something made of its outputs."""

    def __init__(self, make):
        super().__init__()
        self.layer, self.make = nn.Linear(3, 2), make

    def forward(self, inputs):
        return self.make(self.layer(inputs.tanh()))


def pair_of(make):
    return Pair("mine.returning", copies(lambda: Returning(make)), random_points(3, 3, classes=2), "they are equal")


@pytest.mark.parametrize("explainer", ["loo", "gradient_x_input"])
@pytest.mark.parametrize("name", RETURNED)
def test_what_is_no_outputs_is_refused_with_what_it_is_and_what_to_give(name, explainer):
    make, message = RETURNED[name]
    pair = pair_of(make)
    f, _ = pair.build(0, torch.float64, torch.device("cpu"))
    case = pair.case(0, torch.float64, torch.device("cpu"))
    if "float16" not in name:
        with pytest.raises(InvalidOutput, match=message):
            attribution_of(load_explainer(explainer), f, case)
    for record in check_explainer(explainer, pairs=[pair], axioms="loo"):
        assert record.status == "error"
        assert re.match("the model returned|f (fails|gives|computes)", record.detail["error"])
        assert record.traceback is None
        if record.axiom == "loo":
            assert likely_cause([record], {}).startswith("The model is at fault")


def test_an_error_of_the_model_is_not_blamed_on_the_explainer():
    def fail(outputs):
        raise KeyError("position_ids")

    for record in check_explainer("gradient_x_input", pairs=[pair_of(fail)], axioms="loo"):
        which = (
            "f fails on {}:" if record.axiom == "equivalence" else "the model fails on {} without an explainer, too:"
        )
        assert record.detail["error"] == f"{which.format('float64 (3, 3) on cpu')} KeyError: 'position_ids'"
        assert likely_cause([record], {}).startswith("The model is at fault")


def test_an_error_of_the_explainer_is_still_its_own():
    class Failing:
        name = "failing"

        def attribute(self, model, case):
            raise KeyError("mine")

    for record in check_explainer(Failing(), pairs=[pair_of(lambda y: y)], axioms="loo"):
        if record.axiom == "equivalence":
            continue
        assert record.detail["error"] == "KeyError: 'mine'"
        assert record.traceback
