"""Provenance: which operation of a forward pass made a tensor, and from which tensors.

It says whether several operations of a model are parts of one (a norm, a softmax, an activation), and whether a product
has more than two factors. A `ProvenanceTable` is of one forward pass; nothing is kept on tensors or models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from faithcheck.explainers.lrp.operation_call import OperationCall, tensors_with_relevance
from faithcheck.explainers.lrp.operation_table import operations, operations_with
from faithcheck.explainers.lrp.operations import Trait

StorageKey: TypeAlias = tuple[Any, ...]

POOLING = operations_with(Trait.POOLING)
REARRANGING = operations_with(Trait.REARRANGEMENT)
NEW_AND_ELEMENTWISE_AFFINE = operations_with(Trait.ELEMENTWISE_AFFINE, without=(Trait.IN_PLACE,))
ADDING_TERMS = operations_with(Trait.SUM, Trait.ELEMENTWISE_AFFINE)
ADDING_DEGREES = operations_with(Trait.MATRIX_PRODUCT) | operations_with(
    Trait.ELEMENTWISE_PRODUCT, without=(Trait.QUOTIENT, Trait.IN_PLACE)
)
"""Products: the degree of homogeneity of the result is the sum of the operands' degrees."""
KEEPING_DEGREE = ADDING_DEGREES.union(
    *map(operations_with, (Trait.REARRANGEMENT, Trait.SUM, Trait.ELEMENTWISE_PRODUCT, Trait.LINEAR_MAP)),
    operations_with(Trait.HOMOGENEOUS),
)
"""Operations that are linear, except for an added constant, or positively homogeneous."""


def storage_key(x: Tensor) -> StorageKey:
    """The memory that a tensor shows, and its version: equal for equal views, another after a write."""
    return x.data_ptr(), x.shape, x.stride(), x.dtype, x._version


@dataclass(frozen=True)
class FunctionOfRoot:
    """A tensor as a function of another tensor, its root."""

    root: Tensor
    root_key: StorageKey  # at that time
    of: Callable[[Any], Any] = lambda root: root
    power: float | None = 1.0  # its degree of homogeneity; None if it is not homogeneous
    pooled: bool = False  # whether it sums over an axis


@dataclass(frozen=True)
class Provenance:
    """The provenance of a tensor. It holds the tensor, so that no other tensor takes its place in memory."""

    tensor: Tensor
    storage_key: StorageKey
    function: FunctionOfRoot  # an element-wise one; the identity if nothing is known
    statistic: FunctionOfRoot  # a homogeneous one, pooled or not; the identity if nothing is known
    degree: float = 1.0  # in the inputs of its block, see `blockwise`
    factors: tuple[Any, ...] = ()  # of an element-wise product: provenances of those with relevance, and constants
    exponent: Provenance | None = None  # the provenance of x, if it is exp(x)

    @property
    def valid(self) -> bool:
        """Whether nothing has been written to the tensor since."""
        return storage_key(self.tensor) == self.storage_key


class ProvenanceTable:
    """The provenances of one forward pass's tensors."""

    def __init__(self) -> None:
        self.known: dict[StorageKey, Provenance] = {}

    def of(self, x: Tensor) -> Provenance:
        """The provenance of a tensor. A tensor that is not in the table has degree 1 and is its own root."""
        key = storage_key(x)
        identity = FunctionOfRoot(x, key)
        known = self.known.get(key)
        if known is None:
            return Provenance(x, key, identity, identity)
        root_key = known.function.root_key
        root_unchanged = storage_key(known.function.root) == root_key != key
        factors_unchanged = all(factor.valid for factor in known.factors if isinstance(factor, Provenance))
        return replace(
            known,
            tensor=x,
            function=known.function if root_unchanged else identity,
            factors=known.factors if factors_unchanged else (),
        )

    def record(
        self,
        x: Tensor,
        call: OperationCall,
        operands: Sequence[Provenance],
        function: FunctionOfRoot | None = None,
    ) -> None:
        """Record the provenance of a call's result x, perhaps as a known element-wise function of its root."""
        if any(storage_key(x) == operand.storage_key for operand in operands):  # the result is an operand itself
            return
        adds = adds_constant(call)
        degree = homogeneity(call, [operand.degree for operand in operands], adds)
        known: dict[str, Any] = {} if degree is None or abs(degree) == 1 else {"degree": abs(degree)}
        functions = _functions(x, call, operands, function, adds)
        known |= {name: value for name, value in functions.items() if value is not None}
        if call.name == "mul" and len(operands) > 1:
            known["factors"] = tuple(factor for operand in operands for factor in factors_of(operand))
        elif call.name in ("mul", "div", "neg") and operands[0].factors:
            arguments = (*call.args, *call.kwargs.values())
            constant = next((c for c in arguments if not tensors_with_relevance(c)), -1)
            known["factors"] = (*operands[0].factors, 1 / constant if call.name == "div" else constant)
        if call.name == "exp":
            known["exponent"] = operands[0]
        if known:
            self.known[storage_key(x)] = replace(self.of(x), **known)


