"""Sensitivity (a): if input and baseline differ in one feature and the outputs differ, that feature is not given zero.

Sundararajan, Taly & Yan 2017, arXiv 1703.01365, §2.1.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Measurement, nothing_to_measure, relative_gap
from faithcheck.axioms.measure.roundoff import tolerance, tolerance_of_outputs
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case, output_difference, select_target

NEAR = 0.1
"""How far a point nearby lies from the inputs: a share of their standard deviation."""

CHANCE = 1e-9
"""How seldom an attribution that is not zero may lie within the tolerance of zero at every point."""


@axiom(
    "sensitivity",
    "a feature that changes the output alone is not given zero",
    usual_cause="relevance is cut off on its way: values below zero, a saturated activation, or a missing path",
)
def sensitivity(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure which features are given zero although they change the output alone.

    Every unpadded feature of every example is one question. Its baseline is the input itself, except for this feature,
    which takes its value in ``case.baseline``. An attribution counts as zero if it is below the tolerance, relative to
    the difference of the outputs, here and at `points_nearby`.

    ``values``, ``(batch, features)``, is the difference f(x) − f(x′) if the feature's attribution is zero, and 0
    otherwise; ``gap`` is the largest of them relative to the largest difference of the example, in [0, 1]. It is None
    if no feature alone changes any output.
    """
    example, feature = case.unpadded.nonzero(as_tuple=True)
    questions = case.select(example)
    row, baseline = torch.arange(len(feature), device=feature.device), questions.inputs.clone()
    baseline[row, feature] = questions.baseline[row, feature]
    questions = replace(questions, baseline=baseline)
    zero, difference = given_zero(explainer, model, questions, feature)
    for seed in range(points_nearby(tolerance_of_outputs(case.inputs))):
        again = zero.nonzero().squeeze(1)
        if not len(again):
            break
        zero[again], _ = given_zero(explainer, model, nearby(questions.select(again), seed), feature[again])
    values, scale = (torch.zeros(case.shape).to(difference) for _ in range(2))
    values[example, feature] = torch.where(zero, difference, 0)
    scale[example, feature] = difference
    if not scale.any():
        return nothing_to_measure(case, "no feature alone changes an output")
    counts = {"features": int((scale != 0).sum()), "given zero": int((values != 0).sum())}
    return Measurement(relative_gap(values, scale), tolerance(case.inputs), values, scale, counts)


def given_zero(explainer: Explainer, model: nn.Module, questions: Case, feature: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the feature of each question is given zero, and the difference of the outputs: both ``(questions,)``.

    A difference that is round-off counts as 0.
    """
    tol, row = tolerance_of_outputs(questions.inputs), torch.arange(len(feature), device=feature.device)
    attribution = attribution_of(explainer, model, questions)[row, feature].double()
    difference = output_difference(model, questions).double()
    with torch.no_grad():
        outputs = select_target(questions.run(model), questions.target).double()
    difference = torch.where(difference.abs() > tol * outputs.abs(), difference, 0)
    return attribution.abs() <= tol * difference.abs(), difference


def points_nearby(tol: float) -> int:
    """At how many points nearby an attribution must be within ``tol`` of zero, too, to count as zero.

    At a single point it may be so by chance; the chance is about ``tol`` at each, and `CHANCE` at all together. One
    point nearby does in float64, eight take its place in bfloat16, where ``tol`` is 0.09.
    """
    return max(1, math.ceil(math.log(CHANCE) / math.log(tol)) - 1)


def nearby(questions: Case, seed: int) -> Case:
    """The questions at points nearby: the same noise is added to inputs and baselines, which keeps their difference."""
    generator, inputs = torch.Generator().manual_seed(seed), questions.inputs
    noise = torch.randn(inputs.shape, dtype=torch.float64, generator=generator).to(inputs)
    noise *= NEAR * inputs.std(correction=0)
    return replace(questions, inputs=inputs + noise, baseline=questions.baseline + noise)
