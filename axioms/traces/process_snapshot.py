"""The state of the process that explainers change: settings, modes, random states, functions and classes.

Compared before and after a block of code, and put back:

* the modes that are entered: of functions (a default device is one), dispatch, inference, hooks of saved tensors;
* torch's settings and global hooks; the random states of torch, NumPy and Python; NumPy's error state;
* functions and classes of torch, of the loaded modelling modules of transformers, of faithcheck, and of the modules of
  Python that they compute with;
* environment variables, warnings filters, signal handlers, timers, the current folder and the standard streams.

Threads that still run are reported; they cannot be ended.
"""

import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from operator import is_
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module
from torch.utils import _python_dispatch

from faithcheck.axioms.traces.namespaces import Changes, NamespacesSnapshot, equal, put_back, report, same_objects
from faithcheck.models.case import Case

RANDOM = "random state"
Setting: TypeAlias = tuple[Callable[[], Any], Callable[[Any], Any]]
"""How to read a state, and how to set it."""
_overrides = cast(Any, torch.overrides)
_saved_tensor_hooks = partial(torch._C._autograd._top_saved_tensors_default_hooks, True)
_guards: list[Any] = []


def _leave_dual_levels(level: int) -> None:
    while forward_ad._current_level > level:
        cast(Any, forward_ad).exit_dual_level()


def _pop_saved_tensor_hooks(before: object) -> None:
    while _saved_tensor_hooks() not in (None, before):
        torch._C._autograd._pop_saved_tensors_default_hooks()


def _set_inference_mode(enabled: bool) -> None:
    guard: Any = torch._C._InferenceMode(enabled)
    guard.__enter__()
    _guards.append(guard)  # torch leaves the mode when the guard is deleted


