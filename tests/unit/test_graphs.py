"""Models that torch has made a graph of, or that are wrapped: their maps where a method allows it, or a refusal."""

import pytest
import torch
from torch import nn

from faithcheck.explainers import AttnLRP, GradientTimesInput, IntegratedGradients, LeaveOneOut, builtin_explainers
from faithcheck.explainers.protocol import Unsupported, attribution_of
from faithcheck.models.case import Case

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:Dynamo detected")


class Holder(nn.Module):
    """A model that holds another, as `DistributedDataParallel` and the models of PEFT do."""

    def __init__(self, inner):
        super().__init__()
        self.module = inner

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def forward(self, x):
        return self.module(x)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double().eval()


X = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
CASE = Case(X, torch.tensor([0, 1]), torch.zeros_like(X))
BATCH = {"input": {0: torch.export.Dim.DYNAMIC}}


def exported(model, **options):
    return torch.export.export(model, (X,), **options).module()


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


GRAPHS = {
    "scripted": (torch.jit.script, "is TorchScript"),
    "traced": (lambda model: torch.jit.trace(model, X), "is TorchScript"),
    "frozen": (lambda model: torch.jit.freeze(torch.jit.script(model)), "is TorchScript"),
    "in train mode": (lambda model: torch.jit.script(model.train()), "is TorchScript"),
    "exported": (lambda model: exported(model, dynamic_shapes=BATCH), "is a graph of torch.export"),
    "compiled": (lambda model: torch.compile(model, backend="eager"), "is compiled by torch.compile"),
    "compiled in place": (compiled_in_place, "is compiled by torch.compile"),
    "traced by fx": (torch.fx.symbolic_trace, None),
    "data parallel": (nn.DataParallel, None),
    "wrapped": (Holder, None),
}


@pytest.mark.parametrize("held", [False, True], ids=["itself", "held"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_a_graph_has_the_maps_of_its_model_or_is_refused(graph, held):
    make, refusal = GRAPHS[graph]
    model = make(network())
    model = Holder(model) if held else model
    for explainer in (LeaveOneOut(), GradientTimesInput(), IntegratedGradients(16)):
        expected = attribution_of(explainer, network(), CASE)
        torch.testing.assert_close(attribution_of(explainer, model, CASE), expected, rtol=1e-12, atol=1e-12)
    if refusal is None:
        assert torch.equal(attribution_of(AttnLRP(), model, CASE), attribution_of(AttnLRP(), network(), CASE))
    else:
        with pytest.raises(Unsupported, match=f"{refusal}.*explain the module"):
            attribution_of(AttnLRP(), model, CASE)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # from torch.compile, where a gate stands in for a softmax
@pytest.mark.parametrize("graph", GRAPHS)
def test_no_built_in_explainer_fails_at_a_graph(graph):
    model = GRAPHS[graph][0](network())
    for explainer in builtin_explainers().values():
        try:
            attribution_of(explainer, model, CASE)
        except Unsupported:
            assert explainer.name not in ("loo", "gradient_x_input", "integrated_gradients")


def test_a_graph_that_was_exported_for_one_batch_says_so():
    model = exported(network())
    assert attribution_of(GradientTimesInput(), model, CASE).shape == X.shape
    with pytest.raises(Unsupported, match=r"for inputs of one shape.*dynamic_shapes"):
        attribution_of(LeaveOneOut(), model, CASE)


def test_an_exported_program_is_no_module():
    with pytest.raises(Unsupported, match="got ExportedProgram: give its"):
        attribution_of(GradientTimesInput(), torch.export.export(network(), (X,)), CASE)


def test_a_scripted_function_hides_its_operations():
    class Scripted(nn.Module):
        def __init__(self):
            super().__init__()
            self.map, self.function = network()[0], torch.jit.script(squared_tanh)

        def forward(self, x):
            return self.map(self.function(x))

    model = Scripted()
    assert attribution_of(GradientTimesInput(), model, CASE).abs().sum() > 0
    with pytest.raises(Unsupported, match=r"hides its operations.*TorchScript"):
        AttnLRP().attribute(model, CASE)


def squared_tanh(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tanh(x)
