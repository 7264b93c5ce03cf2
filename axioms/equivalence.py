"""Equivalence: a pair first proves that it is one.

Forward and input gradient agree on the pair's own case and on inputs that Hypothesis draws and shrinks. The models are
in eval mode, leave themselves as they were, and share their weights.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace

import hypothesis
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor, nn

from faithcheck.axioms.verdicts import Measurement, relative_gap, tolerance
from faithcheck.models.case import Case

DRAWN_BATCHES, ROWS = 5, 5
# Larger inputs are drawn sparse: Hypothesis takes longer over a dense array than a small Transformer over its forward.
DENSE = 64


def forward_and_gradient(model: nn.Module, case: Case) -> tuple[Tensor, Tensor]:
    """The outputs, and the input gradient of a fixed combination of all of them, so that no output goes unseen."""
    with torch.enable_grad():
        point = case.inputs.detach().clone().requires_grad_()
        outputs = replace(case, inputs=point).run(model)
        weights = torch.linspace(1, 2, outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
        return outputs.detach(), torch.autograd.grad((outputs * weights).sum(), point)[0]


def equivalence(f: nn.Module, g: nn.Module, case: Case) -> Measurement:
    """Measure how far two models differ in output or input gradient.

    ``gap`` is the largest difference over the case and the drawn inputs, relative to the outputs and gradients
    themselves, but at least to those of the case's median example; ``values`` the outputs' difference on the case,
    ``(batch, outputs)``. Where drawn inputs tell the models apart, ``detail["told apart by"]`` is the simplest found.

    Raises:
        ValueError: a model is in train mode, its forward pass changes it, or the two share no weights.
    """
    states = {"f": state(f), "g": state(g)}
    refuse_unrelated(f, g)
    measurement = _compared(f, g, case)
    for name, model in (("f", f), ("g", g)):
        refuse_changed(name, model, states[name])
    return measurement


def _compared(f: nn.Module, g: nn.Module, case: Case) -> Measurement:
    output, gradient = forward_and_gradient(f, case)
    # Where terms cancel, an output near 0 has the round-off of a typical one: no scale is below the median example's.
    floor = [values.abs().flatten(1).amax(1).median() for values in (output, gradient)]

    def gap_at(there: Case) -> float:
        gaps = []
        for left, right, least in zip(
            forward_and_gradient(f, there), forward_and_gradient(g, there), floor, strict=True
        ):
            gaps.append(relative_gap(left - right, left, right, least.expand(len(left), 1)))
        return math.nan if any(map(math.isnan, gaps)) else max(gaps)

    tol = tolerance(case.inputs)
    worst, told_apart = gap_at(case), None
    first = case.rows(case.target.new_zeros(ROWS))  # drawn inputs are run in the context of the first example
    shape = tuple(first.inputs.shape)
    fill = st.nothing() if case.inputs[0].numel() <= DENSE else st.just(0)
    # Multiples of 1/64 in [−2, 2]: no denormals, and shrinking ends at readable numbers.
    arrays = hnp.arrays("int64", shape, elements=st.integers(-128, 128), fill=fill)

    @hypothesis.seed(0)
    @hypothesis.settings(max_examples=DRAWN_BATCHES, database=None, deadline=None)
    @hypothesis.given(arrays)
    def search(drawn: object) -> None:
        nonlocal worst, told_apart
        inputs = torch.as_tensor(drawn).to(case.inputs) / 64
        gap = gap_at(replace(first, inputs=inputs))
        worst = gap if math.isnan(gap) else max(worst, gap)
        if not gap <= tol:  # so that NaN counts as apart
            row = next(
                i for i in range(ROWS) if not gap_at(replace(first.rows(rows[i]), inputs=inputs[i : i + 1])) <= tol
            )
            told_apart = inputs[row].tolist()
            raise AssertionError("the models differ")

    rows = torch.arange(ROWS, device=case.inputs.device).unsqueeze(1)
    if worst <= tol:
        with contextlib.suppress(AssertionError):  # recorded: `worst` is above the tolerance, `told_apart` is shrunk
            search()
    detail: dict[str, object] = {"drawn inputs": DRAWN_BATCHES * ROWS}
    if told_apart is not None:
        detail["told apart by"] = str(told_apart)
    with torch.no_grad():
        return Measurement(worst, tol, output - case.run(g), detail=detail)


State = Mapping[str, tuple[Tensor, Tensor]]


def state(model: nn.Module) -> State:
    """Every parameter and buffer by name: the tensor, and a copy of its values."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: (tensor, tensor.detach().clone()) for name, tensor in named}


def refuse_changed(which: str, model: nn.Module, before: State) -> None:
    """Refuse a model whose forward pass changes it, or that is in train mode.

    Raises:
        ValueError: names the first parameter, buffer or module.
    """
    if training := [name or "itself" for name, module in model.named_modules() if module.training]:
        raise ValueError(f"{which} is in train mode ({training[0]}): a pair's models are built in eval mode")
    now = {name: tensor for name, (tensor, _) in state(model).items()}
    changed = [name for name in now.keys() | before.keys() if not _same(name, now, before)]
    if changed:
        raise ValueError(f"the forward pass of {which} changes {sorted(changed)[0]}: a pair's models must not change")


def _same(name: str, now: Mapping[str, Tensor], before: State) -> bool:
    if name not in now or name not in before:
        return False
    tensor, values = before[name]
    return now[name] is tensor and torch.equal(tensor, values)


def refuse_unrelated(f: nn.Module, g: nn.Module) -> None:
    """Refuse two models of which both have weights and not one tensor is common, in whatever order of its entries.

    Two models drawn apart are no two implementations of one function, even where their outputs agree. Constant tensors,
    such as biases of 0, are common to all models and do not count.

    Raises:
        ValueError: says how to share.
    """

    def weights(model: nn.Module) -> list[Tensor]:
        tensors = (tensor.flatten() for _, tensor in state(model).values() if tensor.is_floating_point())
        return [tensor for tensor in tensors if len(tensor) > 0 and tensor.min() < tensor.max()]

    of_f, of_g = weights(f), weights(g)
    alike = [(a, b) for a in of_f for b in of_g if len(a) == len(b)]
    # In the same order first: sorting the weights of a large model takes longer than running it.
    common = any(torch.equal(a, b) for a, b in alike) or any(torch.equal(a.sort()[0], b.sort()[0]) for a, b in alike)
    if of_f and of_g and not common:
        raise ValueError(
            "f and g share no weights: make g from f's (a deep copy that is changed, or the same parameters), so that "
            "at least one tensor stays as it is"
        )
