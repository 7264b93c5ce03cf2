"""Bounds: no attribution is larger than the largest change that the removal of a feature can make.

Let f(S) be the output with the features S alone, the others removed: by the attention mask if the case has one, else by
the baseline. The largest change is

    B = max over features i and sets S without i of |f(S and i) − f(S)|.

Leave-One-Out is |f(all) − f(all without i)|, one of these changes. So are the marginal contributions of which Shapley's
and Banzhaf's values and every sampling of them are means. So whoever follows Leave-One-Out has |a_i| ≤ B; a map beyond
B says of a feature what no removal of a feature can do. An estimate to first order may be there: it goes on in a
straight line where the output has long bent. Derived here.

All sets are run, 2ⁿ of n features. By the attention mask at least one feature stays: without any the output is not
defined.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from faithcheck.axioms.full_removal import removes_otherwise
from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference, nothing_to_measure
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case
from faithcheck.models.closed_forms import explained_output

MOST_FEATURES = 10
"""More features have more than 1,024 sets."""


@axiom(
    "bounds",
    "no attribution is larger than the largest change that the removal of a feature can make",
    usual_cause="a derivative is extrapolated, or a small number divides it, where a feature has nearly all attention",
    not_applicable=removes_otherwise,
    of_given_maps=True,
    subjects=("probe.attention",),
)
def bounds(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far an attribution exceeds B.

    ``values`` is the part of the map beyond ±B, ``(batch, features)``, see `measured_difference`.
    """
    if case.shape[1] > MOST_FEATURES:
        return nothing_to_measure(case, f"more than {MOST_FEATURES} features: too many sets of them to run")
    attribution, bound = attribution_of(explainer, model, case), largest_changes(model, case).unsqueeze(1)
    within = attribution.clamp(-bound, bound)
    figures = {"the largest change": bound.squeeze(1)}
    names = ("the map", "the map, cut off at the largest change")
    return measured_difference(Compared(attribution, within, names, figures=figures), case)


def largest_changes(model: nn.Module, case: Case) -> Tensor:
    """B of each example, ``(batch,)``; see the module's docstring."""
    count = case.shape[1]
    sets = torch.arange(2**count, device=case.inputs.device)
    contains = (sets.unsqueeze(1) >> torch.arange(count, device=sets.device)) % 2 == 1
    outputs = torch.stack([explained_output(model, with_features_alone(case, kept)) for kept in contains], 1)
    is_defined = torch.ones_like(outputs, dtype=torch.bool)
    if "attention_mask" in case.forward_arguments:
        is_defined = (contains.unsqueeze(0) & case.unpadded.unsqueeze(1)).any(2)
    changes = []
    for feature in range(count):
        without = sets[~contains[:, feature]]
        with_it = without + 2**feature
        counts = is_defined[:, without] & is_defined[:, with_it]
        changes.append(((outputs[:, with_it] - outputs[:, without]).abs() * counts).amax(1))
    return torch.stack(changes, 1).amax(1)


def with_features_alone(case: Case, kept: Tensor) -> Case:
    """The case with these features ``(features,)`` bool, all others removed."""
    if "attention_mask" in case.forward_arguments:
        mask = case.forward_arguments["attention_mask"] * kept.to(case.forward_arguments["attention_mask"])
        return replace(case, forward_arguments={**case.forward_arguments, "attention_mask": mask})
    stays = kept.reshape(1, -1, *(1,) * (case.inputs.dim() - 2))
    return replace(case, inputs=torch.where(stays, case.inputs, case.baseline))
