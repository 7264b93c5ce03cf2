"""How much memory an attribution may take, and what to do if it takes more: the same work in smaller forward passes."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from faithcheck.explainers.protocol import Explainer
from faithcheck.memory.predicted_memory import with_max_tokens

SHARE = 0.8
"""Of the memory that is available: allocators keep blocks that were freed, and other processes take memory, too."""


def memory_limit(device: torch.device, most: int | None = None) -> int:
    """The bytes that an attribution may take over what is in use: `SHARE` of what is available, at most ``most``."""
    limit = int(SHARE * available_memory(device))
    return limit if most is None else min(limit, most)


def available_memory(device: torch.device) -> int:
    """The bytes that this process can still allocate; on the CPU without swap, within cgroup v2 and address space."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(0, min(_limits()))


def _limits() -> Iterator[int]:
    yield int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        group = Path("/sys/fs/cgroup") / next(line for line in lines if line.startswith("0::"))[4:]
        for folder in (group, *group.parents):
            yield from _left_in_group(folder)
    with suppress(ImportError):  # not on Windows
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most != resource.RLIM_INFINITY:
            yield most - psutil.Process().memory_info().vms


def _left_in_group(folder: Path) -> Iterator[int]:
    """What is left of the limit of a control group, if it has one; cached files can be dropped."""
    with suppress(OSError, ValueError):
        most = int((folder / "memory.max").read_text())  # "max" is no limit
        files = int(_fields(folder / "memory.stat").get("inactive_file", "0"))
        yield most - int((folder / "memory.current").read_text()) + files


def _fields(file: Path) -> dict[str, str]:
    """The first two words of each line."""
    lines = (line.split() for line in file.read_text().splitlines())
    return {words[0]: words[1] for words in lines if len(words) > 1}


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or the one that it was raised from, says that no more memory can be allocated."""
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or (
            isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def with_half_the_rows(explainer: Explainer, features: int) -> Explainer | None:
    """The explainer with half as many rows in a pass; None if it has no ``max_tokens``, or one row already."""
    rows = (getattr(explainer, "max_tokens", None) or 0) // features
    return with_max_tokens(explainer, rows // 2 * features) if rows > 1 else None
