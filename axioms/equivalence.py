"""Equivalence: the two models of a pair compute one function. This is measured before any explainer is.

1. Each model is compared with itself: it is deterministic, changes neither its inputs nor itself, is in eval mode, and
   computes the same function however it is run (`faithcheck.axioms.equivalence_tests.circumstances`).
2. The two models share weights.
3. Their outputs and input gradients agree on the pair's own case and on a large batch, half of it where explainers
   evaluate models and half of it random (`large_batch` in `faithcheck.axioms.equivalence_tests`). Each output and each
   feature has a scale of its own, and each output its gradient (`input_scale` there).

docs/explanation/equivalence.md says what this cannot see.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import hypothesis
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor, nn

from faithcheck.axioms.equivalence_tests.circumstances import Consistency
from faithcheck.axioms.equivalence_tests.forward_and_gradient import Computed, forward_and_gradient
from faithcheck.axioms.equivalence_tests.input_scale import Difference, Scale, within
from faithcheck.axioms.equivalence_tests.large_batch import large_batch
from faithcheck.axioms.fast.measured_once import measured_once
from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Measurement
from faithcheck.axioms.measure.roundoff import tolerance
from faithcheck.models.case import Case, describe_tensor
from faithcheck.models.offloaded_weights import offloaded_weights, with_values
from faithcheck.models.pair import NotAPair

DRAWN_EXAMPLES = 30
DENSE = 64
"""The most numbers of an example that Hypothesis shrinks: it runs a small Transformer hundreds of times otherwise."""


@axiom(
    "equivalence",
    "the two models of a pair are one function",
    usual_cause="the rewritten model is not the same function: the pair is wrong, and not the explainer",
    measured_on="pairs",
    needs_explainer=False,
    part_of="invariance",
)
def equivalence(f: nn.Module, g: nn.Module, case: Case) -> Measurement:
    """Measure how far two models differ in an output or in the input gradient of an output.

    ``gap`` is the largest difference over the case and the large batch, relative to the number itself, but at least to
    the median of this output, or of its gradient at this feature, over the batch; ``values`` is the difference of the
    outputs on the case, ``(batch, outputs)``. If the models differ, ``detail["differ in"]`` names the output or the
    gradient, and ``detail["told apart by"]`` is the simplest input on which they do: multiples of 1/64 in [−2, 2],
    [−8, 8] or [−32, 32], shrunk; or a simplified example of the case or of the large batch.

    Raises:
        NotAPair: a model fails, is in train mode, gives different outputs when it is run twice, changes itself or its
            inputs, or computes another function under other circumstances; or the two are one object, share no
            weights, or give outputs of different shapes.
    """
    if f is g:
        raise NotAPair("f and g are one object: changes to one would change the other; copy it with copy.deepcopy")
    refuse_unrelated(f, g)
    of_f = reference(f, case)
    batch, scale, tol = of_f.batch, of_f.scale, tolerance(case.inputs)
    on_case = unchanging("g", g, case)
    if of_f.on_case.outputs.shape != on_case.outputs.shape:
        raise NotAPair(
            f"f gives {describe_tensor(of_f.on_case.outputs)} and g {describe_tensor(on_case.outputs)}: "
            "the outputs of a pair have one shape and dtype"
        )
    in_batch = forward_and_gradient("g", g, batch)
    Consistency("g", g, case, on_case, scale).check(batch, in_batch)

    def difference_on(some: Case) -> Difference:
        return scale.difference(forward_and_gradient("f", f, some), forward_and_gradient("g", g, some), some)

    largest = scale.difference(of_f.in_batch, in_batch, batch)
    detail: dict[str, object] = {"drawn inputs": len(batch.inputs) - len(case.inputs)}
    if not within(largest.gap, tol):
        detail["differ in"] = largest.where
        row = batch.select(batch.target.new_tensor([largest.row]))
        detail["told apart by"] = str(witness(row, case, lambda some: not within(difference_on(some).gap, tol)))
    return Measurement(largest.gap, tol, of_f.on_case.outputs - on_case.outputs, detail=detail)


class Reference(NamedTuple):
    """What f computes, and on what: g is compared with it."""

    on_case: Computed  # outputs and gradients
    batch: Case  # the case's `large_batch`
    in_batch: Computed  # outputs and gradients
    scale: Scale  # of those in the batch


@measured_once
def reference(f: nn.Module, case: Case) -> Reference:
    """Compare f with itself, which raises `NotAPair` if it differs, and keep what it computes."""
    on_case = unchanging("f", f, case)
    batch = large_batch(case, on_case.outputs.shape[1])
    in_batch = forward_and_gradient("f", f, batch)
    scale = Scale.of(in_batch, batch.target, case.inputs.dtype, tolerance(case.inputs))
    Consistency("f", f, case, on_case, scale).check(batch, in_batch)
    return Reference(on_case, batch, in_batch, scale)


def witness(row: Case, case: Case, differ_on: Callable[[Case], bool]) -> list[object]:
    """A simple input on which two models differ, as nested lists, given one on which they do.

    Raises `NotAPair` if they differ on the example in its batch, but not on it alone.
    """
    if not differ_on(row):
        raise NotAPair(
            "the models differ on a batch, but on none of its examples alone: one of them mixes its examples"
        )
    small = case.inputs[0].numel() <= DENSE
    found = (shrunk(case, differ_on) if small else None) or simplest(row, differ_on)
    inputs: list[object] = found.inputs[0].tolist()
    return inputs


def shrunk(case: Case, differ_on: Callable[[Case], bool]) -> Case | None:
    """An example that Hypothesis draws and shrinks, on which two models differ; None if it finds none."""
    first, found = case.select(case.target.new_zeros(1)), list[Case]()
    # Multiples of a power of two: no denormals, and shrinking ends at readable numbers.
    arrays = hnp.arrays("int64", tuple(first.inputs.shape), elements=st.integers(-128, 128), fill=st.nothing())

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=DRAWN_EXAMPLES,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )
    @hypothesis.given(st.sampled_from([64, 16, 4]), arrays)
    def search(parts: int, drawn: object) -> None:
        row = replace(first, inputs=torch.as_tensor(drawn).to(case.inputs) / parts)
        if differ_on(row):
            found.append(row)
            raise AssertionError("the models differ")

    with contextlib.suppress(AssertionError):  # recorded: the last one found is shrunk
        search()
    return simplest(found[-1], differ_on) if found else None


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
    named = with_values(model, [*model.named_parameters(), *model.named_buffers()])
    return {name: (tensor, tensor.detach().clone()) for name, tensor in named.items()}


@torch.no_grad()
def unchanging(which: str, model: nn.Module, case: Case) -> Computed:
    """`forward_and_gradient`, with a check that the model is deterministic and changes nothing.

    Raises `NotAPair` if it is in train mode, gives different outputs when it is run twice, or changes itself or its
    inputs.
    """
    if training := [name or "itself" for name, module in model.named_modules() if module.training]:
        raise NotAPair(f"{which} is in train mode ({training[0]}): a pair's models are built in eval mode")
    before, copy = state(model), case.copy()
    computed = forward_and_gradient(which, model, case)
    first, second = (copy.run(model) for _ in range(2))
    if not torch.equal(copy.inputs, case.inputs):
        raise NotAPair(f"the forward pass of {which} changes its inputs: a pair's models leave them as they are")
    now = {name: tensor for name, (tensor, _) in state(model).items()}
    elsewhere = offloaded_weights(model)
    if changed := [name for name in now.keys() | before.keys() if not _same(name, now, before, name in elsewhere)]:
        raise NotAPair(f"the forward pass of {which} changes {sorted(changed)[0]}: a pair's models must not change")
    if not torch.equal(first.nan_to_num(), second.nan_to_num()):
        raise NotAPair(f"{which} gives different outputs when it is run twice: a pair's models draw no random numbers")
    return computed


def _same(name: str, now: Mapping[str, Tensor], before: State, elsewhere: bool) -> bool:
    """Whether a weight is the tensor that it was, with its values; one that lies elsewhere may be read anew."""
    if name not in now or name not in before:
        return False
    tensor, values = before[name]
    return (now[name] is tensor or elsewhere) and torch.equal(now[name], values)


def refuse_unrelated(f: nn.Module, g: nn.Module) -> None:
    """Raise `NotAPair`, which says how to share, if two models have weights and no weight tensor in common.

    Models with independent weights are not two implementations of one function, even if their outputs agree. The order
    of entries may differ. Constant tensors, such as biases of 0, are common to all models and do not count.
    """
    weights_f, weights_g = (
        [weight.detach().flatten() for weight in with_values(model, model.named_parameters()).values()]
        for model in (f, g)
    )
    same_size = functools.partial(pairs_of_one_size, weights_f, weights_g)
    # Compared in the same order first: sorting the weights of a large model takes longer than running it.
    common = any(torch.equal(a, b) and varies(a) for a, b in same_size()) or any(
        torch.equal(a.sort()[0], b.sort()[0]) for a, b in same_size() if varies(a) and varies(b)
    )
    if not common and any(map(varies, weights_f + weights_g)):
        raise NotAPair(
            "f and g share no weights: make g from f's (a deep copy that is changed, or the same parameters), so that "
            "at least one tensor stays as it is"
        )


def pairs_of_one_size(weights_f: list[Tensor], weights_g: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """The pairs of equally many numbers, lazily: the first is often a pair of equal tensors."""
    sizes = [weight.numel() for weight in weights_g]
    for a in weights_f:
        yield from ((a, b) for b, size in zip(weights_g, sizes, strict=True) if size == a.numel())


def varies(weight: Tensor) -> bool:
    """Whether a tensor has two different numbers."""
    return weight.numel() > 0 and bool(weight.min() < weight.max())
