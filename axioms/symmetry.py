"""Symmetry: if swapping two features leaves the function unchanged, equal values and baselines get equal attributions.

Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §4.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from faithcheck.axioms.dummy import drawn, equal
from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference, nothing_to_measure
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case


@axiom(
    "symmetry",
    "symmetric features of equal values get equal attributions",
    usual_cause=(
        "the map depends on the position of a feature: an order of computation, an index off by one, or noise"
    ),
)
def symmetry(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attributions of symmetric features of equal values differ.

    Each feature takes the value, and the baseline, of the first feature that it is symmetric with. ``values``,
    ``(batch, features)``, is its attribution minus that of this first feature, 0 for the first itself; ``gap`` is None
    where no two features are symmetric.
    """
    first = symmetric(model, case)
    equal_values = replace(case, inputs=case.inputs[:, first], baseline=case.baseline[:, first])
    attribution = attribution_of(explainer, model, equal_values)
    if torch.equal(first, torch.arange(len(first), device=first.device)):
        return nothing_to_measure(case, "no two features are symmetric")
    compared = Compared(attribution, attribution[:, first], ("the map", "the map of symmetric features"))
    measured = measured_difference(compared, case, detail={"first symmetric feature": str(first.tolist())})
    # Where all features are symmetric, a constant map is the right one and no sign of a fault.
    return measured if first.any() else replace(measured, maps=())


@torch.no_grad()
def symmetric(model: nn.Module, case: Case) -> Tensor:
    """The first feature with which each can be swapped, at 16 drawn inputs; itself if none: ``(features,)`` int64."""
    case_drawn = drawn(case, seed=0)
    outputs = case_drawn.run(model)

    def can_swap(i: int, j: int) -> bool:
        order = torch.arange(case.shape[1], device=outputs.device)
        order[[i, j]] = order[[j, i]]
        return equal(replace(case_drawn, inputs=case_drawn.inputs[:, order]).run(model), outputs)

    firsts: list[int] = []
    for j in range(case.shape[1]):
        # "Can be swapped" is an equivalence relation: comparing with the first feature of each class is enough.
        firsts.append(next((i for i in sorted(set(firsts)) if can_swap(i, j)), j))
    return torch.tensor(firsts, device=outputs.device)
