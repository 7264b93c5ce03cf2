"""DeepLIFT with the rescale rule: an activation passes on ΔOutput/ΔInput, its slope between baseline and input.

Shrikumar, Greenside & Kundaje 2017, arXiv 1704.02685.

1. DeepLIFT's multipliers chain as gradients do. So it runs as LRP does here: on an unmodified model, each operation by
   its rule, with the attribution (x − x′) ⊙ modified gradient.
2. Each rule maps the difference of the operands exactly to the difference of the result, so that attributions sum to
   f(x) − f(x′).
3. Two kinds of operations have such a rule: affine maps (the plain gradient), and functions of one value (the slope).
4. All others are refused: products of data, softmax, norms, and a choice among several values such as max.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.modified_gradient import modified
from faithcheck.explainers.lrp.operation_call import OperationCall, Rule, tensors_with_relevance
from faithcheck.explainers.lrp.operation_table import operations_with
from faithcheck.explainers.lrp.operations import Trait
from faithcheck.explainers.lrp.rules.linear_maps import linear_rule
from faithcheck.explainers.lrp.rules.norms import batch_norm_rule
from faithcheck.explainers.lrp.rules.products import constant_factor_rule
from faithcheck.explainers.lrp.rules.rearrangements import dropout_rule, gradient_rule
from faithcheck.explainers.protocol import Unsupported, in_standard_modes, per_feature
from faithcheck.explainers.refused_modules import parts_of
from faithcheck.models.case import Case
from faithcheck.models.expectation import ON_LINEAR_MODELS, Expectations


def quotient_by_constant_rule(call: OperationCall) -> Any:
    """A division by a constant is linear; a division by data, or a rounded one, is not."""
    if tensors_with_relevance(call.argument(1, "other")) or call.kwargs.get("rounding_mode") is not None:
        raise call.unsupported("no rule for a quotient that is rounded, or whose denominator carries relevance")
    return constant_factor_rule(call)


FUNCTIONS_OF_ONE_VALUE = operations_with(Trait.ONE_VALUE)
"""They have a slope each. relu and abs are among them: LRP treats them as rearrangements, but between two points they
are not."""

AFFINE_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        operations_with(Trait.REARRANGEMENT, without=(Trait.CHOICE, Trait.ONE_VALUE))  # a choice has no slope
        | operations_with(Trait.SUM),
        gradient_rule,
    ),
    **dict.fromkeys(operations_with(Trait.LINEAR_MAP) | operations_with(Trait.MATRIX_PRODUCT), linear_rule),
    **dict.fromkeys(operations_with(Trait.ELEMENTWISE_PRODUCT), constant_factor_rule),
    **dict.fromkeys(operations_with(Trait.ELEMENTWISE_PRODUCT, Trait.QUOTIENT), quotient_by_constant_rule),
    "batch_norm": batch_norm_rule,
    "dropout": dropout_rule,
}
"""The rules of operations that are affine in their operands with relevance, if their other arguments are constant."""

Point: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""The operand of a function of one value, its result, and its derivative there."""


@dataclass(frozen=True)
class BaselineCall:
    """A call in the forward pass at the baseline: its constants, and the point of a function of one value."""

    constants: list[Any]
    point: Point | None = None


BaselineCalls: TypeAlias = dict[tuple[str, int], BaselineCall]
"""The calls at the baseline, by operation and number of the call."""


@builtin("deeplift")
@dataclass(frozen=True)
class DeepLiftRescale:
    """DeepLIFT's rescale rule from ``case.baseline``; Shrikumar et al. 2017, arXiv 1704.02685.

    If an activation has the same input as at the baseline, its slope is the gradient there. `slope_between` defines
    the slope if the two inputs differ by round-off alone.
    """

    name: str = "deeplift_rescale"
    claims: frozenset[str] = frozenset(
        "completeness sensitivity linearity additivity antisymmetry shift scale determinism batching precision "
        "randomisation".split()
    )
    label: ClassVar[str] = "DeepLIFT (rescale)"
    summary: ClassVar[str] = "DeepLIFT's rescale rule from the baseline; Shrikumar et al. 2017"
    expected: ClassVar[Expectations] = ON_LINEAR_MODELS

    @property
    def settings(self) -> str:
        """The settings in words."""
        return "from the case's baseline"

    @in_standard_modes
    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """A forward pass at the baseline, and one forward and one backward pass at the inputs: ``(batch, features)``.

        Raises:
            Unsupported: an operation has no rule, or differs between the baseline and the inputs; names it.
        """
        calls: BaselineCalls = {}
        at_baseline = replace(case, inputs=case.baseline)
        baseline, _ = self._method(lambda call: record_at_baseline(call, calls)).propagate(model, at_baseline)
        inputs, output = self._method(lambda call: rescale(call, calls)).propagate(model, case)
        if inputs.calls != baseline.calls:
            only_there = ", ".join(sorted(baseline.calls - inputs.calls))
            raise Unsupported(f"operations that run at the baseline only: {only_there}")
        (gradient,) = torch.autograd.grad(output.sum(), inputs.point)
        return per_feature((case.inputs - case.baseline) * gradient)

    def _method(self, rule: Rule) -> LRP:
        return LRP(self.name, dict.fromkeys((*AFFINE_RULES, *FUNCTIONS_OF_ONE_VALUE), rule))


