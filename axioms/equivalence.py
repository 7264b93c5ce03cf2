"""Equivalence: the two models of a pair compute one function. This is measured before any explainer is.

Outputs and input gradients agree on the pair's own case and on inputs that Hypothesis draws and shrinks. The models are
in eval mode, are deterministic, change neither their inputs nor themselves, and share weights.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import hypothesis
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor, nn

from faithcheck.axioms.engine.axiom import axiom
from faithcheck.axioms.engine.verdicts import Measurement, relative_gap, tolerance
from faithcheck.models.case import Case, describe_tensor

# The outputs (batch, outputs) and input gradients (batch, features, …) of a model on a case.
Computed: TypeAlias = tuple[Tensor, Tensor]

DRAWN_BATCHES, ROWS = 6, 5
# Larger inputs are drawn sparse: Hypothesis draws a dense array more slowly than a small Transformer computes on it.
DENSE = 64


class NotAPair(ValueError):
    """Two models that cannot be a pair. The message says which model, why, and what a pair requires."""


def forward_and_gradient(which: str, model: nn.Module, case: Case) -> Computed:
    """The outputs, and the input gradient of a fixed combination of all outputs.

    Raises:
        NotAPair: the forward or backward pass fails; or the output is not ``(batch, outputs)`` of the inputs' dtype.
    """
    try:
        with torch.enable_grad():
            point = case.inputs.detach().clone().requires_grad_()
            outputs = replace(case, inputs=point).run(model)
            if outputs.dim() != 2 or len(outputs) != len(point) or outputs.dtype != point.dtype:
                raise NotAPair(
                    f"{which} gives {describe_tensor(outputs)} for {describe_tensor(point)}: expected (batch, outputs)"
                )
            weights = torch.linspace(1, 2, outputs.shape[1], dtype=outputs.dtype, device=outputs.device)
            return outputs.detach(), torch.autograd.grad((outputs * weights).sum(), point)[0]
    except NotAPair:
        raise
    except Exception as error:  # an error of the model: its message is passed on
        raise NotAPair(f"{which} fails on {describe_tensor(case.inputs)}: {type(error).__name__}: {error}") from error


@axiom(
    "equivalence",
    "the two models of a pair are one function",
    measured_on="pairs",
    needs_explainer=False,
    part_of="invariance",
)
def equivalence(f: nn.Module, g: nn.Module, case: Case) -> Measurement:
    """Measure how far two models differ in output or input gradient.

    ``gap`` is the largest difference over the case and the drawn inputs, relative to the outputs and gradients
    themselves, but at least to those of the case's median example; ``values`` is the difference of the outputs on the
    case, ``(batch, outputs)``. If the models differ, ``detail["told apart by"]`` is the simplest input on which they
    do: multiples of 1/64 in [−2, 2], [−8, 8] or [−32, 32], shrunk; or a simplified example of the case.

    Raises:
        NotAPair: a model fails, is in train mode, gives different outputs when it is run twice, or changes itself or
            its inputs; or the two are one object, share no weights, or give outputs of different shapes.
    """
    if f is g:
        raise NotAPair("f and g are one object: changes to one would change the other; copy it with copy.deepcopy")
    refuse_unrelated(f, g)
    computed_f, computed_g = unchanging("f", f, case), unchanging("g", g, case)
    if computed_f[0].shape != computed_g[0].shape:
        raise NotAPair(
            f"f gives {describe_tensor(computed_f[0])} and g {describe_tensor(computed_g[0])}: "
            "the outputs of a pair have one shape and dtype"
        )
    return _compare(f, g, case, computed_f, computed_g)


def _compare(f: nn.Module, g: nn.Module, case: Case, computed_f: Computed, computed_g: Computed) -> Measurement:
    # If terms cancel, an output near 0 has the round-off of a typical output: the least scale is the median example's.
    floor = [values.abs().flatten(1).amax(1).median() for values in computed_f]

    def gap_of(left_side: Computed, right_side: Computed) -> float:
        gaps = [
            relative_gap(left - right, left, right, least.expand(len(left), 1))
            for left, right, least in zip(left_side, right_side, floor, strict=True)
        ]
        return math.nan if any(map(math.isnan, gaps)) else max(gaps)

    def gap_at(drawn_case: Case) -> float:
        return gap_of(forward_and_gradient("f", f, drawn_case), forward_and_gradient("g", g, drawn_case))

    def differ_on(drawn_case: Case) -> bool:
        return not gap_at(drawn_case) <= tol  # NaN counts as a difference

    tol, worst = tolerance(case.inputs), gap_of(computed_f, computed_g)
    witness: Case | None = None
    differ = not worst <= tol
    first = case.select(case.target.new_zeros(ROWS))  # drawn inputs take the forward arguments of the first example
    dense = case.inputs[0].numel() <= DENSE
    fill = st.nothing() if dense else st.just(0)
    # Multiples of a power of two: no denormals, and shrinking ends at readable numbers.
    arrays = hnp.arrays("int64", tuple(first.inputs.shape), elements=st.integers(-128, 128), fill=fill)

    # Hypothesis runs a small Transformer hundreds of times to shrink a large input: `simplest` runs it once a feature.
    phases = (hypothesis.Phase.generate, *((hypothesis.Phase.shrink,) if dense else ()))

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=DRAWN_BATCHES, database=None, deadline=None, report_multiple_bugs=False, phases=phases
    )
    @hypothesis.given(st.sampled_from([64, 16, 4]), arrays)
    def search(parts: int, drawn: object) -> None:
        nonlocal worst, witness
        drawn_case = replace(first, inputs=torch.as_tensor(drawn).to(case.inputs) / parts)
        gap = gap_at(drawn_case)
        worst = gap if math.isnan(gap) else max(worst, gap)
        if not gap <= tol:
            witness = first_difference(drawn_case, differ_on)
            raise AssertionError("the models differ")

    with contextlib.suppress(AssertionError):  # recorded: `worst` is above the tolerance, `witness` is shrunk
        search()
    if witness is None and differ:
        witness = first_difference(case, differ_on)
        dense = False  # Hypothesis has shrunk nothing
    if witness is not None and not dense:
        witness = simplest(witness, differ_on)
    detail: dict[str, object] = {"drawn inputs": DRAWN_BATCHES * ROWS}
    if witness is not None:
        detail["told apart by"] = str(witness.inputs[0].tolist())
    return Measurement(worst, tol, computed_f[0] - computed_g[0], detail=detail)


def first_difference(case: Case, differ_on: Callable[[Case], bool]) -> Case:
    """The first example of a case on which two models differ, as a case of its own.

    Raises:
        NotAPair: they differ on the batch, but on no example alone.
    """
    alone = (case.select(case.target.new_tensor([i])) for i in range(len(case.inputs)))
    for row in alone:
        if differ_on(row):
            return row
    raise NotAPair("the models differ on a batch, but on none of its examples alone: one of them mixes its examples")


def simplest(row: Case, differ_on: Callable[[Case], bool]) -> Case:
    """The example with as many entries as possible set to 0 while the models differ; of large examples, features."""
    parts = row.inputs[0].numel() if row.inputs[0].numel() <= DENSE else row.shape[1]
    for i in range(parts):
        inputs = row.inputs.clone()
        inputs.view(parts, -1)[i] = 0
        without = replace(row, inputs=inputs)
        row = without if differ_on(without) else row
    return row


State = Mapping[str, tuple[Tensor, Tensor]]


def state(model: nn.Module) -> State:
    """Every parameter and buffer by name: the tensor, and a copy of its values."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: (tensor, tensor.detach().clone()) for name, tensor in named}


