"""Round-off: how many additions make an attribution, and which differences it explains.

Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. 2002, §3.1; Higham & Mary 2019, A new approach to
probabilistic rounding error analysis, doi 10.1137/18M1226312.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from faithcheck.axioms.measure.verdicts import relative_gap, tolerance, tolerance_is_derived
from faithcheck.models.case import Case, input_gradient

DEVIATIONS = 8
"""Of a normal distribution: one number in 10¹⁵ lies further out."""


def additions(model: nn.Module, case: Case) -> int:
    """n, the additions on the longest chain of a forward and a backward pass, with all weight matrices in sequence.

    1. A matrix adds as many terms as it has columns in the forward pass, and as it has rows in the backward pass.
    2. A layer's few other operations are fewer than its terms: they count as one more addition in each pass.
    3. An example's own numbers are added once in each pass.
    4. The table of an `nn.Embedding` is not multiplied by: it does not count, unless another layer shares it.
    """
    layers = [layer for layer in model.modules() if not isinstance(layer, nn.Embedding)]
    weights = {weight for layer in layers for weight in layer.parameters(recurse=False) if weight.dim() >= 2}
    matrices = [weight.flatten(1).shape for weight in weights]
    return sum(rows + columns + 2 for rows, columns in matrices) + 2 * case.inputs[0].numel()


def gap_beyond_roundoff(
    difference: Tensor, scale: Tensor, case: Case, *models: nn.Module
) -> tuple[float, dict[str, object]]:
    """`relative_gap` of two attributions, where an example whose difference is round-off counts as 0.

    A token's attribution is a sum over the coordinates of its embedding. If they cancel, as the gradient's do before a
    LayerNorm, the sum is nothing but round-off, and relative to itself any difference is large. Its round-off is
    relative to what was summed: see `roundoff_of_sums`. Any larger difference has its own relative gap, unchanged.

    Args:
        difference: of the two attributions, ``(batch, features)``.
        scale: ``(batch, …)``, the sizes that the gap is relative to.
        case: the case that was explained.
        models: the models whose attributions differ.

    Returns:
        The gap, and for the report the number of examples whose difference is round-off, if there are any.
    """
    gap = relative_gap(difference, scale)
    if tolerance_is_derived() or not gap > tolerance(case.inputs):
        return gap, {}
    beyond = difference.abs().amax(1) > roundoff_of_sums(case, *models)
    within = int((difference.any(1) & ~beyond).sum())
    gap = relative_gap(torch.where(beyond.unsqueeze(1), difference, 0), scale)
    return gap, {"examples that differ by round-off": within} if within else {}


def roundoff_of_sums(case: Case, *models: nn.Module) -> Tensor:
    """The round-off of a gradient, or of input × gradient, summed over a feature's coordinates: ``(batch,)``.

    What is summed is Σ_d |∂f/∂x_d| · max(1, |x_d|), of the feature where it is largest. n `additions` whose round-off
    has random signs lose √n·u of it, times a few standard deviations: some 10⁻¹³ of the gradient in float64. Where the
    gradient is not finite, nothing is round-off: 0.
    """
    products = [input_gradient(model, case).abs() * case.inputs.abs().clamp(min=1) for model in models]
    summed = torch.stack([product.reshape(*case.shape, -1).sum(2).amax(1) for product in products]).amax(0)
    n = max(additions(model, case) for model in models)
    roundoff = DEVIATIONS * math.sqrt(n) * torch.finfo(case.inputs.dtype).eps / 2 * summed.double()
    return roundoff.nan_to_num(nan=0, posinf=0)
