"""Run a model on rows that share values, and compute no value twice and none that the output does not read.

A model runs on a `DeferredTensor`, which records operations in place of computing them. When the output is known,
`faithcheck.explainers.loo.deferred_values` computes what it needs, and a softmax written out between two matrix
products runs as one fused operation (`faithcheck.explainers.loo.deferred_attention`).
`faithcheck.explainers.loo.deferred_operations` says how the axes of a result lie in the operands. An operation that is
not there is computed at once, in full, on ordinary tensors.

What the model computes is the same up to round-off. A model that a recording cannot follow is run as it is, on the same
random numbers, and a log message says why. Three things are not noticed: a write to a weight through ``.data`` or NumPy
after an operation read it, a C extension that writes to its inputs without saying so, and that a model which counts its
own calls is called once more if it is run as it is.

What belongs here: recording, and when not to. Not here: how values are computed, what an operation does to axes.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._pytree import tree_leaves, tree_map_only

from faithcheck.explainers.forward_passes import only_observes
from faithcheck.explainers.loo.deferred_values import MustRunPlainly, Value, computed, computed_by_token
from faithcheck.explainers.loo.passes import OtherOperations, Pass, version
from faithcheck.explainers.lrp.operations import operation_name
from faithcheck.models.case import Case
from faithcheck.models.offloaded_weights import offloading_hook

log = logging.getLogger(__name__)


@dataclass
class Recording:
    """One run of a model on deferred tensors.

    Attributes:
        of_pass: the pass, if others have rows in common with it; else None.
        tensors: the deferred tensors that it made, as long as something refers to them.
        constants: ordinary tensors that operations read, as values, by their ids; kept alive, so that ids are unique.
    """

    of_pass: Pass | None = None
    tensors: list[weakref.ref[DeferredTensor]] = field(default_factory=list)
    constants: dict[int, tuple[Tensor, Value]] = field(default_factory=dict)

    def constant(self, tensor: Tensor) -> Value:
        """An ordinary tensor as a value, the same one as long as the tensor is not written to."""
        _, value = self.constants.get(id(tensor), (None, None))
        if value is None or value.version != version(tensor):
            value = computed(tensor, self.of_pass)
            self.constants[id(tensor)] = tensor, value
        return value


_recording: ContextVar[Recording | None] = ContextVar("recording", default=None)


class DeferredTensor(Tensor):
    """A tensor whose value is computed when it is needed; once its recording ended, an ordinary one when it is used."""

    value: Value

    @staticmethod
    def __new__(cls, value: Value) -> DeferredTensor:
        """The tensor with this value."""
        self: DeferredTensor = Tensor._make_wrapper_subclass(cls, value.shape, dtype=value.dtype, device=value.device)
        self.value = value
        recording = _recording.get()
        if recording is not None:
            recording.tensors.append(weakref.ref(self))
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
        recorded = record(name, func, args, kwargs) if _recording.get() is not None else None
        if recorded is None:
            return compute_now(name, func, args, kwargs)
        return DeferredTensor(recorded) if isinstance(recorded, Value) else tuple(map(DeferredTensor, recorded))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares it as a function that is disabled
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute an operation that torch functions do not show, such as one under `torch.func.vmap`."""
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

EXPOSES_MEMORY = frozenset(
    "numpy array data_ptr storage untyped_storage dlpack dlpack_device share_memory_ cuda_array_interface".split()
)
"""Operations whose results can be written to unseen."""


