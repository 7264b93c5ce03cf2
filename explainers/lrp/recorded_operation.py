"""One operation of a recorded forward pass, and what it loses: the relevance that it does not pass on, by cause.

Relevance is value × gradient. The causes and their formulas, with R the relevance received at a result z:

1. ε: the stabiliser keeps R·ε/(parts·|z| + ε), see `modified_gradient`.
2. A product that is not halved: (1 − parts)·R, a gain.
3. An activation at 0, and β of LayerNorm or GroupNorm: R at an operand that is exactly 0; β × gradient. Block-wise
   LRP's functions: φ(0) × gradient.
4. bias, softmax (Eq. 5), BatchNorm: the part of R that the operation's own gradient does not pass on to its operands.
5. Added constants: constant × the operation's own gradient. The loss is named after the constant's parameter, or after
   the module that made the constant; a constant that masks logits is named mask.
6. A cast: the round-off of the gradient in the coarser type.

For 4 to 6 the operation runs again, with its own gradient and without its rule.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_unflatten

from faithcheck.explainers.lrp.constant_names import HELD, is_float
from faithcheck.explainers.lrp.operation_call import OperationCall, Rule, RuleTrait, tensors_with_relevance, traits_of
from faithcheck.explainers.lrp.operation_table import operations, operations_with
from faithcheck.explainers.lrp.operations import Trait

SHARED_BY_OPERANDS = (
    operations_with(Trait.MATRIX_PRODUCT) | operations_with(Trait.ELEMENTWISE_PRODUCT) | operations_with(Trait.QUOTIENT)
)
"""Products and quotients: n operands with relevance share it in n equal parts."""
ADDING_CONSTANTS = operations_with(Trait.SUM) | operations_with(Trait.REARRANGEMENT)
"""Operations that pass on all relevance, except the shares of constants among their operands."""
LOSING_BY_OWN_GRADIENT = operations_with(Trait.LINEAR_MAP) | operations_with(Trait.ABSORBS)
"""Operations whose own gradient loses a part, which is named after them: affine maps, and Eq. 5."""
IN_PLACE = operations_with(Trait.IN_PLACE)
TAKING_NUMBERS = operations_with(Trait.SUM, Trait.ELEMENTWISE_AFFINE) | operations_with(Trait.FILLS)
"""Operations that add a Python number, or put it in the place of values."""
NORMS_WITH_BIAS = {"layer_norm": "LayerNorm β", "group_norm": "GroupNorm β"}
"""The cause of what the bias of a norm keeps, by the norm."""
MASK = "mask"
MASKED = -1e4  # a constant below this, added to a logit or put in its place, is a mask

Gradients: TypeAlias = dict[int, Tensor]
"""The gradients of one backward pass, by slot: each recorded tensor has a slot."""


@dataclass(frozen=True)
class Operand:
    """An operand that carries relevance."""

    leaf: int  # its place among the flattened arguments
    slot: int  # of its gradient
    producer: int | None  # the number of the operation that made it; None: the inputs


@dataclass
class Result:
    """A result: its value, and the slots of its gradient before and after the rule's stabiliser."""

    value: Tensor
    before: int
    after: int


@dataclass(frozen=True)
class ExampleBalance:
    """The relevance that one operation received, passed on to each operand, and lost by cause, in one example."""

    received: float
    passed_on: list[float]
    losses: dict[str, float]


