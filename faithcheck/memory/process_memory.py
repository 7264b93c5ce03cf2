"""The memory of a process, from Linux's ``/proc/PID/statm``. Nothing here imports torch: supervisors read it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

PROCESSES = Path("/proc")


class ProcessMemory(NamedTuple):
    """Bytes: of the address space, of what is in memory, and of the part of this that belongs to files."""

    virtual: int
    resident: int
    shared: int


def process_memory(process: int | str = "self") -> ProcessMemory:
    """The memory of a process, by its id, or of this one; zeros if it has ended, or the system does not say."""
    try:
        pages = (PROCESSES / str(process) / "statm").read_text().split()
        return ProcessMemory(*(os.sysconf("SC_PAGE_SIZE") * int(number) for number in pages[:3]))
    except (OSError, ValueError, TypeError, AttributeError):
        return ProcessMemory(0, 0, 0)
