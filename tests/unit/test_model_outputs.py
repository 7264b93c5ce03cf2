"""What a model returns: whatever is not ``(batch, outputs)`` is refused in one sentence, and blamed on the model."""

import re
from itertools import product

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput

from faithcheck.check import Check
from faithcheck.explainers.protocol import attribution_of
from faithcheck.explainers.registry import load_explainer
from faithcheck.models.case import InvalidOutput
from faithcheck.models.pair import Pair, copies, random_points
from faithcheck.python_api import check_explainer
from faithcheck.reports.likely_causes import likely_cause
from faithcheck.request import Settings

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


def raising(error):
    def fail(y):
        raise error

    return fail


def backward_within(y):
    y.sum().backward()
    return y


FAILS = {  # what a model does with its outputs (3, 2)
    **{type(error).__name__: raising(error) for error in (AssertionError(), NotImplementedError(), MemoryError("no"))},
    **{type(error).__name__: raising(error) for error in (StopIteration(), SystemExit(3), OSError("weights"))},
    "a word": lambda y: "yes",
    "a generator": lambda y: (row for row in y),
    "a view of another size": lambda y: y.view(7, -1),
    "other columns": lambda y: y[:, [0, 5]],
    "other rows": lambda y: y.T,
    "rows and outputs in one": lambda y: y.reshape(-1, 1),
    "no columns": lambda y: y[:, :0],
    "columns of all rows": lambda y: torch.cat([y, y[:, :1, None]], 1),
    "an attribute": lambda y: y.logits,
    "a key": lambda y: {}["logits"],
    "None in a sum": lambda y: None + y,
    "a division by zero": lambda y: y * (1 // 0),
    "infinite": lambda y: y / 0,
    "log of a negative number": lambda y: torch.log(-(y**2) - 1),
    "no gradient of the square root at 0": lambda y: torch.sqrt(y * 0),
    "a singular matrix": lambda y: torch.linalg.inv(y @ y.T * 0)[:, :2],
    "weights of another type": lambda y: nn.functional.linear(y, torch.ones(2, 2)),
    "weights on another device": lambda y: nn.functional.linear(y, torch.ones(2, 2, device="meta")),
    "on another device": lambda y: y.to("meta"),
    "an id outside of the vocabulary": lambda y: nn.functional.embedding((y * 0 + 9).long(), y)[:, 0],
    "an id that is a number": lambda y: nn.functional.embedding(y, y)[:, 0],
    "sparse": lambda y: y.to_sparse(),
    "truth values": lambda y: y > 0,
    "half": lambda y: y.half(),
    "bfloat16": lambda y: y.bfloat16(),
    "detached": lambda y: y.detach(),
    "NumPy": lambda y: torch.from_numpy(y.numpy()),
    "NumPy of detached outputs": lambda y: torch.from_numpy(y.detach().numpy()),
    "a number of Python": lambda y: y.detach() * y.sum().item(),
    "constant": lambda y: torch.zeros_like(y),
    "without gradient": torch.no_grad()(lambda y: y * 2),
    "in inference mode": torch.inference_mode()(lambda y: y * 2),
    "in place": lambda y: y.add_(1),
    "dropout": lambda y: nn.functional.dropout(y, 0.5, True),
    "random": lambda y: y + torch.rand(len(y), 2),
    "indices": lambda y: y.topk(1).indices,
    "a gradient within": lambda y: torch.autograd.grad(y.sum(), y)[0],
    "a backward pass within": backward_within,
    "a recursion": lambda y: FAILS["a recursion"](y),
}


@pytest.mark.filterwarnings("ignore")  # of torch, on some of these models
def test_no_message_of_torch_or_python_is_a_headline_where_the_model_is_at_fault():
    """The classes of errors may stand in a headline, behind what was at fault."""
    wrong = {**{name: make for name, (make, _) in RETURNED.items()}, **FAILS}
    assert len(wrong) >= 60
    headlines = []
    for name, explainer in product(wrong, ("attnlrp", "mask_gate")):
        record = Check("determinism", load_explainer(explainer), pair_of(wrong[name]), "f").run(Settings())
        said = record.detail.get("error", record.detail.get("reason", ""))
        if re.match(r"\w*(Error|Exception|Exit|Iteration)\b", said) or (record.status == "error" and not said):
            headlines.append((name, explainer, said))
    assert headlines == []


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