def _current_folder() -> str | None:
    """The current folder; None if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _set_filters(filters: Any) -> None:
    warnings.filters[:] = filters  # type: ignore[index]
    cast(Any, warnings)._filters_mutated()


def _attribute(owner: Any, name: str) -> Setting:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _attention_kernel(name: str) -> Setting:
    return getattr(torch.backends.cuda, f"{name}_sdp_enabled"), getattr(torch.backends.cuda, f"enable_{name}_sdp")


SETTINGS: Mapping[str, Setting] = {
    # Modes first: inside a mode that is still entered, every other call could go wrong.
    "forward differentiation": (lambda: forward_ad._current_level, _leave_dual_levels),
    "hooks of saved tensors": (_saved_tensor_hooks, _pop_saved_tensor_hooks),
    "inference mode": (torch.is_inference_mode_enabled, _set_inference_mode),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "gradient mode": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "anomaly mode": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "deterministic algorithms": (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    "autocast": (lambda: torch.is_autocast_enabled("cpu"), partial(torch.set_autocast_enabled, "cpu")),
    "autocast of CUDA": (lambda: torch.is_autocast_enabled("cuda"), partial(torch.set_autocast_enabled, "cuda")),
    "dtype of autocast": (lambda: torch.get_autocast_dtype("cpu"), partial(torch.set_autocast_dtype, "cpu")),
    "dtype of autocast of CUDA": (lambda: torch.get_autocast_dtype("cuda"), partial(torch.set_autocast_dtype, "cuda")),
    "cuDNN": _attribute(torch.backends.cudnn, "enabled"),
    "cuDNN benchmark": _attribute(torch.backends.cudnn, "benchmark"),
    "cuDNN deterministic": _attribute(torch.backends.cudnn, "deterministic"),
    "TF32 of cuDNN": _attribute(torch.backends.cudnn, "allow_tf32"),
    "float16 sums of CUDA": _attribute(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    "bfloat16 sums of CUDA": _attribute(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    "oneDNN": (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    "fast path of nn.MultiheadAttention": (
        torch.backends.mha.get_fastpath_enabled,
        torch.backends.mha.set_fastpath_enabled,
    ),
    **{f"{name} attention": _attention_kernel(name) for name in ("cudnn", "flash", "mem_efficient", "math")},
    "flush of denormal numbers": (
        lambda: sys.float_info.min / 2 == 0,  # a setting of the processor, which Python's own numbers have too
        torch.set_flush_denormal,
    ),
    "float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "error state of NumPy": (
        lambda: (np.geterr(), np.geterrcall()),
        lambda value: (np.seterr(**value[0]), np.seterrcall(value[1])),
    ),
    "current folder": (_current_folder, lambda value: os.chdir(value or os.sep)),
    "standard output": _attribute(sys, "stdout"),
    "standard error": _attribute(sys, "stderr"),
    "environment variables": (lambda: dict(os.environ), lambda value: put_back(os.environ, value)),
    "warnings filters": (lambda: list(warnings.filters), _set_filters),
}
"""Settings of the process that change what models compute, or what others see."""


def random_states() -> Mapping[str, Setting]:
    """The random states, by what they are of."""
    states: dict[str, Setting] = {
        f"{RANDOM} of torch": (torch.get_rng_state, torch.set_rng_state),
        f"{RANDOM} of NumPy": (partial(np.random.get_state, legacy=True), np.random.set_state),
        f"{RANDOM} of Python": (random.getstate, random.setstate),
    }
    if torch.cuda.is_available():
        states[f"{RANDOM} of CUDA"] = (torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all)
    return states


_STACKS: Mapping[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[Any], Any]]] = {
    "default device or function mode": (
        _overrides._get_current_function_mode_stack,
        _overrides._pop_mode,
        _overrides._push_mode,
    ),
    "dispatch mode": (
        _python_dispatch._get_current_dispatch_mode_stack,
        _python_dispatch._pop_mode,
        _python_dispatch._push_mode,
    ),
}
"""The modes of torch that are entered, each with how to read them, to leave one and to enter one."""
_SIGNALS = sorted(signal.valid_signals())
_TIMERS = [getattr(signal, name) for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF") if hasattr(signal, name)]


class ProcessSnapshot:
    """The state of the process before a block of code."""

    def __init__(self) -> None:
        self.namespaces = current_namespaces()
        self.stacks = {what: list(read()) for what, (read, _, _) in _STACKS.items()}
        self.device = getattr(cast(Any, torch)._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        self.hooks = [
            (name, space, dict(space))
            for name, space in vars(torch_module).items()
            if name.startswith("_global_") and isinstance(space, dict)
        ]
        self.settings = [
            (what, read(), read, write) for what, (read, write) in (*SETTINGS.items(), *random_states().items())
        ]
        self.timers = {which: signal.getitimer(which) for which in _TIMERS}
        self.threads = set(threading.enumerate())
        self.signals = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore(self, changes: Changes) -> None:
        """Put back what changed, and report it."""
        for which, timer in self.timers.items():
            if any(signal.getitimer(which)) != any(timer):  # one that is left runs out in a later check
                report(changes, "timers", [""])
                signal.setitimer(which, *timer)
        self._restore_stacks(changes)
        for what, before, read, write in self.settings:
            if not equal(read(), before):
                report(changes, what, [""])
                write(before)
        for name, space, before in self.hooks:
            if not same_objects(space, before):
                report(changes, "global hooks", [name])
                put_back(space, before)
        self.namespaces.restore(changes)
        # tqdm keeps one thread for all of its progress bars, until the process ends.
        new = [thread for thread in threading.enumerate() if thread not in self.threads]
        threads = [thread.name for thread in new if type(thread).__module__.partition(".")[0] != "tqdm"]
        report(changes, "threads that still run", threads)
        numbers = [number for number, handler in self.signals.items() if signal.getsignal(number) is not handler]
        if numbers and threading.current_thread() is threading.main_thread():
            report(changes, "signal handlers", [signal.Signals(number).name for number in numbers])
            for number in numbers:
                signal.signal(number, self.signals[number])

    def _restore_stacks(self, changes: Changes) -> None:
        for what, (read, leave, enter) in _STACKS.items():
            now, before = read(), self.stacks[what]
            if len(now) != len(before) or not all(map(is_, now, before)):
                report(changes, what, [", ".join(type(mode).__name__ for mode in now) or "left"])
                while read():
                    leave()
                for mode in before:
                    enter(mode)
                cast(Any, torch)._GLOBAL_DEVICE_CONTEXT.device_context = self.device


_latest: list[tuple[int, NamespacesSnapshot]] = []


def current_namespaces() -> NamespacesSnapshot:
    """The functions and classes that explainers patch: those of torch and of loaded modelling code.

    It is the latest snapshot if no module was loaded and nothing patched since: comparing takes less time than copying.
    """
    loaded = len(sys.modules)
    if not _latest or _latest[0][0] != loaded or not _latest[0][1].unchanged():
        names = [name for name in sys.modules if name in MODULES or name.startswith(PACKAGES) or _has_models(name)]
        modules = [(name, sys.modules[name]) for name in names if sys.modules[name] is not None]
        _latest[:] = [(loaded, NamespacesSnapshot(modules, _classes_of_layers()))]
    return _latest[0][1]


MODULES = (
    *("torch", "torch.functional", "torch.autograd", "torch.autograd.function", "torch.autograd.graph", "torch.nn"),
    *("torch.special", "torch.linalg", "torch.fft", "torch._C._nn", "torch.utils.checkpoint"),
    *("builtins", "copy", "math", "random", "numpy", "numpy.random"),
)
PACKAGES = ("torch.nn.", *(f"faithcheck.{package}" for package in ("axioms", "explainers", "models", "reports")))
"""Modules, and packages of them, whose functions are compared; faithcheck's own too, as figures come from them."""


def _has_models(name: str) -> bool:
    """Whether a module of transformers has code that models run."""
    package, *parts = name.split(".")
    starts = ("modeling_", "activations", "masking_utils", "pytorch_utils", "integrations")
    return package == "transformers" and any(part.startswith(starts) for part in parts)


def _classes_of_layers() -> list[type]:
    """The tensor classes, and every loaded class of modules of torch, transformers and faithcheck."""
    layers: dict[type, None] = {nn.Module: None}
    pending: list[type] = [nn.Module]
    while pending:
        below: list[type] = pending.pop().__subclasses__()
        ours = [c for c in below if c.__module__.partition(".")[0] in ("torch", "transformers", "faithcheck")]
        pending += [owner for owner in ours if owner not in layers]
        layers.update(dict.fromkeys(ours))
    return [Tensor, nn.Parameter, torch.autograd.Function, Case, *layers]
