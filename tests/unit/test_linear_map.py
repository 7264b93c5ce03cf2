"""Linear maps by oneDNN: values and gradients are torch's up to round-off, and everything else is left to torch."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from faithcheck.explainers import CPLRP, AttnLRP
from faithcheck.explainers.fast import linear_map
from faithcheck.explainers.fast.linear_map import (
    FEW_ROWS,
    MANY_MULTIPLICATIONS,
    constant_linear,
    linear_without_gradient,
    onednn_linear,
    runs_on_onednn,
)
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.tests.helpers.attention_models import case_of, embedding_model

ROUND_OFF = {"rtol": 1e-4, "atol": 1e-4}  # float32: sums of 1024 products of standard normals
requires_onednn = pytest.mark.skipif(
    linear_map.LINEAR_POINTWISE is None, reason="this torch has no linear map by oneDNN"
)


@pytest.fixture
def by_onednn(monkeypatch):
    """The shapes of the operands that oneDNN gets; on any processor it counts as faster."""
    shapes = []
    monkeypatch.setattr(linear_map, "ONEDNN_IS_FASTER", True)

    def counted(x, weight, *options):
        shapes.append((tuple(x.shape), tuple(weight.shape)))
        return onednn_linear(x, weight, *options)

    monkeypatch.setattr(linear_map, "onednn_linear", counted)
    return shapes


OUTPUTS = MANY_MULTIPLICATIONS // (64 * 512)


def operands(rows=64, outputs=OUTPUTS, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, generator=generator, dtype=dtype) for shape in ((2, rows // 2, 512), (outputs, 512), outputs)
    )
    return x.requires_grad_(), nn.Parameter(weight), nn.Parameter(bias)


@requires_onednn
@pytest.mark.parametrize("skips_rows", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_value_and_gradient_are_those_of_torch(skips_rows, has_bias, by_onednn):
    x, weight, bias = operands()
    bias = bias if has_bias else None
    value, expected = constant_linear(skips_rows, x, weight, bias), linear(x, weight, bias)
    torch.testing.assert_close(value, expected, **ROUND_OFF)
    gradient = torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
    gradient[:, 3:] = 0
    made, plain = (torch.autograd.grad(of, x, gradient)[0] for of in (value, expected))
    torch.testing.assert_close(made, plain, **ROUND_OFF)
    rows = (6,) if skips_rows else (2, 32)
    assert by_onednn == [(tuple(x.shape), (OUTPUTS, 512)), ((*rows, OUTPUTS), (512, OUTPUTS))]


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@requires_onednn
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    "x",
    [
        normal(16, 8, 24)[:, 0],
        normal(16, 8, 24)[:, :1],
        normal(24, 16).mT,
        normal(16, 1).expand(16, 24),
        normal(2, 3, 2, 24),
    ],
    ids=["every eighth row", "likewise, of three axes", "transposed", "expanded", "four axes"],
)
def test_few_rows_may_lie_anywhere(x, has_bias):
    """The weights first, and the result lies in memory as torch's does, of which a model may take a view."""
    weight, bias = normal(7, 24), normal(7) if has_bias else None
    assert x[..., 0].numel() in FEW_ROWS
    given = [each if each is None else each.clone() for each in (x, weight, bias)]
    value = onednn_linear(x, weight, bias)
    torch.testing.assert_close(value, linear(x, weight, bias), **ROUND_OFF)
    assert value.stride() == linear(x, weight, bias).stride()
    for now, before in zip((x, weight, bias), given, strict=True):
        assert now is None or torch.equal(now, before)


class OwnParameter(nn.Parameter):
    """A subclass, which may compute otherwise."""


