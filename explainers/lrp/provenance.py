"""Where tensors come from: which operation of one forward pass made each of which others, as far as a rule may ask.

A rule sees one operation. To see that several of a model's are parts of one (a norm, a softmax, an activation), or that
a product has more factors than two, it needs to know how its operands were made. Nothing of this is kept on tensors or
models: `Origins` holds it, for one forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from faithcheck.explainers.lrp.rules import (
    LINEAR,
    MATRIX_PRODUCTS,
    MULTIPLES,
    REARRANGEMENTS,
    SUMS,
    OperationCall,
    tensors_with_relevance,
)

Key: TypeAlias = tuple[Any, ...]

POWERS = {"square": 2.0, "sqrt": 1 / 2, "rsqrt": -1 / 2, "reciprocal": -1.0}
POOLING = frozenset({"sum", "mean"})
AFFINE = frozenset({"add", "sub", "rsub", "neg", "positive", "mul", "div"})  # element by element, into a new tensor
ADDING = frozenset({"add", "sub", "rsub", "add_", "iadd", "sub_", "isub"})
PRODUCTS = frozenset({*MATRIX_PRODUCTS, "mul"})
KEEPING = frozenset({*REARRANGEMENTS, *SUMS, *MULTIPLES, *LINEAR, *MATRIX_PRODUCTS, "dropout"})
"""What is linear, but for an added constant, or positively homogeneous."""


def key(x: Tensor) -> Key:
    """The memory that a tensor shows and its version: the same for views that show the same, another after a write."""
    return x.data_ptr(), x.shape, x.stride(), x.dtype, x._version


@dataclass(frozen=True)
class Function:
    """A tensor as ``of(root)``.

    Attributes:
        root: the tensor that it is a function of.
        key: the root's key then.
        of: the function.
        power: its degree of homogeneity; None if it is not homogeneous.
        pooled: whether it sums over an axis.
    """

    root: Tensor
    key: Key
    of: Callable[[Any], Any] = lambda root: root
    power: float | None = 1.0
    pooled: bool = False


@dataclass(frozen=True)
class Origin:
    """What is known of a tensor, which is held, so that no other takes its place in memory.

    Attributes:
        tensor: the tensor.
        key: its key.
        function: element by element of another tensor; or the identity of itself.
        statistic: homogeneous, pooled or not, in another tensor; or the identity of itself.
        degree: in the inputs of its block, see `blockwise`.
        factors: of an element-wise product: the origins of those that carry relevance, and constants.
        exponent: the origin of x, if it is exp(x).
    """

    tensor: Tensor
    key: Key
    function: Function
    statistic: Function
    degree: float = 1.0
    factors: tuple[Any, ...] = ()
    exponent: Origin | None = None

    @property
    def valid(self) -> bool:
        """Whether it has not been written to since."""
        return key(self.tensor) == self.key


class Origins:
    """The origins of the tensors that one forward pass has met."""

    def __init__(self) -> None:
        self.known: dict[Key, Origin] = {}

    def of(self, x: Tensor) -> Origin:
        """What is known of a tensor; where that is nothing, it has degree 1, and is of itself."""
        here = key(x)
        itself = Function(x, here)
        found = self.known.get(here)
        if found is None:
            return Origin(x, here, itself, itself)
        function = found.function if key(found.function.root) == found.function.key != here else itself
        there = all(factor.valid for factor in found.factors if isinstance(factor, Origin))
        return replace(found, tensor=x, function=function, factors=found.factors if there else ())

    def note(self, x: Tensor, call: OperationCall, origins: Sequence[Origin], function: Function | None = None) -> None:
        """Keep what a result of a call has from its operands; ``function`` if that is known already."""
        if any(key(x) == origin.key for origin in origins):  # another name of an operand
            return
        name, first, added = call.name, origins[0], adds_constant(call)
        known: dict[str, Any] = {}
        degree = homogeneity(call, [origin.degree for origin in origins], added)
        if degree is not None and abs(degree) != 1:
            known["degree"] = abs(degree)
        functions, statistics = [o.function for o in origins], [o.statistic for o in origins]
        if name in AFFINE and not (added and all(f.power is not None for f in functions)):  # root + constant is new
            function = joint(call, functions)
        if function is not None and x.shape == function.root.shape:
            known["function"] = function
        pooled = name in POOLING or all(statistic.pooled for statistic in statistics)
        by_element = name in AFFINE or exponent(call) is not None
        if name in POOLING or (by_element and not added) or (pooled and (by_element or name in REARRANGEMENTS)):
            statistic = joint(call, statistics, pooled)
            if statistic is not None and statistic.power is not None:
                known["statistic"] = statistic
        if name == "mul" and len(origins) > 1:
            known["factors"] = tuple(factor for origin in origins for factor in factors_of(origin))
        elif name in ("mul", "div", "neg") and first.factors:
            constant = next((c for c in (*call.args, *call.kwargs.values()) if not tensors_with_relevance(c)), -1)
            known["factors"] = (*first.factors, 1 / constant if name == "div" else constant)
        if name == "exp":
            known["exponent"] = first
        if known:
            self.known[key(x)] = replace(self.of(x), **known)


def factors_of(origin: Origin) -> tuple[Any, ...]:
    """The factors of a product; of anything else itself."""
    return origin.factors or (origin,)


def same(values: Iterable[Any]) -> bool:
    """Whether all are equal."""
    first, *others = values
    return all(other == first for other in others)


def homogeneity(call: OperationCall, powers: Sequence[float | None], added: bool = False) -> float | None:
    """The degree of homogeneity of a result in that in which its operands have these; None if it is not homogeneous."""
    known = [power for power in powers if power is not None]
    if len(known) < len(powers) or added:
        return None
    if (p := exponent(call)) is not None:
        return p * known[0]
    if call.name in PRODUCTS:
        return sum(known)
    return known[0] if call.name in KEEPING and same(known) else None


def exponent(call: OperationCall) -> float | None:
    """p, if the operation is xᵖ, p ≠ 0."""
    if call.name != "pow":
        return POWERS.get(call.name)
    p = call.argument(1, "exponent")
    return None if isinstance(p, Tensor) and (p.dim() > 0 or p.requires_grad) else float(p) or None


def adds_constant(call: OperationCall) -> bool:
    """Whether the operation adds a constant, other than a number 0."""
    if call.name in LINEAR and "pool" not in call.name:
        return "addmm" in call.name or call.argument(2, "bias") is not None
    if call.name not in ADDING:
        return False
    constants = [term for term in (*call.args[:2], call.kwargs.get("other", 0)) if not tensors_with_relevance(term)]
    return any((isinstance(c, Tensor) and c.dim() > 0) or bool(c != 0) for c in constants)


def joint(call: OperationCall, functions: Sequence[Function], pooled: bool = False) -> Function | None:
    """The result as a function of the one root that all operands are functions of; None if there is no such root.

    A constant added to a pooled one is for numerical stability, and leaves it as homogeneous as it was.
    """
    root, here = functions[0].root, functions[0].key
    if not same(function.key for function in functions):
        return None
    power = homogeneity(call, [function.power for function in functions], adds_constant(call) and not pooled)
    return Function(root, here, lambda x: computed(call, [function.of(x) for function in functions]), power, pooled)


def computed(call: OperationCall, operands: Sequence[Any]) -> Any:
    """What the operation makes of other operands in place of those that carry relevance, in their order."""
    leaves, structure = tree_flatten((call.args, call.kwargs))
    there = iter(operands)
    leaves = [next(there) if isinstance(leaf, Tensor) and leaf.requires_grad else leaf for leaf in leaves]
    args, kwargs = tree_unflatten(leaves, structure)
    return call.operation(*args, **kwargs)


def product(call: OperationCall, a: Any, b: Any) -> OperationCall:
    """The call of an element-wise product, in place of this one."""
    return replace(call, name="mul", operation=torch.mul, args=(a, b), kwargs={})