@dataclass
class RecordedOperation:
    """One operation of the forward pass: all that is needed to run it again, and to interpret its gradients."""

    call: OperationCall
    rule: Rule
    module: str  # that ran it, by the model's name for it
    own: Callable[..., Any]  # the function with the operation's own gradient
    leaves: list[Any]  # its flattened arguments, detached
    structure: Any  # the tree of its arguments
    operands: list[Operand] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    constants: dict[int, str] = field(default_factory=dict)  # the names of those among its arguments, by leaf

    def balance(self, gradients: Gradients) -> ExampleBalance:
        """The balance of one example, from the gradients of its backward pass."""
        received = sum(float(relevance(r.value, gradients.get(r.before)).sum()) for r in self.results)
        passed_on = [float(relevance(self.leaves[o.leaf], gradients.get(o.slot)).sum()) for o in self.operands]
        losses: dict[str, float] = defaultdict(float)
        reached = [r for r in self.results if r.before in gradients and gradients[r.before].any()]
        if reached:
            active = [o for o in self.operands if o.slot in gradients]
            parts = len(active) if self.call.name in SHARED_BY_OPERANDS else 1
            for result in reached:
                cause, share = self._stabiliser_loss(result, gradients, parts)
                losses[cause] += share
            for cause, share in self._constant_losses(active, gradients).items():
                losses[cause] += share
        return ExampleBalance(received, passed_on, {cause: share for cause, share in losses.items() if share != 0})

    def _stabiliser_loss(self, result: Result, gradients: Gradients, parts: int) -> tuple[str, float]:
        """ε's part R·ε/(parts·|z| + ε), |z| for z + ε·sign z; or the gain (1 − parts)·R of a product not halved."""
        received = relevance(result.value, gradients[result.before])
        epsilon = self.call.epsilon
        if torch.equal(gradients[result.before], gradients[result.after]):
            return f"{self.call.name} not halved", (1 - parts) * float(received.sum())
        if epsilon == 0:
            return "ε", 0.0
        size = result.value.double()
        size = size.abs() if self.call.signed else size
        return "ε", float((received * (epsilon / (parts * size + epsilon))).sum())

    def _constant_losses(self, active: list[Operand], gradients: Gradients) -> dict[str, float]:
        """The part that constants, or the operation's own curvature, keep of the relevance behind the stabiliser."""
        traits = traits_of(self.rule)
        if RuleTrait.FROM_ZERO in traits:
            return self._loss_at_zero(active[0], gradients)
        if RuleTrait.IDENTITY in traits:
            at_zero = self.leaves[active[0].leaf] == 0
            (result,) = self.results
            return {"activation at 0": float(relevance(result.value, gradients[result.after])[at_zero].sum())}
        if RuleTrait.SIGMA_CONSTANT in traits:
            cause = NORMS_WITH_BIAS.get(self.call.name)
            beta = self._leaf_of(self.call.argument(3, "bias")) if cause else None
            return {} if cause is None or beta is None else {cause: self._shares({beta}, gradients)[beta]}
        if self.call.name in SHARED_BY_OPERANDS:
            return {}
        return self._own_gradient_losses({operand.leaf for operand in active}, gradients)

    def _loss_at_zero(self, operand: Operand, gradients: Gradients) -> dict[str, float]:
        """Block-wise LRP passes on φ(x) − φ(0): φ(0) is a bias, unless it is infinite.

        An operand of −∞, as behind a mask, gets nothing: it stands for a constant, which would have φ(−∞) − φ(0).
        """
        leaves = [torch.zeros_like(leaf) if i == operand.leaf else leaf for i, leaf in enumerate(self.leaves)]
        args, kwargs = tree_unflatten(leaves, self.structure)
        at_zero = self.own(*args, **kwargs)
        (result,) = self.results
        kept_value = torch.where(self.leaves[operand.leaf].isinf(), result.value, at_zero)
        kept = relevance(kept_value.where(kept_value.isfinite(), 0), gradients[result.after])
        return {f"{self.call.name} at 0": float(kept.sum())}

    def _own_gradient_losses(self, active: set[int], gradients: Gradients) -> dict[str, float]:
        """The part that the operation's own gradient does not pass on to its active operands, whatever its rule."""
        name = self.call.name
        if name in LOSING_BY_OWN_GRADIENT:
            operation = operations()[name]
            bias = self._leaf_of(self.call.argument(*operation.bias)) if operation.bias else None
            if Trait.LINEAR_MAP in operation.traits and bias not in active:
                return {} if bias is None else {"bias": self._shares({bias}, gradients)[bias]}
            return {name: self._behind_stabiliser(gradients) - sum(self._shares(active, gradients).values())}
        return self._added_constant_losses(active, gradients) if name in ADDING_CONSTANTS else {}

    def _added_constant_losses(self, active: set[int], gradients: Gradients) -> dict[str, float]:
        """The shares of constants in a sum or a rearrangement, and the round-off of a cast."""
        dtypes = {value.dtype for value in (*(self.leaves[i] for i in active), *(r.value for r in self.results))}
        constants = [i for i, leaf in enumerate(self.leaves) if is_float(leaf) and i not in active]
        numbers = added_numbers(self.call)
        if not constants and not numbers and len(dtypes) == 1:
            return {}
        shares = self._shares({*active, *constants}, gradients)
        rest = self._behind_stabiliser(gradients) - sum(shares.values())
        losses: dict[str, float] = defaultdict(float)
        for leaf in constants:
            losses[MASK if is_mask(self.leaves[leaf]) else self.constants.get(leaf, HELD)] += shares[leaf]
        if numbers:
            losses[MASK if any(number <= MASKED for number in numbers) else f"number in {self.call.name}"] += rest
        elif len(dtypes) > 1:  # a cast: its gradient is rounded to the coarser type
            coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
            losses[f"{str(coarsest).removeprefix('torch.')} round-off"] += rest
        return losses

    def _behind_stabiliser(self, gradients: Gradients) -> float:
        """The relevance at the results that the stabiliser has let through."""
        return sum(float(relevance(r.value, gradients.get(r.after)).sum()) for r in self.results)

    def _leaf_of(self, argument: Any) -> int | None:
        """The place of a tensor argument among the leaves."""
        flat = tree_leaves((self.call.args, self.call.kwargs))
        return next((i for i, leaf in enumerate(flat) if leaf is argument and isinstance(leaf, Tensor)), None)

    @torch.enable_grad()
    def _shares(self, wanted: set[int], gradients: Gradients) -> dict[int, float]:
        """Value × the operation's own gradient, for the operands and constants at these leaves.

        A constant of a coarser type than the result counts in the result's type: its gradient would be rounded.
        """
        operands, exact = {operand.leaf for operand in self.operands}, self.results[0].value.dtype
        floats: dict[int, Tensor] = {}
        for i in sorted(wanted):
            leaf = self.leaves[i]
            as_it_is = i in operands or exact.is_complex
            dtype = leaf.dtype if as_it_is else torch.promote_types(leaf.dtype, exact)
            floats[i] = leaf.to(dtype).detach().requires_grad_()
        args, kwargs = tree_unflatten([floats.get(i, leaf) for i, leaf in enumerate(self.leaves)], self.structure)
        if writes_in_place(self.call):  # autograd forbids writes to a leaf
            args = (args[0].clone(), *args[1:])
        result = self.own(*args, **kwargs)
        outputs = tensors_with_relevance(args[0] if result is None else result)
        if [output.shape for output in outputs] != [r.value.shape for r in self.results]:
            raise self.call.unsupported("a second run has results of other shapes: the ledger cannot follow it")
        pairs = [(o, gradients.get(r.after)) for o, r in zip(outputs, self.results, strict=True)]
        reached = [(output, gradient) for output, gradient in pairs if gradient is not None]
        at_leaves = torch.autograd.grad(
            [output for output, _ in reached],
            list(floats.values()),
            [gradient for _, gradient in reached],
            allow_unused=True,
        )
        return {i: float(relevance(self.leaves[i], g).sum()) for i, g in zip(floats, at_leaves, strict=True)}


