"""Parameter randomisation: a model of random weights gets another attribution.

The model parameter randomisation test of Adebayo et al. 2018, arXiv 1810.03292. To pass it is necessary and no more:
noise passes it best (Binder et al. 2022, arXiv 2211.12486).

What survives is measured by ρ², so that a map which random weights only turn round, x·f(x) say, has survived. Adebayo
et al. compare signed and absolute maps for that; but the magnitudes of all maps that multiply by x have |x| in common,
and their ranks correlate whatever the weights are. The square of the signed ρ sees a reversal, and not that.

* Of two independent rankings of n values E[ρ²] = 1/(n − 1), which is not 0: so adjusted R² is taken, as of a regression
  of the one on the other, (ρ² − 1/(n − 1)) / (1 − 1/(n − 1)). Its expectation is 0, and it is 1 where ρ = ±1.
* Maps of equal magnitudes and independent signs (x ⊙ gradient where |x| outweighs all) have E[ρ²] → Σr⁴/(Σr²)² = 9/5n
  with r uniform: 0.1 adjusted, at n = 8.
* Two random mixtures of k maps, as a random last layer's are of those of the k units below it, have E[r²] ≈ tr C²/(tr
  C)², one over the number of such maps that are independent. So half is reached only if one outweighs the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from faithcheck.axioms.engine.verdicts import Measurement
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case

DRAWS = 8
THRESHOLD = 0.5


def randomisation(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how much of an attribution's ranking survives random weights.

    Two stages of Adebayo's cascade: random weights in the last layer alone, and in every layer; eight draws each.

    ``values``, ``(batch, 2)``, is `surviving` of Spearman's ρ between an example's attributions on the model and on a
    random one, its mean over the draws. ``gap`` is the mean over the batch at the worse stage, but at least 0, in
    [0, 1]: 0 says that no more of the ranking survives than between independent ones, 1 that it stays or is reversed.
    The tolerance, ½, is no round-off: the axiom holds where the random model's ranks explain less than half of the
    variance of the ranks. Examples of fewer than three features do not count, as of two every ranking is any other or
    its reverse. None where no example counts, or the model has no weights.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    attribution = attribution_of(explainer, model, case)
    layers = [name for name, module in model.named_modules() if list(module.parameters(recurse=False))]
    n = case.unpadded.sum(1).cpu()
    counts = n >= 3
    if not layers or not counts.any():
        reason = "no example has three features to rank" if layers else "no weights to draw"
        return Measurement(None, THRESHOLD, torch.zeros(len(attribution), 2), detail={"reason": reason})
    stages = {"last layer": layers[-1:], "every layer": layers}

    def rho(chosen: Sequence[str], seed: int) -> Tensor:
        other = attribution_of(explainer, randomised(model, chosen, seed), case)
        rows = zip(attribution, other, case.unpadded, strict=True)
        return torch.tensor([rank_correlation(a[here], b[here]) for a, b, here in rows], dtype=torch.float64)

    ranks = torch.stack([torch.stack([rho(chosen, draw) for chosen in stages.values()], 1) for draw in range(DRAWS)])
    values = surviving(ranks, n.unsqueeze(1)).mean(0)
    means = zip(stages, ranks.mean(0)[counts].mean(0).tolist(), strict=True)
    detail = {**{f"ρ, {stage}": mean for stage, mean in means}, "examples": int(counts.sum())}
    return Measurement(max(0.0, float(values[counts].mean(0).max())), THRESHOLD, values, detail=detail)


def surviving(rho: Tensor, n: Tensor) -> Tensor:
    """Adjusted R² of n ranks by n others whose correlation is ρ, in [−1/(n − 2), 1]; 0 where n < 3.

    Args:
        rho: ``(…, batch, stages)``, in [−1, 1].
        n: ``(batch, 1)``, how many are ranked.
    """
    return torch.where(n < 3, 0.0, (rho.square() * (n - 1) - 1) / (n - 2).clamp(min=1))


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
