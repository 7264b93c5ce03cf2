"""Run a model on rows that share values, and compute no value twice and none that the output does not read.

A model runs on a `DeferredTensor`, which records operations in place of computing them. When the output is known:

1. From the output back to the inputs, it is found which positions of each value are read. A classifier that reads the
   first token needs only this position of its last layer, except the keys and values.
2. From the inputs to the output, values are computed. A value that is the same in every row, such as the queries of
   the first layer if rows differ in their attention mask alone, is computed for one row.
3. A softmax written out between two matrix products runs as one fused operation.

This holds for any model. `faithcheck.explainers.loo.deferred_operations` says how the axes of a result lie in the
operands. An operation that is not there is computed at once, in full, on ordinary tensors. What the model computes is
the same up to round-off.

What belongs here: recording and computing. Not here: what an operation does to axes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from itertools import count
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from faithcheck.explainers.lrp.operations import operation_name
from faithcheck.models.case import Case

log = logging.getLogger(__name__)

Axes: TypeAlias = Callable[[int], "Sequence[int | None] | None"]
"""Where an axis of a result lies in each operand: the axis, or None if the operand is the same all along it; None for
all operands if positions along the axis are mixed."""

Compute: TypeAlias = Callable[[Sequence[Tensor], Sequence[int]], Tensor]
"""Computes a result from the values of the operands and from its own shape, which may be shorter along some axes."""

_numbers = count()


def mixed(axis: int) -> None:
    """The axes of a value whose positions are not those of any operand, or that is computed."""


@dataclass(frozen=True)
class Positions:
    """Some positions along an axis of a tensor."""

    axis: int
    index: tuple[int, ...]

    def of(self, tensor: Tensor) -> Tensor:
        """The tensor at these positions."""
        if len(self.index) == 1:
            return tensor.narrow(self.axis, self.index[0], 1)
        return tensor.index_select(self.axis, torch.tensor(self.index, device=tensor.device))


@dataclass(eq=False)
class Value:
    """A tensor of a model's forward pass: computed, or recorded as the operation that computes it.

    Attributes:
        shape: its shape.
        dtype: its kind of floating-point number.
        device: where it is.
        name: the operation.
        operands: what it is computed from; empty if it is computed.
        compute: see `Compute`.
        axes: see `Axes`.
        reads: the positions of the only operand that this result is; or None.
        tensor: its value, of length 1 along axis 0 if it is shared.
        shared: whether it is the same in every row.
        number_operand: the number that an operation on elements has besides its operands.
        order: of the axes of a transposed operand.
        version: how often the tensor was written to when it became known.
        number: values are numbered in the order in which they are recorded.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    name: str = ""
    operands: Sequence[Value] = ()
    compute: Compute | None = None
    axes: Axes = mixed
    reads: Positions | None = None
    tensor: Tensor | None = None
    shared: bool = False
    number_operand: float | None = None
    order: tuple[int, ...] = ()
    version: int = 0
    number: int = field(default_factory=lambda: next(_numbers))

    def __post_init__(self) -> None:
        if self.compute is not None:
            rows = self.axes(0) if self.shape else None
            self.shared = rows is not None and all(
                axis is None or (axis == 0 and operand.shared)
                for axis, operand in zip(rows, self.operands, strict=True)
            )

    def full(self) -> Tensor:
        """The whole tensor, computed now if it was not; rows that are the same share memory."""
        if self.tensor is None:
            compute_value(self)
        assert self.tensor is not None
        return self.tensor.expand(self.shape) if self.shared else self.tensor


def computed(tensor: Tensor) -> Value:
    """An ordinary tensor as a value; it is shared if its rows are equal."""
    shared = tensor.dim() > 1 and len(tensor) > 1 and (tensor.stride(0) == 0 or bool((tensor == tensor[:1]).all()))
    known = tensor[:1] if shared else tensor
    return Value(tuple(tensor.shape), tensor.dtype, tensor.device, tensor=known, shared=shared, version=version(tensor))


def constant(tensor: Tensor) -> Value:
    """A weight as a value: its axis 0 does not count rows."""
    return Value(tuple(tensor.shape), tensor.dtype, tensor.device, tensor=tensor, version=version(tensor))


def version(tensor: Tensor) -> int:
    """How often a tensor was written to; tensors made in inference mode do not count it."""
    return 0 if tensor.is_inference() else tensor._version


