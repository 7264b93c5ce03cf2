"""The backward pass of a Transformer's last layer: it skips rows without a gradient, and changes no attribution."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils.flop_counter import FlopCounterMode

from faithcheck.explainers.builtin import builtin_explainers
from faithcheck.explainers.fast import linear_map
from faithcheck.explainers.fast.linear_map import ConstantLinear, constant_linear
from faithcheck.explainers.modules import all_modules, outermost_layers
from faithcheck.tests.helpers.attention_models import case_of, embedding_model

SUMMED_IN_ANOTHER_ORDER = {"rtol": 1e-10, "atol": 1e-12}


@pytest.fixture
def many_rows(monkeypatch):
    """Sets the number of rows from which on rows are skipped."""
    return lambda rows: monkeypatch.setattr(linear_map, "MANY_ROWS", rows)


@pytest.mark.parametrize("shape", [(5, 4), (2, 5, 4)], ids=["rows", "batch"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_rows_without_a_gradient_cost_nothing(shape, bias):
    torch.manual_seed(0)
    linear = nn.Linear(4, 3, bias=bias, dtype=torch.float64)
    values = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    result = ConstantLinear.apply(values, linear.weight, linear.bias, True, False)
    assert torch.equal(result, linear(values))
    for rows in ([], [0], [1, 3], range(5)):
        gradient = torch.zeros_like(result)
        gradient[..., list(rows), 1:] = 1.0
        with FlopCounterMode(display=False) as counter:
            (made,) = torch.autograd.grad(result, values, gradient, retain_graph=True)
        assert counter.get_total_flops() == 2 * 3 * 4 * len(rows) * values.numel() // 20
        (plain,) = torch.autograd.grad(linear(values), values, gradient)
        torch.testing.assert_close(made, plain, **SUMMED_IN_ANOTHER_ORDER)
        assert not made[..., [j for j in range(5) if j not in rows], :].any()


@pytest.mark.parametrize("name", ["attnlrp", "cplrp", "blockwise_lrp", "mask_gate", "finite_mask_gate", "readout_gate"])
def test_rows_are_skipped_in_the_last_layer_alone(name, many_rows, monkeypatch):
    model, case, explainer = embedding_model("bert"), case_of("bert"), builtin_explainers()[name]
    apply, weights = ConstantLinear.apply, []

    def counted(values, weight, *options):
        weights.append(weight.data_ptr())
        return apply(values, weight, *options)

    monkeypatch.setattr(ConstantLinear, "apply", counted)
    plain = explainer.attribute(model, case)
    assert not weights, "few rows"
    many_rows(1)
    torch.testing.assert_close(explainer.attribute(model, case), plain, **SUMMED_IN_ANOTHER_ORDER)
    layer = next(module for module in model.modules() if isinstance(module, nn.ModuleList))[-1]
    assert weights == [module.weight.data_ptr() for module in layer.modules() if isinstance(module, nn.Linear)]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_computed_weights_keep_their_gradient(many_rows):
    many_rows(1)
    torch.manual_seed(0)
    values = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    for computed in (lambda: (values[:3].tanh(),), lambda: (torch.eye(4).double(), values[0].tanh())):
        made = torch.autograd.grad(constant_linear(True, values, *computed()).sum(), values)
        plain = torch.autograd.grad(nn.functional.linear(values, *computed()).sum(), values)
        assert torch.equal(*made, *plain)


def test_all_modules_are_those_of_torch():
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.ModuleList([shared, nn.Sequential(nn.ReLU())]), nn.Tanh())
    model.register_module("absent", None)
    assert all_modules(model) == list(model.modules())


def test_the_parametrization_of_a_weight_is_no_list_of_layers():
    """A model may compute the weight of a map before its layers."""
    layers = nn.ModuleList([nn.Linear(2, 2)])
    model = nn.Sequential(weight_norm(nn.Linear(2, 2)), layers)
    assert isinstance(next(m for m in model.modules() if isinstance(m, nn.ModuleList)), ParametrizationList)
    assert outermost_layers(model) is layers
