"""Explainers set the modes that they need, of the model and of torch, and restore those of the caller."""

import copy
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from faithcheck.explainers import builtin_explainers
from faithcheck.explainers.loo.hierarchical import HierarchicalLeaveOneOut
from faithcheck.explainers.lrp.attnlrp import AttnLRP
from faithcheck.explainers.lrp.blockwise import BlockwiseLRP
from faithcheck.explainers.lrp.ledger import conservation_ledger, ledger_of_batch
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.case import Case

TOKENS, WIDTH = 5, 8


class Network(nn.Module):
    """A small Transformer with dropout of three kinds, and batch norm over its read row."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm, self.head = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x):
        x = x + self.positions(torch.arange(x.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))


class Layer(nn.Module):
    """Attention and a map, each with dropout and a residual connection."""

    def __init__(self):
        super().__init__()
        self.query, self.map, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)

    def forward(self, x):
        p = 0.5 if self.training else 0.0
        query = self.query(x)
        weights = nn.functional.dropout(torch.softmax(query @ x.mT, -1), 0.3, self.training)
        x = x + weights @ x + nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=p) * 0
        return x + self.dropout(torch.relu(self.map(x)))


def network():
    torch.manual_seed(0)
    model = Network().double().eval()
    model.norm.running_mean.normal_()
    return model


EXPLAINERS = [
    *builtin_explainers().values(),
    HierarchicalLeaveOneOut(by="sentence", budget=1.0),
]


def case_of_sentences():
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    sentences = torch.tensor([0, 0, 1, 1, 1]).expand(2, -1)
    return Case(x, torch.tensor([0, 1]), torch.zeros_like(x), segments={"sentence": sentences})


@contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "device": lambda: torch.device("meta"),
    "float16": lambda: default_dtype(torch.float16),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
}


def modes_of_torch():
    autocast, gradients = torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()
    defaults = str(torch.get_default_device()), torch.get_default_dtype()
    return autocast, gradients, torch.is_inference_mode_enabled(), *defaults


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("explainer", EXPLAINERS, ids=lambda explainer: explainer.name)
def test_the_callers_modes_change_nothing(explainer, mode):
    model, case = network().float(), case_of_sentences().to(torch.float32)
    expected = outcome(explainer, model, case)
    with MODES[mode]():
        before = modes_of_torch()
        found = outcome(explainer, model, case)
        assert modes_of_torch() == before
    assert_same(found, expected)


@pytest.mark.parametrize("explainer", EXPLAINERS, ids=lambda explainer: explainer.name)
def test_tensors_made_in_inference_mode_are_copied(explainer):
    model, case = network(), case_of_sentences()
    expected = outcome(explainer, model, case)
    with torch.inference_mode():
        made, copied = copy.deepcopy(model), case.copy()
    made.head.weight = model.head.weight  # some of its weights are ordinary ones
    weights = {name: id(weight) for name, weight in made.state_dict(keep_vars=True).items()}
    assert copied.inputs.is_inference()
    assert made.layers[0].map.weight.is_inference()
    assert_same(outcome(explainer, made, copied), expected)
    assert {name: id(weight) for name, weight in made.state_dict(keep_vars=True).items()} == weights


@pytest.mark.parametrize("explainer", [AttnLRP(), BlockwiseLRP()], ids=lambda explainer: explainer.name)
@pytest.mark.parametrize("mode", MODES)
def test_the_ledger_is_the_same_in_the_callers_modes(explainer, mode):
    model, case = network(), case_of_sentences()
    expected = conservation_ledger(explainer, model, case)
    with MODES[mode]():
        found, summed = conservation_ledger(explainer, model, case), ledger_of_batch(explainer, model, case)
    assert torch.equal(found.attribution, expected.attribution)
    assert found.by_cause().keys() == expected.by_cause().keys()
    assert all(torch.equal(lost, expected.by_cause()[cause]) for cause, lost in found.by_cause().items())
    torch.testing.assert_close(summed.attribution, expected.attribution.sum(0, keepdim=True))


def test_a_model_may_rely_on_the_callers_default_dtype():
    class Made(nn.Module):
        def forward(self, x):
            return (x * torch.full((3,), 1 / 3)).sum(1, keepdim=True) + torch.zeros(1).to(x) @ torch.zeros(1, 1)

    case = Case(torch.ones(1, 3, dtype=torch.float64), torch.tensor([0]), torch.zeros(1, 3, dtype=torch.float64))
    with default_dtype(torch.float64):
        assert torch.equal(AttnLRP().attribute(Made(), case), torch.full((1, 3), 1 / 3))


@pytest.mark.parametrize("explainer", EXPLAINERS, ids=lambda explainer: explainer.name)
def test_a_transform_of_torch_func_is_refused(explainer):
    model, case = network(), case_of_sentences()
    with pytest.raises(Unsupported, match=r"within a transform of torch.func.*explain a batch"):
        torch.func.vmap(lambda x: explainer.attribute(model, replace(case, inputs=x)))(case.inputs.unsqueeze(0))


@pytest.mark.parametrize("explainer", EXPLAINERS, ids=lambda explainer: explainer.name)
def test_train_mode_changes_nothing(explainer):
    case = case_of_sentences()
    expected = outcome(explainer, network(), case)
    model = network().train()
    model.layers[1].dropout.eval()
    modes, state = [module.training for module in model.modules()], copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    found = outcome(explainer, model, case)
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert_same(found, expected)


def assert_same(found, expected):
    if isinstance(expected, str):
        assert found == expected
        assert "train mode" not in found
    else:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def outcome(explainer, model, case):
    """The map, or the refusal."""
    try:
        return explainer.attribute(model, case)
    except Unsupported as error:
        return str(error)
