"""Perturbation curves: the target output as features are removed, the most or the least relevant first.

MoRF and LeRF of Samek et al. 2017, arXiv 1509.06321; Δ = LeRF − MoRF as in arXiv 2510.18810, §4.1. A curve has K + 1
points f(x⁽ᵏ⁾), k = 0 … K: x⁽⁰⁾ is x, and x⁽ᴷ⁾ keeps special features only. It is summarised in two ways:

* `mean_output`, the mean of f(x⁽ᵏ⁾) over k = 0 … K, as in the paper's figures (a good map has a low MoRF);
* `aopc`, Samek et al.'s area over the curve, the mean of f(x) − f(x⁽ᵏ⁾): a drop (a good map has a high MoRF).

Δ is the same in both: mean output LeRF − MoRF = AOPC MoRF − AOPC LeRF.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from faithcheck.explainers.loo.outputs import outputs_without
from faithcheck.explainers.loo.removal import Removal
from faithcheck.models.case import Case


class Curves(NamedTuple):
    """The target output along both curves, ``(K + 1,)`` for each example; K depends on the example's length."""

    morf: list[Tensor]
    lerf: list[Tensor]


def curves(
    model: nn.Module, case: Case, attribution: Tensor, removal: Removal, chunk: int = 1, max_tokens: int = 2048
) -> Curves:
    """Remove each example's features one after the other, the most and the least relevant first.

    Special features and padding stay; of equally relevant features, the first in the example goes first. A step removes
    ``chunk`` neighbours by the sum of their relevance in ``attribution``, ``(batch, features)``. ``max_tokens``, the
    most features in one forward pass with padding, bounds memory, not the result. `ValueError`: an attribution of
    another shape or not finite, or a number below 1; `Unsupported` comes from the removal.
    """
    if attribution.shape != case.shape or not bool(attribution.isfinite().all()):
        raise ValueError(f"expected a finite attribution {tuple(case.shape)}, got {tuple(attribution.shape)} or NaN")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    removable = case.non_special
    plans = [removals(attribution[i], removable[i], chunk) for i in range(len(attribution))]
    counts = [len(plan) for plan in plans]
    example = torch.arange(len(plans)).repeat_interleave(torch.tensor(counts)).to(attribution.device)
    outputs = outputs_without(model, case, example, torch.cat(plans), removal, max_tokens)
    morf, lerf = [], []
    for output in torch.split(outputs, counts):
        steps = len(output) // 2
        morf.append(output[: steps + 1])
        lerf.append(torch.cat([output[:1], output[steps + 1 :], output[steps : steps + 1]]) if steps else output)
    return Curves(morf, lerf)


def removals(relevance: Tensor, removable: Tensor, chunk: int) -> Tensor:
    """The features removed from one example along both curves: ``(2K, features)`` bool, or ``(1, features)`` for K = 0.

    Row 0 removes nothing. Then follow the K steps of MoRF, and the first K − 1 of LeRF: both end with the same step.
    """
    places = removable.nonzero()[:, 0]
    chunk_of = torch.arange(len(places), device=places.device) // chunk
    steps = -(-len(places) // chunk)
    filled = torch.nn.functional.pad(relevance[places].double(), (0, steps * chunk - len(places)))
    sums = filled.view(steps, chunk).sum(1)
    rows = [torch.zeros_like(removable).unsqueeze(0)]
    for most_first in (True, False):
        rank = sums.argsort(descending=most_first, stable=True).argsort()
        removed = removable.new_zeros(steps, len(removable))
        removed[:, places] = rank[chunk_of] <= torch.arange(steps, device=places.device).unsqueeze(1)
        rows.append(removed if most_first else removed[:-1])
    return torch.cat(rows)


def mean_output(curve: Sequence[float] | Tensor) -> float:
    """The mean of f(x⁽ᵏ⁾) over k = 0 … K, in the units of the output."""
    return float(torch.as_tensor(curve, dtype=torch.float64).mean())


def aopc(curve: Sequence[float] | Tensor) -> float:
    """Area over the perturbation curve: the mean of f(x) − f(x⁽ᵏ⁾) over k = 0 … K; Samek et al. 2017."""
    return float(curve[0]) - mean_output(curve)


def delta(morf: Sequence[float] | Tensor, lerf: Sequence[float] | Tensor) -> float:
    """Δ = LeRF − MoRF, of mean outputs: positive where the order of relevance is right, 0 for K ≤ 1."""
    return mean_output(lerf) - mean_output(morf)
