"""Explainers run a model in eval mode and put it back: none draws dropout or moves the statistics of batch norm."""

import copy

import pytest
import torch
from torch import nn

from faithcheck.explainers import builtin_explainers
from faithcheck.explainers.loo.hierarchical import HierarchicalLeaveOneOut
from faithcheck.explainers.loo.sparse_surrogate import SparseSurrogate
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
    SparseSurrogate(ablations=8),
]


@pytest.mark.parametrize("explainer", EXPLAINERS, ids=lambda explainer: explainer.name)
def test_train_mode_changes_nothing(explainer):
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    sentences = torch.tensor([0, 0, 1, 1, 1]).expand(2, -1)
    case = Case(x, torch.tensor([0, 1]), torch.zeros_like(x), segments={"sentence": sentences})
    expected = outcome(explainer, network(), case)
    model = network().train()
    model.layers[1].dropout.eval()
    modes, state = [module.training for module in model.modules()], copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    found = outcome(explainer, model, case)
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
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
