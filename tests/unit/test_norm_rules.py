"""The rules for norms of vectors and of groups, variances and modules that compute RMSNorm."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.models.hy_v4.modeling_hy_v4 import HYV4UnweightedRMSNorm

from faithcheck.explainers import CPLRP, AttnLRP, EpsilonLRP, Unsupported
from faithcheck.explainers.lrp.ledger import conservation_ledger
from faithcheck.models import Case
from faithcheck.models.architectures.embedding_model import KeepFloat64
from faithcheck.tests.helpers.fixtures import double as double  # for every test here
from faithcheck.tests.helpers.relevance_of_operands import CLOSE, both_forms, relevance_of

X = torch.tensor([[3.0, -4.0, 1.0], [0.5, 2.0, 0.0]], dtype=torch.float64)


def case_of(x):
    return Case(x, torch.zeros(len(x), dtype=torch.int64), torch.zeros_like(x))


class Function(nn.Module):
    """A function of the inputs."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


# --- vectors ----------------------------------------------------------------------------------------------------------


def norm(order=2):
    return Function(lambda x: torch.linalg.vector_norm(x, order, dim=-1, keepdim=True))


def norm_oracle(x, relevance, epsilon):
    """R_i = x_i (x_i/y) R / (y + ε) for the Euclidean norm y, ``(n,), float -> (n,)``."""
    y = math.sqrt(sum(float(value) ** 2 for value in x))
    return x.new_tensor([float(value) ** 2 / y * relevance / (y + epsilon) for value in x])


@both_forms
@pytest.mark.parametrize("method", [EpsilonLRP, AttnLRP, CPLRP])
def test_norm_against_the_oracle(method, epsilon):
    attribution = method(epsilon).attribute(norm(), case_of(X))
    expected = torch.stack([norm_oracle(x, float(x.norm()), epsilon) for x in X])
    torch.testing.assert_close(attribution, expected, **CLOSE)


@pytest.mark.parametrize("order", [1, 2, 3, math.inf])
def test_norm_conserves_relevance(order):
    ledger = conservation_ledger(AttnLRP(), norm(order), case_of(X))
    assert ledger.by_cause() == {}
    assert ledger.gap < 1e-12


def test_the_0_norm_is_refused():
    with pytest.raises(Unsupported, match="0-norm"):
        AttnLRP().attribute(norm(0), case_of(X))


@both_forms
@pytest.mark.parametrize("order", [1.0, 2.0, math.inf])
def test_a_vector_over_its_norm_is_a_linear_map_with_a_constant_norm(order, epsilon):
    x, relevance = torch.randn(2, 4), torch.randn(2, 4)
    (actual,) = relevance_of(lambda x: functional.normalize(x, order, -1), x, relevance=relevance, epsilon=epsilon)
    z = x / torch.linalg.vector_norm(x, order, -1, keepdim=True)
    torch.testing.assert_close(actual, relevance * z.abs() / (z.abs() + epsilon), **CLOSE)


# --- groups -----------------------------------------------------------------------------------------------------------


@both_forms
def test_group_norm_of_one_group_is_layer_norm(epsilon):
    x, relevance, gamma, beta = torch.randn(2, 6), torch.randn(2, 6), torch.randn(6), torch.randn(6)
    actual, expected = (
        relevance_of(operation, x, relevance=relevance, epsilon=epsilon)[0]
        for operation in (
            lambda x: functional.group_norm(x, 1, gamma, beta, 1e-3),
            lambda x: functional.layer_norm(x, (6,), gamma, beta, 1e-3),
        )
    )
    torch.testing.assert_close(actual, expected, **CLOSE)


def test_group_norm_keeps_its_value_and_names_what_its_bias_keeps():
    torch.manual_seed(0)
    norm = nn.GroupNorm(2, 4)
    nn.init.normal_(norm.bias)
    model = nn.Sequential(nn.Unflatten(1, (4, 3)), norm, nn.Flatten())
    x = torch.randn(2, 12)
    ledger = conservation_ledger(AttnLRP(), model, case_of(x))
    assert set(ledger.by_cause()) == {"GroupNorm β"}
    assert ledger.gap < 1e-12
    torch.testing.assert_close(ledger.by_cause()["GroupNorm β"], norm.bias[0].detach().expand(2), **CLOSE)
    torch.testing.assert_close(ledger.start, model(x)[:, 0].detach(), **CLOSE)


