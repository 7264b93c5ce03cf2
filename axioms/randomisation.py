"""Parameter randomisation: a model of random weights gets another attribution.

The model parameter randomisation test of Adebayo et al. 2018, arXiv 1810.03292. Passing it is necessary, not
sufficient: random noise passes it best (Binder et al. 2022, arXiv 2211.12486).

The measure is ρ², where ρ is Spearman's rank correlation with the map of a random model. A map that random weights only
reverse, such as x·f(x), has survived, and ρ² = 1 there. Adebayo et al. compare signed and absolute maps for this
purpose; but all maps that multiply by x share the magnitude |x|, so that the ranks of their absolute values correlate
whatever the weights are.

1. For two independent rankings of n values E[ρ²] = 1/(n − 1), which is not 0. Therefore the adjusted R² of a regression
   of one ranking on the other is taken: (ρ² − 1/(n − 1)) / (1 − 1/(n − 1)). Its expectation is 0; it is 1 for ρ = ±1.
2. Two maps of equal magnitudes and independent signs (x ⊙ gradient if |x| dominates) have E[ρ²] → Σr⁴/(Σr²)² = 9/5n for
   uniform ranks r: 0.1 adjusted, at n = 8.
3. Two random mixtures of k maps have E[r²] ≈ tr C²/(tr C)², one over the number of independent maps among the k. A
   random last layer makes such a mixture of the maps of the k units below it. So ρ² is ½ only if one map dominates.
"""

from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import scipy  # its submodules are imported when they are used
import torch
from torch import Tensor, nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Measurement
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.explainers.refused_modules import offloaded, refuse_modules
from faithcheck.models.case import Case

DRAWS = 8
THRESHOLD = 0.5


@axiom(
    "randomisation",
    "a model of random weights gets another attribution",
    usual_cause="the map hardly depends on the weights: it follows the inputs alone",
    tolerance=THRESHOLD,
)
def randomisation(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how much of an attribution's ranking survives random weights.

    Two stages of Adebayo's cascade: random weights in the last layer alone, and in every layer; eight draws each.

    ``values``, ``(batch, 2)``, is `surviving` of Spearman's ρ between an example's attributions on the model and on a
    random one, its mean over the draws. ``gap`` is the mean over the batch at the worse stage, but at least 0, in
    [0, 1]: 0: the rankings are as unlike as independent ones; 1: the ranking stays the same or is reversed.
    The tolerance, ½, is no round-off: the axiom holds if the random model's ranks explain less than half of the
    variance of the ranks. Examples of fewer than three features do not count: two rankings of two features are equal or
    reversed. None if no example counts, or the model has no weights.
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
        of_random = attribution_of(explainer, randomised(model, chosen, seed), case)
        rows = zip(attribution, of_random, case.unpadded, strict=True)
        return torch.tensor([rank_correlation(a[keep], b[keep]) for a, b, keep in rows], dtype=torch.float64)

    ranks = torch.stack([torch.stack([rho(chosen, draw) for chosen in stages.values()], 1) for draw in range(DRAWS)])
    values = surviving(ranks, n.unsqueeze(1)).mean(0)
    means = zip(stages, ranks.mean(0)[counts].mean(0).tolist(), strict=True)
    detail = {**{f"ρ, {stage}": mean for stage, mean in means}, "examples": int(counts.sum())}
    return Measurement(max(0.0, float(values[counts].mean(0).max())), THRESHOLD, values, detail=detail)


def surviving(rho: Tensor, n: Tensor) -> Tensor:
    """Adjusted R² of two rankings of n features whose correlation is ρ, in [−1/(n − 2), 1]; 0 for n < 3.

    ``rho``, in [−1, 1], is ``(…, batch, stages)``, and ``n`` is ``(batch, 1)``.
    """
    return torch.where(n < 3, 0.0, (rho.square() * (n - 1) - 1) / (n - 2).clamp(min=1))


@torch.no_grad()
def randomised(model: nn.Module, layers: Sequence[str], seed: int) -> nn.Module:
    """A copy of the model with random weights in these modules.

    Matrices are drawn from a normal distribution with mean 0 and the root mean square of the original. Vectors (biases,
    the gains of a norm) are permuted at random: a norm whose gains had random signs would be no norm. Raises
    `Unsupported` if accelerate offloads weights of the model.
    """
    refuse_modules(model, offloaded)
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
    """Spearman's ρ of two maps ``(features,)``: 1 if both are constant, 0 if one of them is."""
    first, second = (values.double().cpu().numpy() for values in (a, b))
    constant = [np.ptp(values) == 0 for values in (first, second)]
    return float(all(constant)) if any(constant) else float(scipy.stats.spearmanr(first, second).statistic)
