"""Round-off: which differences it explains, and how many additions make an attribution.

Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. 2002, §3.1; Higham & Mary 2019, A new approach to
probabilistic rounding error analysis, doi 10.1137/18M1226312.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case, input_gradient

DEVIATIONS = 8
"""Of a normal distribution: one number in 10¹⁵ lies further out."""

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
"""The largest relative gap that round-off explains, by dtype."""


_derived: ContextVar[tuple[float, torch.dtype] | None] = ContextVar("derived", default=None)


@contextmanager
def tolerance_is(derived: float, dtype: torch.dtype) -> Iterator[None]:
    """Within the block, the tolerance is this one, derived from the round-off of a model in this dtype."""
    token = _derived.set((derived, dtype))
    try:
        yield
    finally:
        _derived.reset(token)


def tolerance_is_derived() -> bool:
    """Whether the tolerance is one that `tolerance_is` set, and holds all of the round-off."""
    return _derived.get() is not None


def tolerance(inputs: Tensor) -> float:
    """The largest relative gap that round-off explains for inputs of this dtype.

    A sum of 10⁵ products loses at most about five digits in float64 and, in practice, three in float32; the smallest
    violation that the registry predicts is above 10⁻³, so both leave room on either side. A coarser dtype, whose
    round-off may be as large as a violation, raises `ValueError` unless a tolerance was derived for the check, see
    `faithcheck.axioms.measure.coarse_types`.
    """
    if (derived := _derived.get()) is not None:
        return derived[0]
    if inputs.dtype not in TOLERANCES:
        raise ValueError(
            f"no one tolerance holds in {inputs.dtype}: a check derives its own (--dtype); float64 and float32 have one"
        )
    return TOLERANCES[inputs.dtype]


def tolerance_of_outputs(outputs: Tensor) -> float:
    """The largest relative difference of two outputs of one model that round-off explains: whether a feature counts.

    It is `tolerance`. Where that is derived, it is not known yet, or is of what an axiom measures, and not of outputs:
    then it is √ε of the dtype, half of its digits, so that the same features count in every measurement of a check.
    """
    derived = _derived.get()
    return tolerance(outputs) if derived is None else math.sqrt(torch.finfo(derived[1]).eps)


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