@torch.no_grad()
def unchanging(which: str, model: nn.Module, case: Case) -> Computed:
    """`forward_and_gradient`, with a check that the model is deterministic and changes nothing.

    Raises:
        NotAPair: from `forward_and_gradient`; or the model is in train mode, gives different outputs when it is run
            twice, or changes itself or its inputs: names the first parameter, buffer or module.
    """
    if training := [name or "itself" for name, module in model.named_modules() if module.training]:
        raise NotAPair(f"{which} is in train mode ({training[0]}): a pair's models are built in eval mode")
    before, copy = state(model), case.select(torch.arange(len(case.inputs), device=case.inputs.device))
    computed = forward_and_gradient(which, model, case)
    first, second = (copy.run(model) for _ in range(2))
    if not torch.equal(copy.inputs, case.inputs):
        raise NotAPair(f"the forward pass of {which} changes its inputs: a pair's models leave them as they are")
    now = {name: tensor for name, (tensor, _) in state(model).items()}
    if changed := [name for name in now.keys() | before.keys() if not _same(name, now, before)]:
        raise NotAPair(f"the forward pass of {which} changes {sorted(changed)[0]}: a pair's models must not change")
    if not torch.equal(first.nan_to_num(), second.nan_to_num()):
        raise NotAPair(f"{which} gives different outputs when it is run twice: a pair's models draw no random numbers")
    return computed


def _same(name: str, now: Mapping[str, Tensor], before: State) -> bool:
    if name not in now or name not in before:
        return False
    tensor, values = before[name]
    return now[name] is tensor and torch.equal(tensor, values)


def refuse_unrelated(f: nn.Module, g: nn.Module) -> None:
    """Refuse two models without a common weight tensor, unless neither has weights; the order of entries may differ.

    Models with independent weights are not two implementations of one function, even if their outputs agree. Constant
    tensors, such as biases of 0, are common to all models and do not count.

    Raises:
        NotAPair: says how to share.
    """

    def weights(model: nn.Module) -> list[Tensor]:
        tensors = (weight.detach().flatten() for weight in model.parameters())
        return [tensor for tensor in tensors if len(tensor) > 0 and tensor.min() < tensor.max()]

    weights_f, weights_g = weights(f), weights(g)
    same_size = [(a, b) for a in weights_f for b in weights_g if len(a) == len(b)]
    # Compared in the same order first: sorting the weights of a large model takes longer than running it.
    common = any(torch.equal(a, b) for a, b in same_size) or any(
        torch.equal(a.sort()[0], b.sort()[0]) for a, b in same_size
    )
    if (weights_f or weights_g) and not common:
        raise NotAPair(
            "f and g share no weights: make g from f's (a deep copy that is changed, or the same parameters), so that "
            "at least one tensor stays as it is"
        )
