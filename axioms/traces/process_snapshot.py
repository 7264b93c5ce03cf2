"""The state of the process that explainers change: settings, modes, random states, functions and classes.

Compared before and after a block of code, and put back:

* torch's settings, global hooks, and the modes that are entered: function modes (a default device is one), dispatch
  modes, inference mode, hooks of saved tensors;
* the random states of torch, NumPy and Python; NumPy's error state;
* functions and classes of torch, of the loaded modelling modules of transformers, of faithcheck, and of the modules of
  Python that they compute with;
* environment variables, warnings filters, signal handlers, timers, the import path, the current folder, the standard
  streams, logging, and the interpreter's hooks.

Threads that still run are reported; they cannot be ended.
"""

import gc
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from operator import is_
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module
from torch.utils import _python_dispatch

from faithcheck.axioms.traces.namespaces import (
    Changes,
    NamespacesSnapshot,
    equal,
    put_back,
    report,
    same_objects,
)
from faithcheck.models.case import Case

RANDOM = "random state"
_PRINTING: Any = cast(Any, torch)._tensor_str.PRINT_OPTS


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
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
    "cache of autocast": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
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
    "flush of denormal numbers": (lambda: _flushes_denormal_numbers(), torch.set_flush_denormal),
    "threads of backward": (torch._C._is_multithreading_enabled, torch._C._set_multithreading_enabled),
    "warnings of torch": (torch.is_warn_always_enabled, torch.set_warn_always),
    "attention of cuDNN": (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    "flash attention": (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    "memory-efficient attention": (
        torch.backends.cuda.mem_efficient_sdp_enabled,
        torch.backends.cuda.enable_mem_efficient_sdp,
    ),
    "attention written out": (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    "float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "error state of NumPy": (
        lambda: (np.geterr(), np.geterrcall()),
        lambda value: (np.seterr(**value[0]), np.seterrcall(value[1])),
    ),
    "trace function": (sys.gettrace, sys.settrace),
    "profile function": (sys.getprofile, sys.setprofile),
    "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "garbage collection": (gc.isenabled, lambda value: gc.enable() if value else gc.disable()),
    "current folder": (lambda: _current_folder(), lambda value: os.chdir(value or os.sep)),
    "import path": (lambda: list(sys.path), lambda value: sys.path.__setitem__(slice(None), value)),
    "standard output": _attribute(sys, "stdout"),
    "standard error": _attribute(sys, "stderr"),
    "logging": (
        lambda: (logging.root.manager.disable, logging.root.level),
        lambda value: _set_logging(*value),
    ),
    "printing of torch": (lambda: dict(vars(_PRINTING)), lambda value: vars(_PRINTING).update(value)),
    "printing of NumPy": (np.get_printoptions, lambda value: np.set_printoptions(**value)),
    "environment variables": (lambda: dict(os.environ), lambda value: put_back(os.environ, value)),
    "warnings filters": (lambda: list(warnings.filters), lambda before: _set_filters(before)),
}
"""Settings of the process, each with how to read and how to set it."""


class ProcessSnapshot:
    """The state of the process before a block of code."""

    def __init__(self) -> None:
        self.namespaces = current_namespaces()
        self.modes = ModesSnapshot()
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
        self.modes.restore(changes)  # first: inside a mode that is still entered, every other call could go wrong
        for name, space, before in self.hooks:
            if not same_objects(space, before):
                report(changes, "global hooks", [name])
                put_back(space, before)
        self.namespaces.restore(changes)
        for what, before, read, write in self.settings:
            if not equal(read(), before):
                report(changes, what, [""])
                write(before)
        threads = [thread for thread in threading.enumerate() if thread not in self.threads and not _is_tqdm(thread)]
        report(changes, "threads that still run", [thread.name for thread in threads])
        numbers = [number for number, handler in self.signals.items() if signal.getsignal(number) is not handler]
        if numbers and threading.current_thread() is threading.main_thread():
            report(changes, "signal handlers", [signal.Signals(number).name for number in numbers])
            for number in numbers:
                signal.signal(number, self.signals[number])


_latest: list[tuple[int, NamespacesSnapshot]] = []


def current_namespaces() -> NamespacesSnapshot:
    """The functions and classes that explainers patch: those of torch and of loaded modelling code.

    It is the latest snapshot if no module was loaded and nothing patched since: comparing takes less time than copying.
    """
    loaded = len(sys.modules)
    if not _latest or _latest[0][0] != loaded or not _latest[0][1].unchanged():
        _latest[:] = [(loaded, NamespacesSnapshot(_modules_of_functions(), _classes_of_layers()))]
    return _latest[0][1]


class ModesSnapshot:
    """The modes that are entered: of functions (a default device is one), dispatch, inference, and differentiation."""

    def __init__(self) -> None:
        self.functions = list(_function_modes())
        self.device = getattr(_device_holder(), "device_context", None)
        self.dispatch = list(_python_dispatch._get_current_dispatch_mode_stack())
        self.inference = torch.is_inference_mode_enabled()
        self.dual_level = forward_ad._current_level
        self.saved_tensors = _saved_tensor_hooks()

    def restore(self, changes: Changes) -> None:
        """Put back what changed, and report it."""
        now = _function_modes()
        if len(now) != len(self.functions) or not all(map(is_, now, self.functions)):
            names = ", ".join(type(mode).__name__ for mode in now) or "left"
            report(changes, "default device or function mode", [names])
            overrides = cast(Any, torch.overrides)
            while _function_modes():
                overrides._pop_mode()
            for mode in self.functions:
                overrides._push_mode(mode)
            _device_holder().device_context = self.device
        dispatch = _python_dispatch._get_current_dispatch_mode_stack()
        if len(dispatch) != len(self.dispatch) or not all(map(is_, dispatch, self.dispatch)):
            report(changes, "dispatch mode", [", ".join(type(mode).__name__ for mode in dispatch) or "left"])
            while _python_dispatch._get_current_dispatch_mode_stack():
                _python_dispatch._pop_mode()
            for mode in self.dispatch:
                _python_dispatch._push_mode(mode)
        if forward_ad._current_level != self.dual_level:
            report(changes, "forward differentiation", [""])
            while forward_ad._current_level > self.dual_level:
                cast(Any, forward_ad).exit_dual_level()
        if _saved_tensor_hooks() != self.saved_tensors:
            report(changes, "hooks of saved tensors", [""])
            while _saved_tensor_hooks() not in (None, self.saved_tensors):
                torch._C._autograd._pop_saved_tensors_default_hooks()
        if torch.is_inference_mode_enabled() != self.inference:
            report(changes, "inference mode", [""])
            guard: Any = torch._C._InferenceMode(self.inference)
            guard.__enter__()
            _guards.append(guard)  # torch leaves the mode when the guard is deleted


_guards: list[Any] = []
_SIGNALS = sorted(signal.valid_signals())
_TIMERS = [getattr(signal, name) for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF") if hasattr(signal, name)]


def _current_folder() -> str | None:
    """The current folder; None if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _is_tqdm(thread: threading.Thread) -> bool:
    """Whether it is the one thread that tqdm keeps for all of its progress bars, until the process ends."""
    return type(thread).__module__.partition(".")[0] == "tqdm"


def _function_modes() -> list[Any]:
    stack: list[Any] = cast(Any, torch.overrides)._get_current_function_mode_stack()
    return stack


def _device_holder() -> Any:
    return cast(Any, torch)._GLOBAL_DEVICE_CONTEXT


def _saved_tensor_hooks() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def _flushes_denormal_numbers() -> bool:
    return sys.float_info.min / 2 == 0  # a setting of the processor, which Python's own numbers have too


def _modules_of_functions() -> list[tuple[str, Any]]:
    """The modules whose functions explainers patch, as far as they are loaded."""
    names = [name for name in sys.modules if name in MODULES or name.startswith(PACKAGES) or _has_models(name)]
    return [(name, sys.modules[name]) for name in names if sys.modules[name] is not None]


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
    classes: list[type] = [Tensor, nn.Parameter, torch.autograd.Function, Case]
    pending: list[type] = [nn.Module]
    seen: set[type] = set()
    while pending:
        owner = pending.pop()
        if owner not in seen:
            seen.add(owner)
            classes.append(owner)
            subclasses: list[type] = owner.__subclasses__()
            pending += [
                c for c in subclasses if c.__module__.partition(".")[0] in ("torch", "transformers", "faithcheck")
            ]
    return classes


def random_states() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """The random states, by what they are of, each with how to read and how to set it."""
    states: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
        f"{RANDOM} of torch": (torch.get_rng_state, torch.set_rng_state),
        f"{RANDOM} of NumPy": (partial(np.random.get_state, legacy=True), np.random.set_state),
        f"{RANDOM} of Python": (random.getstate, random.setstate),
    }
    if torch.cuda.is_available():
        states[f"{RANDOM} of CUDA"] = (torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all)
    return states


def _set_logging(disabled: int, level: int) -> None:
    logging.disable(disabled)
    logging.root.setLevel(level)


def _set_filters(filters: Sequence[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]
    cast(Any, warnings)._filters_mutated()