class MustRunPlainly(BaseException):
    """The model does what a recording cannot follow, such as writing to its tensors.

    No `Exception`, because a model that catches all of them must not go on.
    """


class DeferredTensor(Tensor):
    """A tensor whose value is computed when it is needed."""

    value: Value

    @staticmethod
    def __new__(cls, value: Value) -> DeferredTensor:
        """The tensor with this value."""
        self: DeferredTensor = Tensor._make_wrapper_subclass(cls, value.shape, dtype=value.dtype, device=value.device)
        self.value = value
        return self

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Record the operation if its table has it; else compute it."""
        kwargs = kwargs or {}
        name = operation_name(func)
        if name in METADATA and args and isinstance(args[0], DeferredTensor):
            return METADATA[name](args[0].value, *args[1:], **kwargs)
        require_plain_context()
        try:
            recorded = operations()[name](func, *args, **kwargs)
        except (KeyError, TypeError):  # not in the table, or called with arguments that the table does not know
            recorded = None
        if recorded is None:
            return compute_now(name, func, args, kwargs)
        return DeferredTensor(recorded) if isinstance(recorded, Value) else tuple(map(DeferredTensor, recorded))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares it as a function that is disabled
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute an operation that torch functions do not show, such as one in TorchScript."""
        require_plain_context()
        return compute_now(func.__name__.partition(".")[0], func, args, kwargs or {})


METADATA: dict[str, Callable[..., Any]] = {
    "shape": lambda value: torch.Size(value.shape),
    "size": lambda value, dim=None: torch.Size(value.shape) if dim is None else value.shape[dim],
    "dim": lambda value: len(value.shape),
    "ndim": lambda value: len(value.shape),
    "len": lambda value: value.shape[0],
    "numel": lambda value: prod(value.shape),
    "dtype": lambda value: value.dtype,
    "device": lambda value: value.device,
    "is_floating_point": lambda value: True,
    "requires_grad": lambda value: False,
}
"""What a tensor says of itself without being computed. The shape is asked for more often than anything is computed."""


def require_plain_context() -> None:
    """Refuse to record where operations would be computed differently later, or writes to tensors are not counted.

    Raises:
        MustRunPlainly: the model enables gradients in its forward pass, or runs under autocast or in inference mode.
    """
    if torch.is_grad_enabled():
        raise MustRunPlainly("enables gradients in its forward pass")
    if torch.is_inference_mode_enabled():
        raise MustRunPlainly("runs in inference mode")
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise MustRunPlainly("runs under autocast")


@cache
def operations() -> Mapping[str, Callable[..., Any]]:
    """The operations that can be recorded, by name."""
    module = import_module("faithcheck.explainers.loo.deferred_operations")  # it imports this module
    table: Mapping[str, Callable[..., Any]] = module.OPERATIONS
    return table


