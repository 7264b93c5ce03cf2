"""Models that torchao quantised: our grid is its grid, and each explainer is right on them or refuses by name."""

import logging

import pytest
import torch
from torch import nn

from faithcheck import Check, Settings
from faithcheck.explainers.builtin import builtin_explainers
from faithcheck.explainers.fast import removal_rows
from faithcheck.explainers.fast.linear_map import MANY_ROWS, constant_linear
from faithcheck.explainers.protocol import Unsupported, attribution_of
from faithcheck.models import Pair, registered_pairs
from faithcheck.models.architectures.base_models import BASE_MODELS
from faithcheck.models.eight_bit_weights import linear_maps, quantised

logging.disable(logging.WARNING)  # torchao's import warns of kernels for other processors
try:
    torchao = pytest.importorskip("torchao.quantization", reason="torchao is not installed: make torchao")
finally:
    logging.disable(logging.NOTSET)

CPU = torch.device("cpu")
WITHOUT_GRADIENT = {"loo", "attention_rollout"}
WEIGHT_ONLY = torchao.Int8WeightOnlyConfig(set_inductor_config=False)
ROUNDS_INPUTS = torchao.Int8DynamicActivationInt8WeightConfig(set_inductor_config=False)


def by_torchao(model, config=WEIGHT_ONLY):
    """The model with the weights of its linear maps quantised, in place."""
    torchao.quantize_(model, config, filter_fn=lambda module, name: module in linear_maps(model))
    return model


def test_the_grid_is_that_of_torchao():
    model = nn.Sequential(nn.Linear(300, 40), nn.Linear(40, 7))
    with torch.no_grad():
        model[1].weight[3] = 0
    ours, theirs = quantised(model), by_torchao(model)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine.weight, other.weight.dequantize())
    x = torch.randn(5, 300)
    assert torch.allclose(ours(x), theirs(x), atol=1e-5)


@pytest.mark.filterwarnings("ignore::faithcheck.explainers.gradients.CompletenessWarning")
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("subject", list(BASE_MODELS))
def test_each_explainer_gives_the_map_of_the_numbers_that_the_weights_stand_for(subject, fast, monkeypatch):
    if fast:
        monkeypatch.setattr(removal_rows, "LEAST_NUMBERS", 0)
    base = BASE_MODELS[subject]
    model, case = base.model(0, torch.float32, CPU), base.case(0, torch.float32, CPU)
    exact, model = quantised(model).double(), by_torchao(model)
    for name, explainer in builtin_explainers().items():
        try:
            expected = attribution_of(explainer, exact, case.to(torch.float64))
        except Unsupported:
            with pytest.raises(Unsupported):
                attribution_of(explainer, model, case)
            continue
        error = (attribution_of(explainer, model, case) - expected).abs().max() / expected.abs().max()
        assert error < 1e-4, name


def test_deeplift_compares_quantised_constants():
    pair, deeplift = registered_pairs()["control.mlp"], builtin_explainers()["deeplift_rescale"]
    model, case = pair.build(0, torch.float32, CPU)[0], pair.case(0, torch.float32, CPU)
    exact, model = quantised(model).double(), by_torchao(model)
    expected = attribution_of(deeplift, exact, case.to(torch.float64))
    assert torch.allclose(attribution_of(deeplift, model, case).double(), expected, atol=1e-4)


def test_rows_without_a_gradient_are_not_skipped_in_a_quantised_last_layer():
    x = torch.randn(MANY_ROWS, 8, requires_grad=True)
    layer = by_torchao(nn.Sequential(nn.Linear(8, 6)))[0]
    (gradient,) = torch.autograd.grad(constant_linear(True, x, layer.weight)[0].sum(), x)
    assert torch.allclose(gradient[0], layer.weight.dequantize().sum(0), atol=1e-5)
    assert not gradient[1:].any()


def test_a_pair_of_a_quantised_model_is_measured():
    control = registered_pairs()["control.mlp"]

    def build(seed, dtype, device):
        model = by_torchao(control.build(seed, torch.float32, device)[0])
        return model, model

    pair = Pair("mine.quantised", build, control.case, "a copy")
    check = Check("completeness", builtin_explainers()["integrated_gradients"], pair, "f")
    record = check.run(Settings(dtype=torch.float32))
    assert record.status == "holds", record.detail
    again = check.run(Settings(dtype=torch.int8))
    assert "there is nothing to quantise" in again.detail["reason"], again.detail


@pytest.mark.parametrize("name", sorted(builtin_explainers()))
def test_weights_that_round_the_inputs_have_no_gradient_and_are_refused(name):
    """A residual connection leads around them: the gradient is wrong, and not missing."""
    base, explainer = BASE_MODELS["bert"], builtin_explainers()[name]
    model, case = base.model(0, torch.float32, CPU), base.case(0, torch.float32, CPU)
    by_torchao(model.model.bert.encoder.layer[0].attention.self.value, ROUNDS_INPUTS)
    if name in WITHOUT_GRADIENT:
        assert attribution_of(explainer, model, case).any()
        return
    with pytest.raises(Unsupported, match=r"attention\.self\.value \(Linear\) has quantised weights|\(LayerNorm\)"):
        attribution_of(explainer, model, case)
