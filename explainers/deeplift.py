"""DeepLIFT with the rescale rule: an activation passes on ΔOutput/ΔInput, its slope between baseline and input.

Shrikumar, Greenside & Kundaje 2017, arXiv 1704.02685. Multipliers chain as gradients do, so it runs as
LRP does here: on an unmodified model, each operation by its rule, the attribution (x − x′) ⊙ modified gradient. Each
operation that has a rule takes the difference of its operands exactly to that of its result, so that attributions sum
to f(x) − f(x′). There are two kinds: affine maps, with the plain gradient, and functions of one value each, with the
slope. Everything else is refused: products of data, softmax, norms, and a choice among several values such as max.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.rules import (
    ACTIVATION_MODULES,
    ACTIVATIONS,
    LINEAR,
    MATRIX_PRODUCTS,
    MULTIPLES,
    REARRANGEMENTS,
    SUMS,
    OperationCall,
    Rule,
    batch_norm_rule,
    constant_factor_rule,
    dropout_rule,
    gradient_rule,
    linear_rule,
    modified,
    tensors_with_relevance,
    unbind_rule,
)
from faithcheck.explainers.protocol import Unsupported, per_feature
from faithcheck.models.case import Case


def quotient_by_constant(call: OperationCall) -> Any:
    """A division by a constant is linear; one by data, or a rounded one, is not."""
    if tensors_with_relevance(call.argument(1, "other")) or call.kwargs.get("rounding_mode") is not None:
        raise call.unsupported("no rule for a quotient that is rounded, or whose denominator carries relevance")
    return constant_factor_rule(call)


FUNCTIONS = ("relu", "abs", *ACTIVATIONS, *ACTIVATION_MODULES)
"""Functions of one value each. LRP counts relu and abs as rearrangements, which between two points they are not."""

CHOICES = ("max", "min", "amax", "amin", "maximum", "minimum", "max_pool1d", "max_pool2d")
"""What chooses among several values, which has no slope."""

AFFINE: dict[str, Rule] = {
    **{name: gradient_rule for name in (*REARRANGEMENTS, *SUMS) if name not in (*FUNCTIONS, *CHOICES)},
    **dict.fromkeys((*LINEAR, *MATRIX_PRODUCTS), linear_rule),
    **dict.fromkeys(MULTIPLES, constant_factor_rule),
    **dict.fromkeys(("div", "div_", "itruediv"), quotient_by_constant),
    "iter": unbind_rule,
    "batch_norm": batch_norm_rule,
    "dropout": dropout_rule,
}
"""Affine maps of what carries relevance, as long as their other arguments are constants."""


@dataclass(frozen=True)
class Noted:
    """A call at the baseline: its constants, and of a function of one value the operand, the result, the derivative."""

    constants: list[Any]
    ends: tuple[Tensor, Tensor, Tensor] | None = None


Calls: TypeAlias = dict[tuple[str, int], Noted]


@dataclass(frozen=True)
class DeepLiftRescale:
    """DeepLIFT's rescale rule from ``case.baseline``; Shrikumar et al. 2017, arXiv 1704.02685.

    Where an activation's input is the same as at the baseline, its slope is the gradient there; `slope_between` says
    what it is where the two differ by no more than round-off.
    """

    name: str = "deeplift_rescale"
    claims: frozenset[str] = frozenset({"completeness"})

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """A forward pass at the baseline, and one forward and one backward pass at the inputs: ``(batch, features)``.

        Raises:
            Unsupported: an operation has no rule, or is another at the baseline than at the inputs; names it.
        """
        calls: Calls = {}
        baseline, _ = self._method(lambda call: note(call, calls)).propagate(model, replace(case, inputs=case.baseline))
        inputs, output = self._method(lambda call: rescale(call, calls)).propagate(model, case)
        if inputs.calls != baseline.calls:
            raise Unsupported(f"runs at the baseline alone: {', '.join(sorted(baseline.calls - inputs.calls))}")
        (gradient,) = torch.autograd.grad(output.sum(), inputs.point)
        return per_feature((case.inputs - case.baseline) * gradient)

    def _method(self, rule: Rule) -> LRP:
        return LRP(self.name, dict.fromkeys((*AFFINE, *FUNCTIONS), rule))


def note(call: OperationCall, calls: Calls) -> Any:
    """At the baseline: compute, and keep what `rescale` compares with, in memory of its own."""
    constants = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in constants_of(call)]
    if call.name in AFFINE:
        calls[call.name, call.number] = Noted(constants)
        return AFFINE[call.name](call)
    x, value = one_value(call)
    derivative = derivative_of(x, value)
    calls[call.name, call.number] = Noted(constants, (x.detach().clone(), value.detach().clone(), derivative))
    return value


def rescale(call: OperationCall, calls: Calls) -> Any:
    """At the inputs: the plain gradient of an affine map, the slope from the baseline of a function of one value."""
    there, here = calls.get((call.name, call.number)), constants_of(call)
    if there is None:
        raise call.unsupported("it does not run at the baseline")
    if len(there.constants) != len(here) or not all(map(same, there.constants, here)):
        raise call.unsupported("at the baseline it is another map: a constant in it, mask or index, depends on data")
    if there.ends is None:
        return AFFINE[call.name](call)
    x, value = one_value(call)
    slope = slope_between(there.ends, (x.detach(), value.detach(), derivative_of(x, value)))
    if not slope.isfinite().all():
        raise call.unsupported("no rule where its slope is infinite")
    return modified(x, value, lambda gradient: gradient * slope)


def slope_between(start: tuple[Tensor, Tensor, Tensor], end: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """ΔOutput/ΔInput of a function of one value, from its operand, result and derivative at either end.

    Round-off of the results, eps·|f|, is eps·|f|/|ΔInput| in the quotient: all of it, where the inputs differ by
    round-off alone. Where they differ by at most √eps of their size, or of 1, the slope is held between the two
    derivatives. The slope of a function whose derivative is monotone between them, a kink included, lies there; else
    it is at most f‴·ΔInput²/8 outside, a multiple of eps. So this costs no completeness, and leaves an error of at
    most about √eps: the derivatives differ by f″·ΔInput, and beyond √eps round-off is below eps/√eps.
    """
    (x, value, derivative), (x_0, value_0, derivative_0) = end, start
    run = x - x_0
    slope = (value - value_0) / run
    size = torch.maximum(x.abs(), x_0.abs()).clamp(min=1)
    held = slope.clamp(torch.minimum(derivative, derivative_0), torch.maximum(derivative, derivative_0))
    slope = torch.where(run.abs() <= torch.finfo(x.dtype).eps ** 0.5 * size, held, slope)
    return torch.where(run == 0, derivative, slope)


def derivative_of(x: Tensor, value: Tensor) -> Tensor:
    """f′(x) of a function that takes each value for itself, shaped like ``x``; 0 if it is computed under no_grad."""
    if not value.requires_grad:
        return torch.zeros_like(x)
    return torch.autograd.grad(value.sum(), x)[0]


def one_value(call: OperationCall) -> tuple[Tensor, Tensor]:
    """The operand and the result of a function that takes each value for itself."""
    operands = call.operands_with_relevance()
    if len(operands) != 1:
        raise call.unsupported("no rule for several operands that carry relevance")
    if call.kwargs.get("inplace"):
        raise call.unsupported("no rule for an activation that overwrites its input: set inplace=False")
    value: Tensor = call.value()
    if value.shape != operands[0].shape:
        raise call.unsupported("no rule for an activation that broadcasts what carries relevance")
    return operands[0], value


def constants_of(call: OperationCall) -> list[Any]:
    """The arguments that carry no relevance, in order."""
    return [leaf for leaf in tree_leaves((call.args, call.kwargs)) if not tensors_with_relevance(leaf)]


def same(one: Any, other: Any) -> bool:
    """Whether two constants are equal."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other)