def record(
    name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Value | Sequence[Value] | None:
    """The result of an operation as a value to compute later, or several; None if it must be computed now."""
    operation = operations().get(name)
    try:
        return None if operation is None else operation(func, *args, **kwargs)
    except (TypeError, IndexError):  # arguments that the table does not know, or that are wrong, which torch then says
        return None


@cache
def operations() -> Mapping[str, Callable[..., Any]]:
    """The operations that can be recorded, by name."""
    module = import_module("faithcheck.explainers.loo.deferred_operations")  # it imports this module
    table: Mapping[str, Callable[..., Any]] = module.OPERATIONS
    return table


def value_of(tensor: Tensor) -> Value:
    """The value of a tensor, deferred or ordinary."""
    if isinstance(tensor, DeferredTensor):
        return tensor.value
    recording = _recording.get()
    return computed(tensor) if recording is None else recording.constant(tensor)


def compute_now(name: str, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Compute an operation on ordinary tensors.

    Raises:
        MustRunPlainly: it writes to a tensor that the model computed, or could do so unseen.
    """
    operands: list[Tensor] = []

    def ordinary(tensor: DeferredTensor) -> Tensor:
        whole = tensor.value.full()
        operands.append(whole.contiguous() if tensor.value.shared else whole)  # writable, as in a plain run
        return operands[-1]

    recording = _recording.get()
    if recording is not None and recording.of_pass is not None:
        recording.of_pass.open()
    is_recording = recording is not None
    if is_recording and name in EXPOSES_MEMORY:
        raise MustRunPlainly(f"exposes the memory of its tensors ({name})")
    if args and isinstance(args[0], DeferredTensor) and (name in ("set", "setitem") or name.endswith("_")):
        raise MustRunPlainly(f"writes to its own tensors ({name})")
    args, kwargs = tree_map_only(DeferredTensor, ordinary, (tuple(args), dict(kwargs)))
    versions = [version(operand) for operand in operands]
    result = func(*args, **kwargs)
    if not is_recording:
        return result
    if versions != [version(operand) for operand in operands]:
        raise MustRunPlainly(f"writes to its own tensors ({name})")
    for integers in tree_leaves(result):
        if is_integer_view(integers, operands):
            raise MustRunPlainly(f"exposes the memory of its tensors ({name})")
    return tree_map_only(Tensor, deferred, result)


def is_integer_view(result: Any, operands: Sequence[Tensor]) -> bool:
    """Whether a result is a tensor that is not recorded, in the memory of an operand."""
    if not isinstance(result, Tensor) or result.is_floating_point() or result.layout != torch.strided:
        return False
    memory = result.untyped_storage().data_ptr()
    return result.numel() > 0 and any(memory == operand.untyped_storage().data_ptr() for operand in operands)


def deferred(tensor: Tensor) -> Tensor:
    """The tensor, so that operations on it are recorded; numbers of other kinds are computed with at once."""
    is_recorded = isinstance(tensor, DeferredTensor) or not tensor.is_floating_point()
    return tensor if is_recorded else DeferredTensor(computed(tensor))


# --- running a model -------------------------------------------------------------------------------------------------


def require_plain_context() -> None:
    """Refuse to record where operations would be computed differently later, or writes to tensors are not counted.

    Raises:
        MustRunPlainly: the model enables gradients in its forward pass, or runs under autocast or in inference mode.
    """
    if _recording.get() is None:
        return
    if torch.is_grad_enabled():
        raise MustRunPlainly("enables gradients in its forward pass")
    if torch.is_inference_mode_enabled():
        raise MustRunPlainly("runs in inference mode")
    if torch._C._is_any_autocast_enabled():
        raise MustRunPlainly("runs under autocast")


ASK_FOR_ORDINARY_TENSORS = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)
"""Modules that compute something else on tensors that are not ordinary: the encoder puts 0 at padding, or does not."""


def reason_to_run_plainly(model: nn.Module) -> str:
    """Why a model must be run as it is, as far as can be seen before it runs; empty if nothing is seen."""
    if torch_module._has_any_global_hook():  # type: ignore[no-untyped-call]
        return "runs under a hook on all modules"
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    if any(not isinstance(mode, DeviceContext) for mode in modes):
        return "runs under a torch function mode"
    for module in model.modules():
        kind = type(module).__name__
        is_compiled = "_orig_mod" in module._modules or module._compiled_call_impl is not None
        if is_compiled or isinstance(module, torch.jit.ScriptModule):
            return f"has a compiled {kind}"
        if isinstance(module, ASK_FOR_ORDINARY_TENSORS):
            return f"has a {kind}, which computes something else on tensors that are not ordinary"
        if offloading_hook(module) is not None:
            return f"has a {kind} that accelerate offloads: a recording would hold all its weights at once"
        if not all(map(only_observes, (*module._forward_hooks.values(), *module._forward_pre_hooks.values()))):
            return f"has a hook on its {kind}"
    return ""


WORTHWHILE = 2**16
"""From so many numbers in a pass's inputs on, recording spares more than it takes, on BERT models of 2 to 6 layers and
width 64 to 384 on two cores: below, the model is run as it is."""

USELESS = 2
"""After so many first passes in a row of no use, none is kept any more. One is of no use by deletion, where the
unmodified row makes the rows of its pass a token longer."""


class RowRunner:
    """Runs a model on rows: on deferred tensors as long as that works and pays, else as it is.

    It pays on the CPU alone. A GPU waits for Python there: on an H200, with 2,048 tokens of 6 layers of width 384 in a
    pass, Leave-One-Out by deferred tensors took 2.9 (BERT) and 5.0 (GPT-2) times as long as plain passes.

    Attributes:
        plain: why the model is run as it is; empty if it is not.
        first: the pass whose reference row later ones have in common; None if there is none.
        in_common: what the rows of that pass have in common; see `outputs`.
        useless: how many first passes in a row were of no use to the pass behind them.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.plain = model, reason_to_run_plainly(model)
        self.first: Pass | None = None
        self.in_common: Hashable = None
        self.useless = 0

    def outputs(self, case: Case, in_common: Hashable = None) -> Tensor:
        """The outputs of the model on a case ``(rows, outputs)``, up to round-off; under `torch.no_grad`.

        Args:
            case: the rows.
            in_common: consecutive calls with the same one have rows of one example, of which the last row of the first
                call is the one with the longest beginning in common with others; None: nothing is kept.

        Raises:
            Exception: what the model raises.
        """
        if case.inputs.device.type != "cpu" or case.inputs.numel() < WORTHWHILE:
            return case.run(self.model)
        if not self.plain:
            random_numbers = torch.get_rng_state()
            try:
                return self.run_after_first(case, in_common)
            except MustRunPlainly as error:
                self.plain = str(error)
            except Exception as error:  # if it is the model's own, it comes again below
                first_line = str(error).strip().partition("\n")[0]  # torch's compiler writes pages
                self.plain = f"fails on tensors that are not ordinary ({type(error).__name__}: {first_line})"
            torch.set_rng_state(random_numbers)
        output = case.run(self.model)
        report_plain(type(self.model).__name__, self.plain)
        return output

    def run_after_first(self, case: Case, in_common: Hashable) -> Tensor:
        """Run on deferred tensors, with what the first of the passes kept, or as the first one."""
        if self.first is not None and self.in_common == in_common:
            random_numbers = torch.get_rng_state()
            try:
                output = run_deferred(self.model, case, Pass(len(case.inputs), self.first))
                self.useless = 0
                return output
            except OtherOperations:
                self.useless += 1
            torch.set_rng_state(random_numbers)
        return self.run_first(case, in_common)

    def run_first(self, case: Case, in_common: Hashable) -> Tensor:
        """Run on deferred tensors, and keep what later passes need, unless that was of no use before."""
        self.first, self.in_common = None, in_common
        if in_common is None or self.useless == USELESS or len(case.inputs) == 1:
            return run_deferred(self.model, case)
        first = Pass(len(case.inputs))
        output = run_deferred(self.model, case, first)
        if first.is_closed:
            self.first = first
        else:
            self.useless = USELESS
        return output


def run_deferred(model: nn.Module, case: Case, of_pass: Pass | None = None) -> Tensor:
    """The outputs of a model on a case ``(rows, outputs)``, up to round-off, on deferred tensors.

    Args:
        model: maps a case to ``(rows, outputs)``.
        case: the rows.
        of_pass: what it has in common with other passes; None for a pass of its own.

    Raises:
        MustRunPlainly: a recording cannot follow the model.
        OtherOperations: the pass cannot use what an earlier one kept.
    """
    recording = Recording(of_pass)
    token = _recording.set(recording)
    try:
        output = replace(case, inputs=DeferredTensor(computed_by_token(case.inputs, of_pass))).run(model)
        if isinstance(output, DeferredTensor):
            output = output.value.full()
    finally:
        _recording.reset(token)
    if has_survivors(recording):
        raise MustRunPlainly("keeps tensors of its forward pass")
    return output


def has_survivors(recording: Recording) -> bool:
    """Whether something still refers to a deferred tensor, garbage aside."""
    if all(tensor() is None for tensor in recording.tensors):
        return False
    gc.collect()
    return any(tensor() is not None for tensor in recording.tensors)


@cache
def report_plain(model: str, reason: str) -> None:
    """Say, once for each reason, that a model is run plainly."""
    log.warning("%s %s: its rows without features are run as they are, which takes longer", model, reason)
