"""BatchNorm before and after it is folded into the layer before it.

1. In eval mode BatchNorm is the affine map y ↦ γ (y − μ)/σ + β of each channel, with the running μ and σ. After Wx + b
   the two are one affine map with weights γW/σ and bias γ(b − μ)/σ + β (`torch.nn.utils.fusion`).
2. LRP with ε → 0 takes the plain gradient through both affine maps: γ/σ times the gradient through W, which is the
   gradient through the folded map. Every bias keeps its share, before and after folding.
3. The ReLU after them has the same values. So ε → 0 LRP and DeepLIFT's rescale rule give the same maps.
4. An LRP that passes relevance through BatchNorm unchanged, as an element-wise identity, distributes the shares of μ
   and β among the features, while the folded model's bias keeps them: it breaks (`tests/unit/test_pairs_affine.py`).
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from faithcheck.models.case import Case
from faithcheck.models.expectation import ALL_LRP, expect, expect_lrp
from faithcheck.models.pair import Build, invariance_pair, seeded

SIDE, CLASSES = 6, 3
EXPECTED = (
    expect_lrp("two affine maps have the gradient of the folded one; biases keep their share", of=ALL_LRP),
    expect("invariance", "deeplift_rescale", "affine maps pass gradients on; ReLU has equal values"),
)
WHY = "in eval mode BatchNorm is affine, and so is its composition with an affine map"


def random_points_of_mean_one(seed: int, rows: int) -> Tensor:
    """Random points ``(rows, 36)`` of mean 1, float64."""
    return torch.randn(rows, SIDE * SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 1


def points(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Six random points, or images flattened row by row, baseline 0."""
    inputs = random_points_of_mean_one(seed, 6).to(device, dtype)
    return Case(inputs, torch.arange(6, device=device) % CLASSES, torch.zeros_like(inputs))


def with_statistics(seed: int, *layers: nn.Module) -> nn.Sequential:
    """The layers in eval mode and float64, with random γ and β and the running statistics of 64 random points.

    With ``momentum=None`` BatchNorm's running statistics are the mean over all batches, which is this one batch.
    """
    model = nn.Sequential(*layers).double().train()
    for norm in model:
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, 0.5, 2)
            nn.init.normal_(norm.bias)
    with torch.no_grad():
        model(random_points_of_mean_one(seed + 1, 64))
    return model.eval()


def folded(make: Callable[[], list[nn.Module]], fuse: Callable[[Any, Any], nn.Module]) -> Build:
    """A pair's ``build``: a network of these layers, and the same with its BatchNorm fused into the layer before it."""

    def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
        with seeded(seed):
            f = with_statistics(seed, *make())
        layers = list(f)
        at = next(i for i, layer in enumerate(layers) if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d))
        g = nn.Sequential(*layers[: at - 1], fuse(layers[at - 1], layers[at]), *deepcopy(layers[at + 1 :]))
        return f.to(device, dtype), g.to(device, dtype).eval()

    return build


def perceptron() -> list[nn.Module]:
    return [nn.Linear(SIDE * SIDE, 12), nn.BatchNorm1d(12, momentum=None), nn.ReLU(), nn.Linear(12, CLASSES)]


def convolution() -> list[nn.Module]:
    layers = [nn.Unflatten(1, (1, SIDE, SIDE)), nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, momentum=None)]
    return [*layers, nn.ReLU(), nn.Flatten(), nn.Linear(3 * (SIDE - 2) ** 2, CLASSES)]


invariance_pair("batch_norm.linear", folded(perceptron, fuse_linear_bn_eval), points, *EXPECTED, why=WHY)
invariance_pair("batch_norm.conv", folded(convolution, fuse_conv_bn_eval), points, *EXPECTED, why=WHY)