def record_at_baseline(call: OperationCall, calls: BaselineCalls) -> Any:
    """The rule at the baseline: compute, and copy the values that `rescale` needs."""
    constants = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in constants_of(call)]
    if call.name in AFFINE_RULES:
        calls[call.name, call.number] = BaselineCall(constants)
        return AFFINE_RULES[call.name](call)
    x, value = operand_and_result(call)
    point = (x.detach().clone(), value.detach().clone(), derivative_of(x, value))
    calls[call.name, call.number] = BaselineCall(constants, point)
    return value


def rescale(call: OperationCall, calls: BaselineCalls) -> Any:
    """The rule at the inputs: an affine map's plain gradient, or the slope from the baseline.

    Raises Unsupported if the call does not run at the baseline, has other constants there, or has an infinite slope.
    """
    at_baseline, constants = calls.get((call.name, call.number)), constants_of(call)
    if at_baseline is None:
        raise call.unsupported("it does not run at the baseline")
    if len(at_baseline.constants) != len(constants) or not all(map(equal, at_baseline.constants, constants)):
        raise call.unsupported("at the baseline it is another map: a constant in it, mask or index, depends on data")
    if at_baseline.point is None:
        return AFFINE_RULES[call.name](call)
    x, value = operand_and_result(call)
    slope = slope_between(at_baseline.point, (x.detach(), value.detach(), derivative_of(x, value)))
    if not slope.isfinite().all():
        raise call.unsupported("no rule for an infinite slope")
    return modified(x, value, lambda gradient: gradient * slope)


def slope_between(at_baseline: Point, at_inputs: Point) -> Tensor:
    """ΔOutput/ΔInput of a function of one value, from its operand, result and derivative at the baseline and the input.

    1. The results have a round-off of eps·|f|, so the quotient has one of eps·|f|/|ΔInput|: if the inputs differ by
       round-off alone, the quotient is round-off alone.
    2. So if they differ by at most √eps of their size, or of 1, the slope is clamped between the two derivatives.
    3. If the derivative is monotone between them, or has a kink, the exact slope lies in this range. Otherwise it lies
       at most f‴·ΔInput²/8 outside, a multiple of eps. So the clamp costs no completeness.
    4. The remaining error is at most about √eps: within √eps the derivatives differ by f″·ΔInput, and beyond it the
       round-off is below eps/√eps.
    """
    (x, value, derivative), (x_0, value_0, derivative_0) = at_inputs, at_baseline
    change = x - x_0
    slope = (value - value_0) / change
    size = torch.maximum(x.abs(), x_0.abs()).clamp(min=1)
    clamped = slope.clamp(torch.minimum(derivative, derivative_0), torch.maximum(derivative, derivative_0))
    slope = torch.where(change.abs() <= torch.finfo(x.dtype).eps ** 0.5 * size, clamped, slope)
    return torch.where(change == 0, derivative, slope)


def derivative_of(x: Tensor, value: Tensor) -> Tensor:
    """f′(x) of a function of one value, shaped like ``x``; 0 if it is computed under no_grad."""
    if not value.requires_grad:
        return torch.zeros_like(x)
    return torch.autograd.grad(value.sum(), x)[0]


def operand_and_result(call: OperationCall) -> tuple[Tensor, Tensor]:
    """The operand and the result of a function of one value.

    Raises Unsupported if several operands carry relevance, or if it overwrites or broadcasts its operand.
    """
    operands = call.operands_with_relevance()
    if len(operands) != 1:
        raise call.unsupported("no rule for several operands that carry relevance")
    if call.kwargs.get("inplace"):
        raise call.unsupported("no rule for an activation that overwrites its input: set inplace=False")
    value: Tensor = call.value()
    if value.shape != operands[0].shape:
        raise call.unsupported("no rule for an activation that broadcasts its operand")
    return operands[0], value


def constants_of(call: OperationCall) -> list[Any]:
    """The arguments that carry no relevance, in order."""
    return [leaf for leaf in tree_leaves((call.args, call.kwargs)) if not tensors_with_relevance(leaf)]


def equal(a: Any, b: Any) -> bool:
    """Whether two constants are equal."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        ours, theirs = parts_of(a), parts_of(b)
        return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))
    return bool(a == b)