def _functions(
    x: Tensor, call: OperationCall, operands: Sequence[Provenance], function: FunctionOfRoot | None, adds: bool
) -> dict[str, FunctionOfRoot | None]:
    """The result as an element-wise function and as a statistic of its root; None if it is none."""
    name = call.name
    functions, statistics = [o.function for o in operands], [o.statistic for o in operands]
    affine = name in NEW_AND_ELEMENTWISE_AFFINE
    if affine and not (adds and all(f.power is not None for f in functions)):  # root + constant is a new root
        function = function_of_one_root(call, functions)
    if function is not None and x.shape != function.root.shape:
        function = None
    pools = name in POOLING
    pooled = pools or all(statistic.pooled for statistic in statistics)
    elementwise = affine or exponent(call) is not None
    statistic = None
    if pools or (elementwise and not adds) or (pooled and (elementwise or name in REARRANGING)):
        statistic = function_of_one_root(call, statistics, pooled)
    return {"function": function, "statistic": statistic if statistic and statistic.power is not None else None}


def factors_of(provenance: Provenance) -> tuple[Any, ...]:
    """The factors of a product; of any other tensor its own provenance."""
    return provenance.factors or (provenance,)


def all_equal(values: Iterable[Any]) -> bool:
    """Whether all values are equal."""
    first, *rest = values
    return all(value == first for value in rest)


def homogeneity(call: OperationCall, powers: Sequence[float | None], adds: bool = False) -> float | None:
    """The degree of homogeneity of a result from those of its operands, ``adds``: of a sum with a constant; or None."""
    known = [power for power in powers if power is not None]
    if len(known) < len(powers) or adds:
        return None
    if (p := exponent(call)) is not None:
        return p * known[0]
    if call.name in ADDING_DEGREES:
        return sum(known)
    keeps_degree = call.name in KEEPING_DEGREE or clamps_at_zero(call)
    return known[0] if keeps_degree and all_equal(known) else None


def clamps_at_zero(call: OperationCall) -> bool:
    """Whether the operation is max(x, 0) or min(x, 0), which are positively homogeneous, by a name with other uses."""
    limits = [limit for limit in (*call.args[1:], *call.kwargs.values()) if limit is not None]
    return call.name in ("clamp", "clamp_min", "clamp_max") and all(map(is_zero, limits))


def exponent(call: OperationCall) -> float | None:
    """p, if the operation is xᵖ, p ≠ 0."""
    if call.name != "pow":
        operation = operations().get(call.name)
        return operation.power if operation else None
    p = call.argument(1, "exponent")
    return None if isinstance(p, Tensor) and (p.dim() > 0 or p.requires_grad) else float(p) or None


def adds_constant(call: OperationCall) -> bool:
    """Whether the operation adds a constant other than 0."""
    operation = operations().get(call.name)
    if operation and operation.bias:
        bias = call.argument(*operation.bias)
        return bias is not None and not is_zero(bias)
    if call.name not in ADDING_TERMS:
        return False
    constants = [term for term in (*call.args[:2], call.kwargs.get("other", 0)) if not tensors_with_relevance(term)]
    return not all(map(is_zero, constants))


def is_zero(constant: Any) -> bool:
    """Whether this is the number 0, or a tensor of zeros."""
    return not constant.any() if isinstance(constant, Tensor) else constant == 0


def function_of_one_root(
    call: OperationCall, functions: Sequence[FunctionOfRoot], pooled: bool = False
) -> FunctionOfRoot | None:
    """The result as a function of the one root that all operands are functions of; None if their roots differ.

    A constant that is added to a pooled operand is for numerical stability, and leaves its degree unchanged.
    """
    root, root_key = functions[0].root, functions[0].root_key
    if not all_equal(function.root_key for function in functions):
        return None
    power = homogeneity(call, [function.power for function in functions], adds_constant(call) and not pooled)

    def of(x: Any) -> Any:
        return call.with_operands([function.of(x) for function in functions]).value()

    return FunctionOfRoot(root, root_key, of, power, pooled)


def product_call(call: OperationCall, a: Any, b: Any) -> OperationCall:
    """The call of the element-wise product of a and b, in place of this call."""
    return replace(call, name="mul", operation=torch.mul, args=(a, b), kwargs={})
