"""What an explainer returns becomes a plain tensor, and it is refused if no forward pass of the model succeeded."""

import copy
import functools

import pytest
import torch
from torch import nn

from faithcheck import check_explainer
from faithcheck.axioms.trace import trace
from faithcheck.explainers.protocol import InvalidAttribution, attribution_of, checked_attribution
from faithcheck.models import Case, registered_pairs

POINT = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
CASE = Case(POINT, torch.zeros(1, dtype=torch.int64), torch.zeros_like(POINT))
MLP = registered_pairs()["control.mlp"]


class Wrapped(torch.Tensor):
    """A tensor without values of its own: its class computes them."""

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)

    def __init__(self, values):
        self.values = values

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return cls(function(*(arg.values if isinstance(arg, cls) else arg for arg in args), **kwargs or {}))


class Agrees(torch.Tensor):
    """A tensor whose differences are 0, and which every function of torch returns as such a tensor."""

    def __sub__(self, other):
        return torch.zeros_like(self)

    def detach(self):
        return self

    def clone(self, **options):
        return self


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (torch.zeros(1, 3, dtype=torch.complex128), "expected floating point, got complex128"),
        (torch.eye(1, 3).to_sparse(), "expected a dense tensor, got a sparse_coo one: convert with .to_dense"),
        (
            torch.nested.nested_tensor([torch.zeros(3)], layout=torch.jagged),
            "expected a plain torch.Tensor, got .*Nested",
        ),
        (Wrapped(torch.zeros(1, 3)), r"expected a plain torch.Tensor, got .*\.Wrapped, which computes its values"),
        (torch.zeros(2, 3).double().as_subclass(Agrees), r"expected shape .*, got float64 \(2, 3\)"),
    ],
    ids="complex sparse nested wrapped subclass".split(),
)
def test_what_is_no_plain_tensor_is_refused_by_its_name(returned, message):
    with pytest.raises(InvalidAttribution, match=message):
        checked_attribution(returned, CASE)


class RandomMaps:
    """Random numbers, drawn anew at each call, that hide in a class of tensors how much they differ."""

    name = "random_maps"

    def attribute(self, model, case):
        return torch.rand(case.shape, dtype=case.inputs.dtype).as_subclass(Agrees)


@pytest.mark.parametrize("axiom", ["invariance", "determinism", "completeness", "linearity", "shift"])
def test_what_a_class_of_tensors_hides_is_measured(axiom):
    (record, *_) = check_explainer(RandomMaps(), [axiom], [MLP])
    assert record.gap > 1000 * record.tol


def test_a_valid_attribution_becomes_a_plain_tensor_of_its_own():
    with torch.inference_mode():
        inferred = torch.ones_like(POINT)
    conjugate = torch.complex(torch.zeros_like(POINT), -torch.ones_like(POINT)).conj().imag
    shared = torch.ones_like(POINT).requires_grad_()
    expanded = torch.ones_like(POINT[:, :1]).expand(1, 3)
    for returned in (inferred, conjugate, shared, expanded, shared.detach().as_subclass(Agrees)):
        plain = checked_attribution(returned, CASE)
        assert type(plain) is torch.Tensor
        assert not any((plain.requires_grad, plain.is_inference(), plain.is_neg()))
        assert plain.is_contiguous()
        plain.mul_(0)  # it shares no memory
        assert shared.detach().tolist() == [[1, 1, 1]]


class Swallows:
    """Turns the model's errors into zeros; the model is called with an argument that it may not have."""

    name = "swallows"

    def __init__(self, run=lambda model: model, **arguments):
        self.run, self.arguments = run, arguments

    def attribute(self, model, case):
        try:
            return case.inputs * self.run(model)(case.inputs, **self.arguments).sum().detach()
        except Exception:
            return torch.zeros_like(case.inputs)


RUNS = {
    "model": lambda model: model,
    "forward": lambda model: model.forward,
    "copy": copy.deepcopy,
    "forward of a copy": lambda model: copy.deepcopy(model).forward,
    "method of the class": lambda model: functools.partial(type(model).forward, model),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_an_attribution_without_a_forward_pass_that_succeeded_is_refused(run):
    model = nn.Linear(3, 1, dtype=torch.float64)
    method = nn.Linear.forward
    assert attribution_of(Swallows(run), model, CASE).abs().sum() > 0
    with pytest.raises(InvalidAttribution, match="every forward pass of the model failed"):
        attribution_of(Swallows(run, no_such_argument=1), model, CASE)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert nn.Linear.forward is method
    (record, *_) = check_explainer(Swallows(run, no_such_argument=1), ["completeness"], [MLP])
    assert record.status == "error"
    assert "every forward pass of the model failed" in record.detail["error"]


def test_observing_forward_passes_leaves_the_classes_as_they_were():
    class Inherits(nn.Linear):
        pass

    class Replaces:
        name = "replaces"

        def attribute(self, model, case):
            Inherits.forward = nn.Linear.forward
            return torch.zeros_like(case.inputs)

    model = Inherits(3, 1, dtype=torch.float64)
    attribution_of(Swallows(), model, CASE)
    assert "forward" not in vars(Inherits)
    attribution_of(Replaces(), model, CASE)
    assert vars(Inherits)["forward"] is nn.Linear.forward  # it stays, so that `trace` finds it


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_trace_finds_an_explainer_that_swallows_the_errors_of_a_model(run):
    (record,) = check_explainer(Swallows(run), ["trace"], [MLP])
    assert record.status == "broken claim"
    assert record.detail["left behind"] == "an attribution instead of an error, when the model failed"
    model, _ = MLP.build(0, torch.float64, torch.device("cpu"))
    assert trace(Swallows(run), model, MLP.case(0, torch.float64, torch.device("cpu"))).gap == 1