@requires_onednn
@pytest.mark.parametrize(
    "case",
    {
        "float64": lambda: operands(dtype=torch.float64),
        "few rows": lambda: operands(rows=62),
        "few weights": lambda: operands(outputs=OUTPUTS - 1),
        "a class of its own": lambda: (lambda x, w, b: (x, OwnParameter(w), b))(*operands()),
        "computed weights": lambda: (lambda x, w, b: (x, w * 1.0, b))(*operands()),
        "computed bias": lambda: (lambda x, w, b: (x, w, b * 1.0))(*operands()),
        "a meta tensor": lambda: tuple(each.to("meta") for each in operands()),
    }.items(),
    ids=lambda case: case[0],
)
def test_everything_else_is_left_to_torch(case, by_onednn):
    assert constant_linear(False, *operands()).isfinite().all()
    assert by_onednn
    by_onednn.clear()
    given = case[1]()
    value = constant_linear(False, *given)
    assert not by_onednn
    assert value.is_meta or torch.equal(value, linear(*given))


@requires_onednn
def test_without_a_gradient_onednn_computes_large_maps(by_onednn):
    x, weight, bias = (each.detach() for each in operands())
    for given in ((x, weight, bias), (x, weight)):
        torch.testing.assert_close(linear_without_gradient(*given), linear(*given), **ROUND_OFF)
    assert by_onednn == [(tuple(x.shape), tuple(weight.shape))] * 2
    small = x[:, :-1].contiguous(), weight, bias
    precise = [each.double() for each in (x, weight, bias)]
    for given in (small, precise):
        assert torch.equal(linear_without_gradient(*given), linear(*given))
    assert len(by_onednn) == 2


@requires_onednn
def test_onednn_can_be_switched_off(by_onednn):
    torch._C._set_mkldnn_enabled(False)
    try:
        constant_linear(False, *operands())
    finally:
        torch._C._set_mkldnn_enabled(True)
    assert not by_onednn


@requires_onednn
def test_where_torch_is_faster_it_computes(by_onednn, monkeypatch):
    constant_linear(False, *operands())
    assert by_onednn
    by_onednn.clear()
    monkeypatch.setattr(linear_map, "ONEDNN_IS_FASTER", False)
    constant_linear(False, *operands())
    assert not by_onednn


@requires_onednn
def test_autocast_is_left_to_torch(by_onednn):
    with torch.autocast("cpu", torch.bfloat16):
        assert not runs_on_onednn(torch.ones(1))
        assert constant_linear(False, *operands()).dtype == torch.bfloat16
    assert not by_onednn


@requires_onednn
def test_shapes_that_do_not_fit_raise_an_error(by_onednn):
    x, weight, bias = operands()
    with pytest.raises(RuntimeError):
        constant_linear(False, x[..., :500], weight, bias)
    with pytest.raises(RuntimeError):
        constant_linear(False, x, weight, bias[:-1])


@requires_onednn
@pytest.mark.parametrize("explainer", [AttnLRP(), CPLRP(), MaskGate()], ids=lambda explainer: explainer.name)
def test_an_attribution_by_onednn_is_that_by_torch(explainer, by_onednn, monkeypatch):
    model, case = copy.deepcopy(embedding_model("bert")).float(), case_of("bert")
    case = replace(case, inputs=case.inputs.float(), baseline=case.baseline.float())
    plain = explainer.attribute(model, case)
    assert not by_onednn, "few multiplications"
    monkeypatch.setattr(linear_map, "MANY_MULTIPLICATIONS", 1)
    torch.testing.assert_close(explainer.attribute(model, case), plain, rtol=1e-3, atol=1e-5)
    assert by_onednn


def test_the_plain_twin_is_torchs_own_linear_map(monkeypatch):
    monkeypatch.setenv("FAITHCHECK_PLAIN", "1")
    taken = []
    with linear_map.computing_linear_maps(torch.nn.Linear(2, 2), taken.append):
        pass
    assert taken == [torch.nn.functional.linear]
    monkeypatch.setattr(linear_map, "onednn_linear", None)  # would fail if it were called
    weights = torch.zeros(2048, 2048)
    assert linear_map.linear_without_gradient(torch.zeros(2048, 2048), weights).count_nonzero() == 0
