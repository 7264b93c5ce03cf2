"""One model is one function, whatever the circumstances: it is compared with itself.

Explainers run a model with gradients and without, on one example and on many, in float32 and in float64, on a copy, and
hundreds of times. Where a model then computes another function, the explainer would be blamed.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import BaseTorchFunctionMode

from faithcheck.axioms.equivalence_tests.forward_and_gradient import Computed, forward_and_gradient, refused
from faithcheck.axioms.equivalence_tests.input_scale import Difference, Scale, within
from faithcheck.axioms.measure.roundoff import tolerance
from faithcheck.models.case import Case
from faithcheck.models.pair import NotAPair

Circumstance: TypeAlias = Callable[[nn.Module, Case], Tensor]

CALLS = 150
"""A model that changes at its 100th call shows it; one that errs in 3 of 100 calls does so in 98 of 100 runs."""
BETWEEN_TYPES = 1e-2
"""float32 loses up to half of its seven digits to cancellation within a model; two digits must remain."""


@torch.no_grad()
def without_gradients(model: nn.Module, case: Case) -> Tensor:
    """As Leave-One-Out runs it."""
    return case.run(model)


@torch.enable_grad()
def intercepted(model: nn.Module, case: Case) -> Tensor:
    """As LRP runs it, under a mode that sees every operation; this one changes none."""
    with BaseTorchFunctionMode():
        return case.run(model).detach()


@torch.enable_grad()
def computed_inputs(model: nn.Module, case: Case) -> Tensor:
    """As an explainer runs it whose inputs are computed from others, with gradients."""
    return replace(case, inputs=case.inputs.detach().clone().requires_grad_() * 1).run(model).detach()


def in_shared_memory(model: nn.Module, case: Case) -> Tensor:
    """A case of one example as two rows of the same memory, as an explainer may repeat an example.

    Some models cannot run on such rows, as transformers' Conv1D, which takes a view of them: then on two copies.
    """
    copies = case.select(case.target.new_zeros(2))
    try:
        outputs = without_gradients(model, replace(copies, inputs=case.inputs.expand_as(copies.inputs)))
    except RuntimeError:
        outputs = without_gradients(model, copies)
    return outputs[1:]


CIRCUMSTANCES: Mapping[str, Circumstance] = {
    "under torch.no_grad()": without_gradients,
    "for inputs that need no gradient, under a torch function mode that changes nothing": intercepted,
    "for inputs that are computed from others": computed_inputs,
}


class Consistency:
    """Comparisons of one model, ``f`` or ``g``, with itself on a few examples, at the ``scale`` of a larger batch."""

    def __init__(self, which: str, model: nn.Module, case: Case, computed: Computed, scale: Scale) -> None:
        self.which, self.model, self.case, self.computed, self.scale = which, model, case, computed, scale

    def check(self, batch: Case, computed: Computed) -> None:
        """Raise `NotAPair` at the first circumstance in which the model computes another function.

        ``computed`` are the model's outputs and gradients on ``batch``, the case's `large_batch`.
        """
        alone = self.case.select(self.case.target.new_zeros(1))
        self.same(forward_and_gradient(self.which, self.model, alone), "for an example alone than in its batch")
        in_batch = Computed(*(values[-len(self.case.inputs) :].flip(0) for values in computed))
        self.same(in_batch, "in a large batch than in a small one")
        for words, circumstance in CIRCUMSTANCES.items():
            self.same_under(circumstance, self.case, words)
            self.same_under(circumstance, alone, f"{words}, alone in its batch")
        self.same_under(in_shared_memory, alone, "for an example that is in two rows of the same memory")
        outputs = without_gradients(self.model, batch)[-len(self.case.inputs) :].flip(0)
        self.same(Computed(outputs, self.computed.gradient), "in a large batch under torch.no_grad()")
        self.in_the_other_type()
        if has_code_from_elsewhere(self.model):
            self.when_called_often(batch)

    def same_under(self, circumstance: Circumstance, case: Case, words: str) -> None:
        """Refuse a run of the first examples of the case under a circumstance whose outputs differ, or that fails."""
        with refused(f"{self.which} fails {words}"):
            outputs = circumstance(self.model, case)
        self.same(Computed(outputs, self.computed.gradient[: len(outputs)]), words)

    def same(self, computed: Computed, words: str, scale: Scale | None = None, limit: float | None = None) -> None:
        """Refuse a run on the first examples of the case whose results differ from those on the case.

        ``words`` say under which circumstance it ran. By default ``scale`` is of the larger batch, ``limit`` the
        tolerance.
        """
        rows = torch.arange(len(computed.outputs), device=self.case.inputs.device)
        expected = Computed(self.computed.outputs[rows], self.computed.gradient[rows])
        difference = (scale or self.scale).difference(computed, expected, self.case.select(rows))
        if not within(difference.gap, limit or tolerance(self.case.inputs)):
            raise self.refusal(words, difference)

    def refusal(self, words: str, difference: Difference) -> NotAPair:
        """The error that says under which circumstance what differs, and by how much."""
        return NotAPair(
            f"{self.which} computes another function {words}: {difference.where} differs by {difference.gap:.2g} of "
            "its size; a model of a pair is one function, however it is run"
        )

    def in_the_other_type(self) -> None:
        """Refuse a model whose copy in the other floating-point type, float32 or float64, computes another function."""
        dtype = self.case.inputs.dtype
        other = torch.float32 if dtype == torch.float64 else torch.float64
        name = str(other).removeprefix("torch.")
        try:
            model, case = deepcopy(self.model).to(other), self.case.to(other)
            alone = case.select(case.target.new_zeros(1))
            computed = forward_and_gradient(self.which, model, case).to(dtype)
            runs = {
                "": computed,
                ", alone in its batch": forward_and_gradient(self.which, model, alone).to(dtype),
                ", under torch.no_grad()": Computed(without_gradients(model, case).to(dtype), computed.gradient),
            }
        except Exception as error:  # an error of the model: its message is passed on
            raise NotAPair(
                f"a copy of {self.which} by copy.deepcopy, converted by .to(torch.{name}), cannot be run: {error}; "
                "register constant tensors as buffers, or convert them to the inputs' type"
            ) from error
        scale = Scale.of(self.computed, self.case.target, torch.float32, BETWEEN_TYPES)
        for how, run in runs.items():
            self.same(run, f"as a copy by copy.deepcopy in {name}{how}", scale, BETWEEN_TYPES)

    @torch.no_grad()
    def when_called_often(self, batch: Case) -> None:
        """Refuse a model that changes when it is called often, or depends on what it was called on before."""
        example = self.case.select(self.case.target.new_zeros(1))
        first = example.run(self.model)
        for call in range(2, CALLS + 1):
            if call % 10 == 0:
                batch.select(example.target.new_tensor([call * len(batch.inputs) // (CALLS + 1)])).run(self.model)
            outputs = example.run(self.model)
            if not torch.equal(outputs, first):
                self.same(Computed(outputs, self.computed.gradient[:1]), f"in call {call} of {CALLS}")
            if call % 2:
                self.same(forward_and_gradient(self.which, self.model, example), f"in call {call}, with gradients")
        self.same(Computed(self.case.run(self.model), self.computed.gradient), f"after {CALLS} other calls")


LIBRARIES = ("torch", "transformers", "faithcheck.models")
"""The packages whose modules keep no count of their calls: for the last, a test of faithcheck calls them often."""


def has_code_from_elsewhere(model: nn.Module) -> bool:
    """Whether a class, a function or a hook of the model is defined in none of the `LIBRARIES`."""
    return any(
        not from_package(code, *LIBRARIES)
        for module in model.modules()
        for code in (type(module), *filter(callable, vars(module).values()), *filter(callable, hooks(module)))
    )


def hooks(module: nn.Module) -> list[object]:
    """The hooks of a module."""
    return [
        hook
        for name, value in vars(module).items()
        if "_hooks" in name and isinstance(value, dict)
        for hook in value.values()
    ]


def from_package(code: object, *packages: str) -> bool:
    """Whether a class or a function is defined in one of these packages."""
    module = getattr(code, "__module__", None) or ""
    return any(module == package or module.startswith(f"{package}.") for package in packages)
