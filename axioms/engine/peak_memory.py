"""The memory that torch allocates during a call, as its own counters see it, to the byte.

On CUDA torch counts the peak itself. On the CPU its profiler reports every allocation and every free of the calling
thread, temporary ones inside an operation too. What a library allocates without torch is in neither count.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from torch.autograd.profiler_legacy import profile

from faithcheck.explainers.forward_passes import observed_forward_passes


def peak_memory(call: Callable[[], object], device: torch.device | str = "cpu", model: nn.Module | None = None) -> int:
    """The most bytes that were in use at once during a call, less those in use before it.

    Weights are in use before, so that they do not count; what the call returns counts until it is dropped. On the CPU,
    torch does not report that something older is freed, which then still counts.

    Args:
        call: called once.
        device: where it allocates.
        model: of which it runs many forward passes: then the events of the profiler, half a kilobyte each, are read
            and dropped at each pass. Only the CPU needs this.

    Raises:
        RuntimeError: on the CPU, torch's profiler runs already.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    used, peak = 0, 0

    def count(changes: list[int]) -> None:
        nonlocal used, peak
        for change in changes:
            used += change
            peak = max(peak, used)

    with reported_changes(count, model):
        call()
    return peak


@contextmanager
def reported_changes(count: Callable[[list[int]], None], model: nn.Module | None = None) -> Iterator[None]:
    """Within the block, ``count`` gets the bytes that torch allocates on the CPU (> 0) and frees (< 0), in their order.

    Args:
        count: called at the end of the block, and with a model at the beginning of each of its forward passes.
        model: the model.

    Raises:
        RuntimeError: torch's profiler runs already.
    """
    gc.collect()  # now, and not within the block: torch cannot report that something older is freed, and warns
    config = profile(profile_memory=True).config()  # type: ignore[no-untyped-call]

    def read() -> None:
        threads = torch.autograd._disable_profiler_legacy()
        count([event.cpu_memory_usage() for thread in threads for event in thread if event.kind() == "memory_alloc"])

    def read_and_go_on() -> None:
        read()
        torch.autograd._enable_profiler_legacy(config)

    torch.autograd._enable_profiler_legacy(config)
    try:
        with nullcontext() if model is None else observed_forward_passes(model, read_and_go_on, lambda: None):
            yield
    finally:
        read()
