"""Time functions in turn, so that a busy machine slows all of them alike."""

from __future__ import annotations

import time

import numpy as np
import torch


def milliseconds(function, device):
    """How long one call takes; on a GPU by CUDA events."""
    if device.type != "cuda":
        start = time.perf_counter()
        function()
        return 1e3 * (time.perf_counter() - start)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def in_turn(functions, device, turns):
    """Milliseconds ``(turns, functions)``, one call of each a turn, after one turn to warm up."""
    times = [[milliseconds(function, device) for function in functions] for _ in range(turns + 1)]
    return np.array(times[1:])
