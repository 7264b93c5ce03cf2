"""What an attribution costs: pytest-benchmark's table, a group a model. It informs; it does not gate."""

import pytest
import torch

from faithcheck.explainers import builtin_explainers
from faithcheck.explainers.protocol import Unsupported, input_gradient
from faithcheck.models import registered_pairs

MODELS = ("control.bert", "linear_attention.assoc")


def plain(model, case):
    """One plain forward and backward pass, what the others are read against."""
    return input_gradient(model, case)


@pytest.mark.bench
@pytest.mark.parametrize("who", ["forward + backward", *builtin_explainers()])
@pytest.mark.parametrize("name", MODELS)
def test_cost(benchmark, settings, name, who):
    pair = registered_pairs()[name]
    model, _ = pair.build(settings.seed, torch.float32, settings.device)
    case = pair.case(settings.seed, torch.float32, settings.device)
    explain = plain if who == "forward + backward" else builtin_explainers()[who].attribute
    benchmark.group = name
    try:
        result = benchmark(explain, model, case)
    except Unsupported as refusal:
        pytest.skip(f"{who}: {refusal}")
    assert result.shape[:2] == case.shape