@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("options", [{}, {"unbiased": False}, {"correction": 2}])
def test_variance_is_the_mean_of_squares(options, keepdim):
    x, correction = torch.randn(2, 5), {"unbiased": 0, "correction": 2}.get(next(iter(options), ""), 1)
    relevance = torch.randn(2, 1) if keepdim else torch.randn(2)

    def squares(x):
        return (x - x.mean(1, keepdim=True)).square().sum(1, keepdim=keepdim) / (5 - correction)

    actual, expected = (
        relevance_of(operation, x, relevance=relevance)[0]
        for operation in (lambda x: x.var(1, keepdim=keepdim, **options), squares)
    )
    torch.testing.assert_close(actual, expected, **CLOSE)


def test_batch_norm_of_one_example_whose_channels_lie_next_to_each_other():
    """Torch's own gradient is wrong there; the map is that of the affine map, in a batch and alone."""
    norm, tokens = nn.BatchNorm2d(4).eval(), torch.randn(2, 6, 4)
    for statistic in (norm.running_mean, norm.weight.data, norm.bias.data):
        statistic.normal_()
    readout = torch.randn(3, 24)

    def read(y):
        return functional.linear(y.reshape(len(y), 24), readout)

    model = Function(lambda x: read(norm(x.mT.view(len(x), 4, 2, 3))))
    factor = norm.weight.detach() / (norm.running_var + norm.eps).sqrt()
    offset = (norm.bias - norm.running_mean * factor).detach()
    affine = Function(lambda x: read((x * factor + offset).mT))
    for x in (tokens, tokens[:1]):
        expected = AttnLRP().attribute(affine, case_of(x))
        torch.testing.assert_close(AttnLRP().attribute(model, case_of(x)), expected, **CLOSE)


# --- modules ----------------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """W x times what a module gives for x, one number a row."""

    def __init__(self, statistic):
        super().__init__()
        self.statistic, self.linear = statistic, nn.Linear(4, 3, bias=False)

    def forward(self, x):
        with KeepFloat64():
            return self.linear(x) * self.statistic(x)


def test_a_module_that_returns_the_inverse_root_mean_square_is_held_constant():
    model, x = Scaled(HYV4UnweightedRMSNorm(1e-6)).eval(), torch.randn(2, 4)
    ledger = conservation_ledger(AttnLRP(), model, case_of(x))
    scale = (x.square().mean(1, keepdim=True) + 1e-6).rsqrt()
    torch.testing.assert_close(ledger.attribution, x * model.linear.weight[0].detach() * scale, **CLOSE)
    assert ledger.gap < 1e-12


class NormWithAnother(nn.Module):
    """RMSNorm(x) ⊙ σ(W RMSNorm(x)), in a class whose name is that of a norm."""

    def __init__(self):
        super().__init__()
        self.norm, self.gate = nn.RMSNorm(4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.norm(x)
        return y * torch.sigmoid(self.gate(y))


class BiasedRMSNorm(nn.Module):
    """x + b: no diagonal map, whatever its name says."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x + self.bias


class GatedRMSNorm(NormWithAnother):
    """A name that the rule for RMSNorm fits."""


def test_a_norm_with_a_gate_is_several_operations():
    gated, named_otherwise = GatedRMSNorm().eval(), NormWithAnother().eval()
    named_otherwise.load_state_dict(gated.state_dict())
    case = case_of(torch.randn(2, 4))
    expected = AttnLRP().attribute(named_otherwise, case)
    torch.testing.assert_close(AttnLRP().attribute(gated, case), expected, **CLOSE)


def test_a_norm_with_a_bias_is_no_diagonal_map():
    x = torch.randn(2, 4)
    assert not AttnLRP().attribute(BiasedRMSNorm(), case_of(x))[:, 1:].any()
    torch.testing.assert_close(AttnLRP().attribute(BiasedRMSNorm(), case_of(x))[:, 0], x[:, 0], **CLOSE)
