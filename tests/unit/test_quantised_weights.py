"""Explainers that read a gradient refuse quantised weights by name; those that do not, run."""

import warnings

import pytest
import torch
from torch.ao.nn.quantized.dynamic import Linear

from faithcheck.explainers.builtin import builtin_explainers
from faithcheck.explainers.protocol import Unsupported, attribution_of
from faithcheck.models.architectures.base_models import BASE_MODELS

WITHOUT_GRADIENT = {"loo", "attention_rollout"}


@pytest.fixture(scope="module")
def quantised():
    """A BERT with one quantised module, beside which a gradient passes by the residual connection; and its case."""
    base, where = BASE_MODELS["bert"], (0, torch.float32, torch.device("cpu"))
    model, case = base.model(*where), base.case(*where)
    value = model.model.bert.encoder.layer[0].attention.self.value
    with warnings.catch_warnings(action="ignore"):  # torch has deprecated these modules, and people have models of them
        quantised = Linear(value.in_features, value.out_features)
        weight = torch.quantize_per_tensor(value.weight.detach(), 0.01, 0, torch.qint8)
    quantised.set_weight_bias(weight, value.bias)
    model.model.bert.encoder.layer[0].attention.self.value = quantised
    return model, case


@pytest.mark.parametrize("name", sorted(builtin_explainers()))
def test_explainers_that_read_a_gradient_refuse_quantised_weights(name, quantised):
    explainer = builtin_explainers()[name]
    if name in WITHOUT_GRADIENT:
        assert attribution_of(explainer, *quantised).any()
        return
    with pytest.raises(Unsupported, match=r"encoder\.layer\.0\.attention\.self\.value \(Linear\)|\(LayerNorm\)"):
        attribution_of(explainer, *quantised)
