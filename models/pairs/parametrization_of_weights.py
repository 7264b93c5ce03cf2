"""A linear map whose weight is computed from other parameters: a low-rank adapter, and weight normalisation.

Why AttnLRP and CP-LRP stay the same, at ε = 0:

1. A low-rank adapter beside its map (LoRA): Wx + B(Ax) = (W + BA)x. A sum passes its gradient u on to both terms, and
   these are linear maps: Wᵀu + AᵀBᵀu = (W + BA)ᵀu.
2. Weight normalisation: γ v/‖v‖ is computed from weights alone, in each forward pass. Weights are constants to every
   rule, and so is what is computed from them.

With ε > 0 the map and its adapter have a stabiliser each: AttnLRP and CP-LRP change on the first.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from faithcheck.models.architectures.base_models import layers
from faithcheck.models.architectures.transformer_layer import LinearView, as_module
from faithcheck.models.transform import function_preserving_transform

RANK = 2


class LowRankAdapter(nn.Module):
    """Wx + b + B(Ax), with ``down`` = A ``(rank, inputs)`` and ``up`` = B ``(outputs, rank)``."""

    def __init__(self, base: nn.Linear, down: Tensor, up: Tensor) -> None:
        super().__init__()
        self.base, self.down, self.up = base, nn.Parameter(down), nn.Parameter(up)

    def forward(self, inputs: Tensor) -> Tensor:
        adapted = nn.functional.linear(nn.functional.linear(inputs, self.down), self.up)
        return self.base(inputs) + adapted


@function_preserving_transform(
    "parametrization.low_rank_adapter",
    why="(W − BA)x + B(Ax) = Wx",
    lrp="a sum passes its gradient on to both maps, and Wᵀ − AᵀBᵀ + AᵀBᵀ = Wᵀ",
    cite="Hu et al. 2021, arXiv 2106.09685, Eq. 3",
    too_slow_on=("bert_trained",),
)
def low_rank_adapter(embedding_model: nn.Module) -> nn.Module:
    """Take a part of rank two out of the map from the hidden neurons, and put it into an adapter."""
    for layer in layers(embedding_model):
        outputs, inputs = layer.down.weight.shape
        down, up = (torch.randn(shape).to(layer.down.weight) / 2 for shape in ((RANK, inputs), (outputs, RANK)))
        base = as_module(LinearView(layer.down.weight - up @ down, layer.down.bias))
        layer.replace(layer.down, LowRankAdapter(base, down, up))
    return embedding_model


@function_preserving_transform(
    "parametrization.weight_norm",
    why="γ v/‖v‖ is W for γ = ‖W‖ and every v in the direction of W",
    lrp="the weight is computed from weights alone, so that it is a constant to every rule",
    cite="Salimans & Kingma 2016, arXiv 1602.07868, Eq. 2",
    too_slow_on=("bert_trained",),
)
def weight_norm(embedding_model: nn.Module) -> nn.Module:
    """Write each row of the map from the hidden neurons as a length and a direction, which is computed when it runs."""
    for layer in layers(embedding_model):
        normed = parametrizations.weight_norm(as_module(layer.down))
        direction = normed.parametrizations["weight"].original1
        direction.mul_(0.5 + torch.rand(len(direction), 1).to(direction))
        layer.replace(layer.down, normed)
    return embedding_model
