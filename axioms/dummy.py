"""Dummy, or nullity: a feature on which the function does not depend gets zero.

Sensitivity (b) of Sundararajan, Taly & Yan 2017, arXiv 1703.01365; the dummy of Friedman 2004.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import (
    Compared,
    Measurement,
    measured_difference,
    nothing_to_measure,
    relative_gap,
)
from faithcheck.axioms.measure.roundoff import tolerance_of_outputs
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case

DRAWS = 16


@axiom(
    "dummy",
    "a feature on which the function does not depend gets zero",
    usual_cause="the map spreads over all features: it is centred, smoothed or normalised, or noise is added",
    of_given_maps=True,
)
def dummy(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure the attribution of features on which the model does not depend.

    ``values``, ``(batch, features)``, is the attribution of those features, and 0 elsewhere; ``gap`` is None where
    the model depends on every feature.
    """
    attribution = attribution_of(explainer, model, case)
    irrelevant = ~depends(model, case)
    if not irrelevant.any():
        return nothing_to_measure(case, "the model depends on every feature")
    compared = Compared(attribution, attribution * ~irrelevant, ("the map", "the map without dummies"))
    return measured_difference(compared, case, detail={"features": str(irrelevant.nonzero().flatten().tolist())})


@torch.no_grad()
def depends(model: nn.Module, case: Case) -> Tensor:
    """Whether an output changes if a feature alone is drawn anew, at 16 drawn inputs: ``(features,)`` bool."""
    first, second = drawn(case, seed=0), drawn(case, seed=1)
    outputs = first.run(model)

    def changes_an_output(feature: int) -> bool:
        inputs = first.inputs.clone()
        inputs[:, feature] = second.inputs[:, feature]
        return not equal(replace(first, inputs=inputs).run(model), outputs)

    return torch.tensor([changes_an_output(feature) for feature in range(case.shape[1])], device=outputs.device)


def drawn(case: Case, seed: int) -> Case:
    """A case of 16 drawn inputs: its examples in turn, plus normal noise with the inputs' standard deviation."""
    turn = torch.arange(DRAWS, device=case.inputs.device) % len(case.inputs)
    rows, generator = case.select(turn), torch.Generator().manual_seed(seed)
    noise = torch.randn(rows.inputs.shape, dtype=torch.float64, generator=generator).to(case.inputs)
    return replace(rows, inputs=rows.inputs + noise * case.inputs.std())


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether outputs differ by no more than the round-off of the largest output; NaN equals nothing."""
    return relative_gap((a - b).unsqueeze(0), b.unsqueeze(0)) <= tolerance_of_outputs(b)
