"""A limit on how long a block may run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TimedOut(BaseException):
    """The block took too long. It is no `Exception`, so that no ``except Exception`` inside the block catches it."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Stop the block with `TimedOut` after this many seconds; never, if None.

    The limit interrupts Python code. It cannot interrupt a single call of a C library.

    Raises:
        ValueError: the platform has no POSIX signals, or this is not the main thread, which alone receives them.
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