def compute_now(name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Compute an operation on ordinary tensors.

    Raises:
        MustRunPlainly: it writes to a tensor that the model computed.
    """
    operands: list[Tensor] = []

    def ordinary(tensor: DeferredTensor) -> Tensor:
        whole = tensor.value.full()
        operands.append(whole.contiguous() if tensor.value.shared else whole)  # writable, as in a plain run
        return operands[-1]

    if args and isinstance(args[0], DeferredTensor) and (name in ("set", "setitem") or name.endswith("_")):
        raise MustRunPlainly(f"writes to its own tensors ({name})")
    args, kwargs = tree_map_only(DeferredTensor, ordinary, (tuple(args), dict(kwargs)))
    versions = [version(operand) for operand in operands]
    result = func(*args, **kwargs)
    if versions != [version(operand) for operand in operands]:
        raise MustRunPlainly(f"writes to its own tensors ({name})")
    return tree_map_only(Tensor, deferred, result)


def deferred(tensor: Tensor) -> Tensor:
    """The tensor, so that operations on it are recorded; numbers of other kinds are computed with at once."""
    is_recorded = isinstance(tensor, DeferredTensor) or not tensor.is_floating_point()
    return tensor if is_recorded else DeferredTensor(computed(tensor))


# --- computing -------------------------------------------------------------------------------------------------------


def compute_value(result: Value) -> None:
    """Compute a value, and those that it needs, each as far as it is read."""
    read = positions_read(result)
    waiting = sorted(read.values(), key=lambda item: item[0].number, reverse=True)
    read_of = {number: positions for number, (_, positions) in read.items()}
    del read
    parts: dict[int, Tensor] = {}
    while waiting:
        value = waiting.pop()[0]
        tensor = compute_at(value, read_of, parts)
        if read_of[value.number] is None:
            value.tensor, value.version = tensor, version(tensor)
            # Frees what only this value needed.
            value.operands, value.compute, value.axes, value.reads = (), None, mixed, None
        else:
            parts[value.number] = tensor


def positions_read(result: Value) -> dict[int, tuple[Value, Positions | None]]:
    """The values that a result needs and the positions read of each, None for all; by their numbers."""
    read: dict[int, tuple[Value, Positions | None]] = {result.number: (result, None)}
    for value in reversed(recorded_before(result)):
        positions = read[value.number][1]
        lies = lies_in_operands(value, positions)
        if lies is None:
            read[value.number] = (value, None)
        for i, operand in enumerate(value.operands):
            if operand.tensor is not None:
                continue
            needed = value.reads
            if lies is not None and lies[i] is not None:
                needed = lies[i]
            known = read.get(operand.number)
            read[operand.number] = (operand, needed if known is None or known[1] == needed else None)
    return read


def lies_in_operands(value: Value, positions: Positions | None) -> list[Positions | None] | None:
    """Where positions of a value lie in its operands, None for all of an operand; None if all operands are needed."""
    axes = None if positions is None or value.reads else value.axes(positions.axis)
    if axes is None or positions is None or 0 in axes:  # along axis 0, values may be shared
        return None
    return [None if axis is None else Positions(axis, positions.index) for axis in axes]


def recorded_before(result: Value) -> list[Value]:
    """The values that are not computed yet and that a result depends on, itself included, in their order."""
    found, waiting = {result.number: result}, [result]
    while waiting:
        for operand in waiting.pop().operands:
            if operand.tensor is None and operand.number not in found:
                found[operand.number] = operand
                waiting.append(operand)
    return [found[number] for number in sorted(found)]


def compute_at(value: Value, read_of: Mapping[int, Positions | None], parts: Mapping[int, Tensor]) -> Tensor:
    """The tensor of a value at the positions that are read of it; of one row if it is shared."""
    positions = read_of[value.number]
    rows = value.axes(0) if value.shared else None
    lies = lies_in_operands(value, positions) or [value.reads] * len(value.operands)
    operands = []
    for i, operand in enumerate(value.operands):
        tensor = operand_at(operand, lies[i], parts)
        if operand.shared and not (rows is not None and rows[i] == 0):
            tensor = tensor.expand(operand.shape[0], *tensor.shape[1:])
        operands.append(tensor)
    shape = list(value.shape)
    if positions:
        shape[positions.axis] = len(positions.index)
    if value.shared:
        shape[0] = 1
    assert value.compute is not None
    return value.compute(operands, shape)


def operand_at(operand: Value, needed: Positions | None, parts: Mapping[int, Tensor]) -> Tensor:
    """The tensor of an operand at the positions that are needed; of one row if it is shared."""
    if operand.tensor is None:
        return parts[operand.number]
    if operand.version != version(operand.tensor):
        raise MustRunPlainly("writes to its own tensors")
    return operand.tensor if needed is None else needed.of(operand.tensor)


# --- running a model -------------------------------------------------------------------------------------------------


def run_deferred(model: nn.Module, case: Case) -> Tensor | None:
    """The outputs of a model on a case ``(rows, outputs)``, up to round-off; under `torch.no_grad`.

    Returns:
        None if the model must be run plainly: it writes to its own tensors, enables gradients in its forward pass, or
        runs under autocast or in inference mode. A log message says so, once for each reason.
    """
    try:
        # A copy, because a model may write to its inputs, and is then run again.
        output = replace(case, inputs=DeferredTensor(computed(case.inputs.clone()))).run(model)
        return output.value.full() if isinstance(output, DeferredTensor) else output
    except MustRunPlainly as error:
        report_plain(type(model).__name__, str(error))
        return None


@cache
def report_plain(model: str, reason: str) -> None:
    """Say, once for each reason, that a model is run plainly."""
    log.warning("%s %s: Leave-One-Out runs it as it is, which takes longer", model, reason)
