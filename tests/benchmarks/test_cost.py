"""The cost of one attribution, by pytest-benchmark, one group per model. Times are reported and never fail a test."""

import pytest
import torch

from faithcheck.explainers import builtin_explainers
from faithcheck.explainers.protocol import Unsupported, input_gradient
from faithcheck.models import registered_pairs

MODELS = ("control.bert", "linear_attention.assoc")


def plain(model, case):
    """One plain forward and backward pass, to compare with."""
    return input_gradient(model, case)


@pytest.mark.bench
@pytest.mark.parametrize("explainer_name", ["forward + backward", *builtin_explainers()])
@pytest.mark.parametrize("name", MODELS)
def test_cost(benchmark, settings, name, explainer_name):
    pair = registered_pairs()[name]
    model, _ = pair.build(settings.seed, torch.float32, settings.device)
    case = pair.case(settings.seed, torch.float32, settings.device)
    explain = plain if explainer_name == "forward + backward" else builtin_explainers()[explainer_name].attribute
    benchmark.group = name
    try:
        result = benchmark(explain, model, case)
    except Unsupported as refusal:
        pytest.skip(f"{explainer_name}: {refusal}")
    assert result.shape[:2] == case.shape
