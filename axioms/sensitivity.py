"""Sensitivity (a): the one feature in which input and baseline differ is not given zero, if the outputs differ.

Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §2.1.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from faithcheck.axioms.engine.verdicts import Measurement, relative_gap, tolerance
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case, output_difference, select_target


def sensitivity(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure which features change the output alone and are given zero.

    Every present feature of every example is one question: the baseline is the input itself, but for this feature,
    which has its value of ``case.baseline``. Zero is what is below the tolerance, relative to the change of the output.

    ``values``, ``(batch, features)``, is the change f(x) − f(x′) where the feature's attribution is zero, and 0
    elsewhere; ``gap`` is the largest of them relative to the largest change of the example, in [0, 1]. It is None where
    no feature alone changes any output.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    tol = tolerance(case.inputs)
    example, feature = case.unpadded.nonzero(as_tuple=True)
    one = torch.arange(len(feature), device=feature.device)
    questions = case.select(example)
    baseline = questions.inputs.clone()
    baseline[one, feature] = questions.baseline[one, feature]
    questions = replace(questions, baseline=baseline)
    given = attribution_of(explainer, model, questions)[one, feature].double()
    added = output_difference(model, questions).double()
    with torch.no_grad():
        outputs = select_target(questions.run(model), questions.target).double()
    added = torch.where(added.abs() > tol * outputs.abs(), added, 0)
    values, scale = (torch.zeros(case.shape).to(added) for _ in range(2))
    values[example, feature] = torch.where(given.abs() <= tol * added.abs(), added, 0)
    scale[example, feature] = added
    if not scale.any():
        return Measurement(None, tol, values, detail={"reason": "no feature alone changes an output"})
    missed = {"features": int((scale != 0).sum()), "given zero": int((values != 0).sum())}
    return Measurement(relative_gap(values, scale), tol, values, scale, missed)
