"""Faults of the attribution as a whole: what is done to the numbers of a correct explainer, or between two calls."""

from __future__ import annotations

import torch
from torch import Tensor

from faithcheck.tests.helpers.faults.fault import Around, Fault, around, result

EXPLAINERS = ("gradient_x_input", "attnlrp", "loo")
"""Every fault of a result is seeded into these, the first few into others too."""


def cached():
    """A method that returns the attribution of the first call of this shape again."""
    kept: dict[torch.Size, Tensor] = {}
    return lambda explainer, model, case: kept.setdefault(case.shape, explainer.attribute(model, case))


def previous():
    """A method that returns the attribution of the call before, if it has the same shape."""
    kept: list[Tensor] = []

    def attribute(explainer, model, case):
        kept.append(explainer.attribute(model, case))
        return kept[-2] if len(kept) > 1 and kept[-2].shape == kept[-1].shape else kept[-1]

    return attribute


def drifting():
    """A method whose attribution grows by 1e-6 with each call."""
    calls = [0]

    def attribute(explainer, model, case):
        calls[0] += 1
        return explainer.attribute(model, case) * (1 + 1e-6 * calls[0])

    return attribute


def seeded_noise(attribution: Tensor, case) -> Tensor:
    """The same noise of 1e-3 in every call."""
    drawn = torch.randn(attribution.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return attribution + 1e-3 * attribution.abs().amax() * drawn.to(attribution)


def shuffled(attribution: Tensor, case) -> Tensor:
    """The features in a random order that is the same in every call."""
    return attribution[:, torch.randperm(attribution.shape[1], generator=torch.Generator().manual_seed(1))]


def one_after_the_other(explainer, model, case):
    """All targets are those of the first example."""
    return explainer.attribute(
        model, case.__class__(**{**vars(case), "target": case.target[:1].expand_as(case.target)})
    )


def rows_reversed(explainer, model, case):
    """The examples in reverse order, and not put back."""
    return explainer.attribute(model, case.select(torch.arange(len(case.inputs)).flip(0)))


def first_example(explainer, model, case):
    """The first example's attribution for every example."""
    return explainer.attribute(model, case)[:1].expand(case.shape).clone()


def double_inputs(explainer, model, case):
    """The inputs are scaled by 2 before the explanation."""
    return explainer.attribute(model, case.__class__(**{**vars(case), "inputs": 2 * case.inputs}))


def swallowed(explainer, model, case):
    """A forward pass that fails is reported as zeros."""
    try:
        return explainer.attribute(model, case)
    except Exception:
        return torch.zeros(case.shape, dtype=case.inputs.dtype)


def of_results(explainer: str) -> list[Fault]:
    """The faults of a result, in one explainer."""
    return [
        Fault("half", explainer, result(lambda a, case: a / 2), "½ of every value"),
        Fault("1 % more", explainer, result(lambda a, case: 1.01 * a), "1.01 of every value"),
        Fault("doubled", explainer, result(lambda a, case: 2 * a), "2 times every value"),
        Fault("absolute values", explainer, result(lambda a, case: a.abs()), "the signs are lost"),
        Fault("the other sign", explainer, result(lambda a, case: -a), "what speaks for the output counts against it"),
        Fault(
            "normalised to a sum of 1",
            explainer,
            result(lambda a, case: a / a.abs().sum(1, keepdim=True).clamp_min(1e-30)),
            "the scale is lost",
        ),
        Fault("centred", explainer, result(lambda a, case: a - a.mean(1, keepdim=True)), "the mean is lost"),
        Fault("negative values cut off", explainer, result(lambda a, case: a.clamp(min=0)), "max(a, 0)"),
        Fault("shifted by one token", explainer, result(lambda a, case: a.roll(1, 1)), "off by one"),
        Fault("shuffled tokens", explainer, result(shuffled), "a fixed random order"),
        Fault(
            "averaged over the batch",
            explainer,
            result(lambda a, case: a.mean(0, keepdim=True).expand_as(a).clone()),
            "examples are mixed",
        ),
        Fault("noise of 1e-3", explainer, result(seeded_noise), "the same noise in every call"),
        Fault(
            "noise without a seed",
            explainer,
            result(lambda a, case: a + 1e-6 * torch.randn_like(a)),
            "it differs from call to call",
        ),
        Fault("float32 inside", explainer, result(lambda a, case: a.float().to(a.dtype)), "seven digits in float64"),
        Fault("rounded to three digits", explainer, result(lambda a, case: (1000 * a).round() / 1000), "±0.0005"),
        Fault(
            "the first feature forgotten",
            explainer,
            result(lambda a, case: a * (torch.arange(a.shape[1]) > 0)),
            "feature 0 is 0",
        ),
    ]


def of_calls(explainer: str) -> list[Fault]:
    """The faults of what happens around and between calls, in one explainer."""
    return [
        Fault("the first result kept", explainer, Around(cached), "a cache by the shape of the case"),
        Fault("the result of the call before", explainer, Around(previous), "a state that is one call late"),
        Fault("drifting by 1e-6", explainer, Around(drifting), "each call returns more than the one before"),
        Fault(
            "the first example's target", explainer, around(one_after_the_other), "targets of the others are ignored"
        ),
        Fault("rows in reverse", explainer, around(rows_reversed), "the order of the examples"),
        Fault("the first example for all", explainer, around(first_example), "the other examples are ignored"),
        Fault("inputs scaled", explainer, around(double_inputs), "2x is explained"),
    ]


CONSTANTS = [
    Fault("all zeros", explainer, result(lambda a, case: torch.zeros_like(a)), "no explanation")
    for explainer in (
        "gradient_x_input",
        "integrated_gradients",
        "deeplift_rescale",
        "epsilon_lrp",
        "attnlrp",
        "cplrp",
        "blockwise_lrp",
        "pa_lrp",
        "mask_gate",
        "finite_mask_gate",
        "grouped_mask_gate",
        "readout_gate",
        "attention_rollout",
        "loo",
        "budgeted_loo",
    )
] + [
    Fault("all ones", "gradient_x_input", result(lambda a, case: torch.ones_like(a)), "no explanation"),
    Fault(
        "the position",
        "gradient_x_input",
        result(lambda a, case: torch.arange(a.shape[1]).expand_as(a).to(a)),
        "no explanation",
    ),
    Fault(
        "the inputs",
        "gradient_x_input",
        result(lambda a, case: case.inputs.flatten(2).sum(2) if case.inputs.dim() > 2 else case.inputs.clone()),
        "the model is not asked",
    ),
    Fault("random without a seed", "loo", result(lambda a, case: torch.randn_like(a)), "no explanation"),
]


def netted(attribution: Tensor, case) -> Tensor:
    """No negative values, and the same sum: evidence against makes that for smaller."""
    positive = attribution.clamp(min=0)
    return positive * attribution.sum(1, keepdim=True) / positive.sum(1, keepdim=True).clamp_min(1e-30)


def largest_takes_all(attribution: Tensor, case) -> Tensor:
    """The sum at the feature of the largest value, the first of several."""
    largest = torch.zeros_like(attribution).scatter(1, attribution.abs().argmax(1, keepdim=True), 1)
    return largest * attribution.sum(1, keepdim=True)


def without_absent(attribution: Tensor, case) -> Tensor:
    """0 for features whose inputs are all 0."""
    return attribution * case.inputs.reshape(*case.shape, -1).any(2)


OF_KNOWN_ANSWERS = [
    Fault(name, explainer, result(change), why)
    for explainer in ("loo", "integrated_gradients", "deeplift_rescale")
    for name, change, why in (
        ("evidence against is netted", netted, "the sum stays, and what speaks against the output gets nothing"),
        ("the largest feature takes all", largest_takes_all, "the sum stays, and who shares it gets nothing"),
        ("absent features left out", without_absent, "what counts by its absence gets nothing"),
    )
]

PADDING = [
    Fault("padding attributed", explainer, result(lambda a, case: a + ~case.unpadded), "padding gets 1")
    for explainer in ("gradient_x_input", "attnlrp", "loo", "attention_rollout")
]

FAULTS = [
    *(fault for explainer in EXPLAINERS for fault in of_results(explainer)),
    *(fault for explainer in EXPLAINERS for fault in of_calls(explainer)),
    *(
        f
        for explainer in ("integrated_gradients", "cplrp", "blockwise_lrp", "mask_gate")
        for f in of_results(explainer)[:3]
    ),
    *CONSTANTS,
    *OF_KNOWN_ANSWERS,
    *PADDING,
]
