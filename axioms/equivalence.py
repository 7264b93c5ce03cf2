"""Equivalence: a pair first proves that it is one.

Forward and input gradient agree on the pair's own case and on inputs that Hypothesis draws and shrinks.
"""

from __future__ import annotations

import contextlib
import math

import hypothesis
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor, nn

from faithcheck.axioms.verdicts import Measurement, relative_gap, tolerance
from faithcheck.models.case import Case

DRAWN_INPUTS = 25


def forward_and_gradient(model: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs, and the input gradient of a fixed combination of all of them, so that no output goes unseen."""
    with torch.enable_grad():
        point = inputs.detach().clone().requires_grad_()
        outputs = model(point)
        weights = torch.linspace(1, 2, outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
        return outputs.detach(), torch.autograd.grad((outputs * weights).sum(), point)[0]


def equivalence(f: nn.Module, g: nn.Module, case: Case) -> Measurement:
    """Measure how far two models differ in output or input gradient.

    ``gap`` is the largest difference over the case and the drawn inputs, relative to the outputs and gradients
    themselves, but at least to those of the case's median example; ``values`` the outputs' difference on the case,
    ``(batch, outputs)``. Where drawn inputs tell the models apart, ``detail["told apart by"]`` is the simplest found.
    """
    output, gradient = forward_and_gradient(f, case.inputs)
    # Where terms cancel, an output near 0 has the round-off of a typical one: no scale is below the median example's.
    floor = [values.abs().flatten(1).amax(1).median() for values in (output, gradient)]

    def gap_at(inputs: Tensor) -> float:
        gaps = []
        for left, right, least in zip(
            forward_and_gradient(f, inputs), forward_and_gradient(g, inputs), floor, strict=True
        ):
            gaps.append(relative_gap(left - right, left, right, least.expand(len(left), 1)))
        return math.nan if any(map(math.isnan, gaps)) else max(gaps)

    tol = tolerance(case.inputs)
    worst, told_apart = gap_at(case.inputs), None
    shape = tuple(case.inputs.shape[1:])
    # Multiples of 1/64 in [−2, 2]: no denormals, and shrinking ends at readable numbers.
    arrays = hnp.arrays("int64", shape, elements=st.integers(-128, 128), fill=st.nothing())

    @hypothesis.seed(0)
    @hypothesis.settings(max_examples=DRAWN_INPUTS, database=None, deadline=None)
    @hypothesis.given(arrays)
    def search(drawn: object) -> None:
        nonlocal worst, told_apart
        inputs = torch.as_tensor(drawn).to(case.inputs).unsqueeze(0) / 64
        gap = gap_at(inputs)
        worst = gap if math.isnan(gap) else max(worst, gap)
        if not gap <= tol:  # so that NaN counts as apart
            told_apart = inputs[0].tolist()
            raise AssertionError("the models differ")

    if worst <= tol:
        with contextlib.suppress(AssertionError):  # recorded: `worst` is above the tolerance, `told_apart` is shrunk
            search()
    detail: dict[str, object] = {"drawn inputs": DRAWN_INPUTS}
    if told_apart is not None:
        detail["told apart by"] = str(told_apart)
    return Measurement(worst, tol, output - g(case.inputs).detach(), detail=detail)
