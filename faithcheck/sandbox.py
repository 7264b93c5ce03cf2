"""The sandbox in which the code of explainers runs: seeded random numbers, kept warnings, limited time.

What it leaves behind on models and in the process is undone and listed. `attempt` catches all errors but Ctrl-C.
"""

from __future__ import annotations

import random
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TypeVar

import numpy as np
from torch import nn

from faithcheck.axioms.traces.model_snapshot import ModelSnapshot, restored
from faithcheck.axioms.traces.process_snapshot import RANDOM
from faithcheck.models.pair import seed_torch

T = TypeVar("T")


@dataclass
class Traces:
    """What a block did besides its result; complete when the block has ended."""

    # What it left behind on the models and in the process, a line for each kind; all of it is undone
    left_behind: list[str] = field(default_factory=list)
    warnings: list[warnings.WarningMessage] = field(default_factory=list)  # the warnings that it gave


@contextmanager
def sandbox(
    *models: nn.Module | ModelSnapshot,
    seed: int,
    timeout: float | None = None,
    always: type[Warning] = Warning,
) -> Iterator[Traces]:
    """Run a block with random numbers from ``seed``; the states of Python, NumPy and torch are restored.

    Snapshots save a copy of the weights for each block. Warnings of the category ``always`` are kept each time.
    """
    traces = Traces()
    changes: list[str] = []
    try:
        with (
            restored(*models) as changes,
            time_limit(timeout),
            warnings.catch_warnings(record=True) as traces.warnings,
        ):
            warnings.simplefilter("always", always)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            seed_torch(seed)
            yield traces
    finally:
        # The block has random numbers of its own, so to draw some is no trace.
        traces.left_behind += [line for line in changes if not line.startswith(RANDOM)]


@dataclass(frozen=True)
class Raised:
    """The error that a piece of work raised, in place of its result."""

    error: BaseException


def attempt(work: Callable[[], T]) -> T | Raised:
    """The result of ``work()``, or the error that it raised, whatever its class; the user's Ctrl-C alone is raised."""
    with interruptible():
        try:
            return work()
        except BaseException as error:
            return Raised(error)


@contextmanager
def interruptible() -> Iterator[None]:
    """Run a block that catches all errors: Ctrl-C ends it, but not a KeyboardInterrupt that its code itself raises."""
    before = signal.getsignal(signal.SIGINT)
    # Python runs signal handlers in the main thread alone, so that another thread is never interrupted.
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    pressed: list[int] = []

    def press(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        before(number, frame)

    signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            raise KeyboardInterrupt


class TimedOut(BaseException):
    """The block took too long. It is no `Exception`, so that no ``except Exception`` inside the block catches it."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Stop Python code, but no single C call, with `TimedOut` after so many seconds; never, if None.

    `ValueError`: no POSIX signals, or not the main thread, which alone receives them.
    """
    if seconds is None:
        yield
        return
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        raise ValueError("a time limit needs POSIX signals and the main thread: leave it out here")

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimedOut(f"still running after {seconds:g} s: stopped by the time limit")

    before = signal.signal(signal.SIGALRM, stop)
    # Repeated every second: a bare `except:` inside a loop catches even `TimedOut`.
    outer = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *outer)
