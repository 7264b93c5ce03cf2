"""The memory that torch allocates during a call, to the byte; what other libraries allocate is not counted.

CUDA counts its peak; on the CPU the profiler reports each allocation and free of the calling thread.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler_legacy import profile

from faithcheck.explainers.protocol import observed_forward_passes


def peak_memory(call: Callable[[], object], device: torch.device | str = "cpu", model: nn.Module | None = None) -> int:
    """The most bytes that were in use at once during a call, less those in use before it, such as weights.

    What the call returns counts. On the CPU torch does not report that older memory is freed, which then still counts.
    With a ``model``, the events of the profiler, half a kilobyte each, are dropped at each of its forward passes.
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

    with changes_on_cpu(count, model):
        call()
    return peak


def changes(call: Callable[[], object], device: torch.device | str = "cpu") -> list[int]:
    """The bytes that torch allocates (> 0) and frees (< 0) during a call, in their order."""
    reported: list[int] = []
    with (
        changes_on_cuda(reported.extend, device)
        if torch.device(device).type == "cuda"
        else changes_on_cpu(reported.extend)
    ):
        call()
    return reported


@contextmanager
def changes_on_cuda(count: Callable[[list[int]], None], device: torch.device | str) -> Iterator[None]:
    """At the end of the block, ``count`` gets the bytes asked for on CUDA (> 0) and freed (< 0), in order.

    They are from the recorded history of the allocator, whose counters round blocks up.
    """
    torch.cuda.memory._record_memory_history(enabled="all", context=None)
    try:
        yield
        torch.cuda.synchronize(device)
        index = torch.device(device).index
        index = torch.cuda.current_device() if index is None else index
        history = torch.cuda.memory._snapshot(device)["device_traces"][index]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    count(changes_in_history(history))


def changes_in_history(history: Iterable[Mapping[str, Any]]) -> list[int]:
    """The sizes of what a history of CUDA's allocator allocates (> 0) and then frees (< 0), in order."""
    sizes: dict[int, int] = {}
    reported = []
    for entry in history:
        if entry["action"] == "alloc":
            sizes[entry["addr"]] = entry["size"]
            reported.append(entry["size"])
        elif entry["action"] == "free_requested" and entry["addr"] in sizes:
            reported.append(-sizes.pop(entry["addr"]))
    return reported


@contextmanager
def changes_on_cpu(count: Callable[[list[int]], None], model: nn.Module | None = None) -> Iterator[None]:
    """``count`` gets allocations (> 0) and frees (< 0), at the end and before each forward pass of a model."""
    profiler: Any = torch.autograd
    config = profile(profile_memory=True).config()  # type: ignore[no-untyped-call]

    def read() -> None:
        threads = profiler._disable_profiler_legacy()
        count([event.cpu_memory_usage() for thread in threads for event in thread if event.kind() == "memory_alloc"])

    def read_and_go_on() -> None:
        read()
        profiler._enable_profiler_legacy(config)

    with no_old_garbage():
        profiler._enable_profiler_legacy(config)
        try:
            with nullcontext() if model is None else observed_forward_passes(model, read_and_go_on, lambda: None):
                yield
        finally:
            read()


NEVER = 2**31 - 1
"""The largest threshold of a generation of the garbage collector."""


@contextmanager
def no_old_garbage() -> Iterator[None]:
    """Collect no garbage from before the block: torch cannot report its frees, and to collect it first takes 0.2 s."""
    thresholds = gc.get_threshold()
    gc.collect(1)
    gc.set_threshold(*thresholds[:2], NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
