"""Loading without garbage collection."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect no garbage within the block, nor later from what it made: imported libraries and tests stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # the collector looks through the rest alone; pytest calls it twice at the end of each run
        if was_enabled:
            gc.enable()
