"""Ctrl-C ends the run; a KeyboardInterrupt that an explainer raises is an error of the explainer."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible() -> Iterator[None]:
    """Run a block that catches every error of a user's code. Ctrl-C ends it all the same, also if that code catches it.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed in the block.
    """
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
