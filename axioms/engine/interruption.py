"""Telling the user's Ctrl-C from a `KeyboardInterrupt` that an explainer raises itself."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noting_interruption() -> Iterator[Callable[[], bool]]:
    """Note whether a Ctrl-C interrupts the block; the handler that was installed before is called as ever.

    Outside the main thread, which alone receives signals, nothing is noted.

    Yields:
        A function without arguments: whether a Ctrl-C raised an exception in the block.
    """
    noted: list[bool] = []
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, frame: FrameType | None) -> None:
        try:
            before(number, frame)
        except BaseException:
            noted.append(True)
            raise

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, before)
