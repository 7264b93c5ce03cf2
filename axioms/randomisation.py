"""Parameter randomisation: a model of random weights gets another attribution.

The model parameter randomisation test of Adebayo et al. 2018, arXiv 1810.03292. To pass it is necessary and no more:
noise passes it best (Binder et al. 2022, arXiv 2211.12486).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from faithcheck.axioms.verdicts import Measurement
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case

DRAWS = 8
THRESHOLD = 0.5


def randomisation(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how much of an attribution's ranking survives random weights.

    Two stages of Adebayo's cascade: random weights in the last layer alone, and in every layer; eight draws each.

    ``values``, ``(batch, 2)``, is Spearman's ρ between an example's attributions on the model and on a random one, its
    mean over the draws. ``gap`` is the mean over the batch at the worse stage, but at least 0, in [0, 1]: 0 says that
    on average nothing of the ranking survives, 1 that the ranking does not change. The tolerance, ½, is no round-off:
    the axiom holds where less than half of the ranking survives. None where the model has no weights.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    attribution = attribution_of(explainer, model, case)
    layers = [name for name, module in model.named_modules() if list(module.parameters(recurse=False))]
    if not layers:
        return Measurement(None, THRESHOLD, torch.zeros(len(attribution), 2), detail={"reason": "no weights to draw"})
    stages = {"last layer": layers[-1:], "every layer": layers}

    def survives(chosen: Sequence[str], seed: int) -> Tensor:
        other = attribution_of(explainer, randomised(model, chosen, seed), case)
        rows = zip(attribution, other, case.present, strict=True)
        return torch.tensor([rank_correlation(a[here], b[here]) for a, b, here in rows], dtype=torch.float64)

    ranks = [torch.stack([survives(chosen, draw) for draw in range(DRAWS)]).mean(0) for chosen in stages.values()]
    values = torch.stack(ranks, 1)
    means = dict(zip((f"ρ, {stage}" for stage in stages), values.mean(0).tolist(), strict=True))
    return Measurement(max(0.0, *means.values()), THRESHOLD, values, detail=means)


@torch.no_grad()
def randomised(model: nn.Module, layers: Sequence[str], seed: int) -> nn.Module:
    """A copy of the model with random weights in these modules.

    Matrices are normal with mean 0 and the root mean square of the old; vectors (biases, the gains of a norm) are the
    old in random order, as a norm whose gains have random signs is no norm.
    """
    model, generator = deepcopy(model), torch.Generator().manual_seed(seed)
    for layer in layers:
        for weight in model.get_submodule(layer).parameters(recurse=False):
            if weight.dim() < 2:
                weight.copy_(weight.flatten()[torch.randperm(weight.numel(), generator=generator)].view_as(weight))
            else:
                drawn = torch.randn(weight.shape, dtype=torch.float64, generator=generator)
                weight.copy_(drawn.to(weight) * weight.square().mean().sqrt())
    return model


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's ρ of two maps ``(features,)``; a map of one value is like another such (1) and unlike the rest (0)."""
    first, second = (values.double().cpu().numpy() for values in (a, b))
    constant = [np.ptp(values) == 0 for values in (first, second)]
    return float(all(constant)) if any(constant) else float(stats.spearmanr(first, second).statistic)