def relevance(value: Tensor, gradient: Tensor | None) -> Tensor:
    """Value × gradient in float64; 0 where the gradient is 0, at a logit masked by −∞ too."""
    if gradient is None:
        return torch.zeros((), dtype=torch.float64, device=value.device)
    if not gradient.any():  # an operation of other outputs than the explained one
        return torch.zeros_like(gradient, dtype=torch.float64)
    if value.is_complex():  # the gradient at z = x + iy is that at x plus i times that at y
        value, gradient = torch.view_as_real(value.detach()), torch.view_as_real(gradient)
    product = value.detach().double() * gradient.double()
    return product if bool(product.isfinite().all()) else product.masked_fill(gradient == 0, 0)


def is_mask(constant: Tensor) -> bool:
    """Whether a constant masks logits: some values are very negative, and all others are 0."""
    masked = constant <= MASKED
    return bool((masked | (constant == 0)).all() and masked.any())


def added_numbers(call: OperationCall) -> list[float]:
    """Python numbers other than 0 that this operation adds, or puts in the place of values."""
    if call.name not in TAKING_NUMBERS:
        return []
    first = {"setitem": 2, "scatter": 3, "scatter_": 3}.get(call.name, 1)  # after the index
    values = (*call.args[first:4], call.kwargs.get("other"), call.kwargs.get("value"))
    return [value for value in values if isinstance(value, float | int) and value != 0]


def rule_name(rule: Rule) -> str:
    """A rule's name."""
    if isinstance(rule, partial):
        return rule_name(rule.func)
    return getattr(rule, "__name__", type(rule).__name__)


def writes_in_place(call: OperationCall) -> bool:
    """Whether the operation writes to its first operand; by torch's convention a name that ends in ``_`` says so."""
    return call.name in IN_PLACE or call.name.endswith("_") or bool(call.kwargs.get("inplace"))
