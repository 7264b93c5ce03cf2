"""Weights of 8 bits: the grid, what is quantised, and how a draw rounds to it."""

import pytest
import torch
from torch import nn

from faithcheck.axioms.measure.simulated_roundoff import rounded_model, whole
from faithcheck.models.eight_bit_weights import linear_maps, put_on_grid, quantised, steps

ROW = torch.tensor([[127.5, -127.5, 63.2, -63.2, 0.0, 0.4]])
"""In steps of 1."""


def linear_of(weights, dtype=torch.float64):
    module = nn.Linear(weights.shape[1], weights.shape[0], dtype=dtype)
    module.weight = nn.Parameter(weights.to(dtype))
    return module


def test_each_weight_is_the_nearest_of_its_row():
    weights = torch.cat([ROW, ROW / 4, torch.zeros_like(ROW)])
    model = linear_of(weights)
    coarse = quantised(model)
    nearest = torch.tensor([127.0, -128.0, 63.0, -63.0, 0.0, 0.0])
    assert torch.equal(coarse.weight, torch.stack([nearest, nearest / 4, torch.zeros(6)]))
    assert torch.equal(model.weight, weights.double()), "a copy"
    assert torch.equal(coarse.bias, model.bias.float())
    assert coarse.weight.requires_grad


def test_a_row_has_255_steps_and_no_error_beyond_half_a_step():
    weights = torch.randn(20, 300, generator=torch.Generator().manual_seed(0))
    coarse = quantised(linear_of(weights)).weight
    step = steps(weights)
    assert step.shape == (20, 1)
    assert torch.allclose(step, weights.abs().amax(1, keepdim=True) / 127.5)
    counted = coarse / step
    assert torch.allclose(counted, counted.round(), atol=1e-4)
    assert ((coarse - weights).abs() <= 0.5001 * step).all()
    assert len(counted.round().unique()) > 200


def test_a_draw_takes_a_neighbour_on_the_grid_and_is_right_on_average():
    weights = torch.randn(4, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    draws = torch.stack([rounded_model(linear_of(weights), torch.int8, draw).weight for draw in range(400)])
    errors = (draws - weights) / steps(weights)
    assert (errors.abs() < 1.001).all()
    inside = weights.abs() < 0.99 * weights.abs().amax(1, keepdim=True)
    assert (errors.mean(0).abs()[inside] < 5 * 0.5 / 400**0.5).all()
    assert errors.std() > 0.3
    again = rounded_model(linear_of(weights), torch.int8, 7).weight
    assert torch.equal(draws[7], again), "the draws are fixed"
    assert torch.equal(rounded_model(linear_of(weights.flip(0)), torch.int8, 7).weight.flip(0), again)


def test_a_number_and_minus_the_number_are_rounded_alike():
    numbers = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 50
    for draw in range(3):
        assert torch.equal(whole(-numbers, draw), -whole(numbers, draw))
        assert torch.equal(whole(numbers.round(), draw), numbers.round())


def test_only_linear_maps_with_weights_of_their_own_are_quantised():
    parametrised = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    attention = nn.MultiheadAttention(4, 2)
    model = nn.ModuleList([nn.Linear(4, 3), parametrised, attention, nn.Conv1d(2, 2, 3), nn.Embedding(5, 4)])
    assert linear_maps(model) == [model[0]]
    model = model.double()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    put_on_grid(model, torch.round)
    changed = [name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])]
    assert changed == ["0.weight"]


def test_a_tied_embedding_keeps_its_numbers():
    model = nn.ModuleList([nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)])
    model[1].weight = model[0].weight
    coarse = quantised(model)
    assert torch.equal(coarse[0].weight, model[0].weight)
    assert not torch.equal(coarse[1].weight, model[1].weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_type_of_the_weights_stays(dtype):
    """A float64 model may hold a part that is float32."""
    model = linear_of(ROW, dtype)
    assert quantised(model).weight.dtype == torch.float32
    assert rounded_model(model, torch.int8, 0).weight.dtype == dtype
    put_on_grid(model, torch.round)
    assert model.weight.dtype == dtype
