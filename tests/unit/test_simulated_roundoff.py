"""Simulated round-off: every result is a number of the type, next to the exact one, right on average."""

import pytest
import torch
from torch import nn

from faithcheck.axioms.measure.simulated_roundoff import (
    IN_CACHE,
    SimulatedRoundoff,
    rounded,
    rounded_case,
    rounded_model,
    uniform,
)
from faithcheck.models import Case

TYPES = (torch.float32, torch.bfloat16, torch.float16)


def numbers(count=1000, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=draw, dtype=torch.float64) * 2.0 ** torch.randint(
        -10, 11, (count,), generator=draw
    )


@pytest.mark.parametrize("dtype", TYPES)
def test_a_rounded_number_is_a_neighbour_of_the_type(dtype):
    exact, other = numbers(), numbers(seed=1)
    result = rounded(exact, dtype, 0)
    assert torch.equal(result.to(dtype).double(), result)
    normal = exact.abs() >= torch.finfo(dtype).tiny  # below it, distances are those of the least normal number
    assert normal.sum() > 900
    assert ((result - exact).abs() < torch.finfo(dtype).eps * exact.abs())[normal].all()
    assert torch.equal(rounded(result, dtype, 1), result), "a number of the type stays as it is"
    assert not torch.equal(rounded(exact, dtype, 1), result), "another draw"
    assert torch.equal(rounded(torch.cat([other, exact]), dtype, 0)[1000:], result), "a function of the number alone"
    assert torch.equal(rounded(4 * exact, dtype, 0)[normal], 4 * result[normal])


def oracle(exact, dtype, draw):
    """The lower neighbour, or the upper one as often as the number lies near it: by division, in float64."""
    limits = torch.finfo(dtype)
    _, exponent = torch.frexp(exact.abs().clamp(limits.tiny, limits.max))
    distance = torch.ldexp(torch.full_like(exact, limits.eps / 2), exponent)
    below = (exact / distance).floor()
    result = (below + (uniform(exact, draw) < exact / distance - below)) * distance
    return torch.where(result.abs() > limits.max, result * torch.inf, result)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [1, 1e-5, 1e-7, 1e4, 1e-38, 1e-39, 1e38])
def test_rounded_against_the_oracle(dtype, size):
    exact = size * numbers(2 * IN_CACHE + 3)
    assert torch.equal(rounded(exact, dtype, 2), oracle(exact, dtype, 2))
    columns = exact[: 2 * IN_CACHE].view(2, -1).t()
    assert torch.equal(rounded(columns, dtype, 2), oracle(columns, dtype, 2)), "numbers that do not lie side by side"


@pytest.mark.parametrize("dtype", TYPES)
def test_the_errors_have_mean_0(dtype):
    """The error of a number is within one unit; the mean of n has a standard deviation of at most ½/√n units."""
    exact = 1 + torch.rand(100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    units = (rounded(exact, dtype, 0) - exact) / torch.finfo(dtype).eps
    assert abs(float(units.mean())) < 5 * 0.5 / 100_000**0.5
    assert float(units.std()) == pytest.approx(6**-0.5, rel=0.02), "√(E[p(1 − p)]), p uniform"


def test_the_borders_of_float16():
    limits = torch.finfo(torch.float16)
    least = limits.smallest_normal * limits.eps  # below it, there is 0
    few = torch.tensor([0.0, -0.0, least, least / 4, 3.5 * least, 65504, 70000, -1e9, torch.inf, torch.nan]).double()
    results = torch.stack([rounded(few, torch.float16, draw) for draw in range(50)])
    assert set(results[:, 3].tolist()) == {0.0, least}
    assert set(results[:, 4].tolist()) == {3 * least, 4 * least}
    assert (results[:, [0, 1, 2, 5]] == few[[0, 1, 2, 5]]).all()
    assert (results[:, 6] == torch.inf).all()
    assert (results[:, 7] == -torch.inf).all()
    assert (results[:, 8] == torch.inf).all()
    assert results[:, 9].isnan().all()


def test_each_operation_is_rounded_forward_and_backward_and_nothing_after():
    layer = rounded_model(nn.Linear(8, 3).double(), torch.bfloat16, 0)
    assert all(torch.equal(p.bfloat16().double(), p) for p in layer.parameters())
    inputs = rounded(torch.randn(4, 8, dtype=torch.float64), torch.bfloat16, 0).requires_grad_()
    with SimulatedRoundoff(torch.bfloat16, 0):
        outputs = layer(inputs).tanh()
        (gradient,) = torch.autograd.grad(outputs.sum(), inputs)
        added = torch.ones(5, dtype=torch.float64)
        added += 1e-3  # in place
        integers = torch.arange(5) * 3
    for result in (outputs, gradient, added):
        assert torch.equal(result.bfloat16().double(), result)
    assert integers.tolist() == [0, 3, 6, 9, 12]
    exact = layer(inputs).tanh()
    assert not torch.equal(exact, outputs)
    assert torch.allclose(exact, outputs, atol=0.05)
    assert not torch.equal(exact.bfloat16().double(), exact)


def test_a_model_and_a_case_are_copied():
    model, inputs = nn.Linear(4, 2).double(), torch.randn(2, 4, dtype=torch.float64)
    case = Case(inputs, torch.zeros(2, dtype=torch.int64), torch.zeros_like(inputs))
    before = [model.weight.detach().clone(), inputs.clone()]
    coarse = rounded_case(case, torch.float16, 0)
    rounded_model(model, torch.float16, 0)
    assert torch.equal(model.weight, before[0])
    assert torch.equal(case.inputs, before[1])
    assert torch.equal(coarse.inputs.half().double(), coarse.inputs)
    assert coarse.target is case.target
