"""Time functions in turn, so that a busy machine slows all of them alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from faithcheck.reports.benchmark import half_width, interval


def milliseconds(function, device):
    """How long one call takes; on a GPU by CUDA events, after all work before it."""
    if device.type != "cuda":
        start = time.perf_counter()
        function()
        return 1e3 * (time.perf_counter() - start)
    with torch.cuda.device(device):  # events are recorded on the current device
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
    return start.elapsed_time(end)


def in_turn(functions, device, turns):
    """Milliseconds ``(turns, functions)``, one call of each a turn, after one turn to warm up."""
    times = [[milliseconds(function, device) for function in functions] for _ in range(turns + 1)]
    return np.array(times[1:])


FEWEST = 6  # turns: 1 − 2 · 2⁻⁶ > 95 %, so that the median has an interval


@dataclass(frozen=True)
class Limits:
    """When to stop: every interval is ``within`` this part of its ratio, or after so many turns, or seconds.

    The seconds stop no run of fewer than `FEWEST` turns.
    """

    within: float = 0.05
    turns: int = 200
    seconds: float = 40.0


def until_precise(
    calls: Mapping[str, Callable[[], object]],
    unit_of: Mapping[str, str],
    device: torch.device,
    limits: Limits,
    seed: int,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, list[float]]:
    """Milliseconds of each call, one a turn, until the ratios to their units are precise or a limit is reached.

    A turn has the calls whose interval is still too wide, their units, and the calls that are no one's ratio, in an
    order drawn anew. So the k-th time of a call is of the same turn as the k-th time of its unit. Call each function
    once before, to warm up.

    Args:
        calls: functions by name.
        unit_of: the name of the unit of each call whose ratio is wanted.
        device: where they run.
        limits: see there.
        seed: of the order.
        clock: seconds, for the limit.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    order, start, pending = random.Random(seed), clock(), list(unit_of)
    always = [name for name in calls if name not in {*unit_of, *unit_of.values()}]
    for number in range(1, limits.turns + 1):
        turn = list(dict.fromkeys([*always, *(unit_of[name] for name in pending), *pending]))
        order.shuffle(turn)
        for name in turn:
            times[name].append(milliseconds(calls[name], device))
        widths = {name: half_width(interval(ratios(times[name], times[unit_of[name]]))) for name in pending}
        pending = [name for name, width in widths.items() if width is None or width > limits.within]
        if not pending or (number >= FEWEST and clock() - start > limits.seconds):
            break
    return times


def ratios(times: list[float], unit_times: list[float]) -> np.ndarray:
    """The ratio of each turn in which both were called."""
    turns = min(len(times), len(unit_times))
    return np.array(times[:turns]) / np.array(unit_times[:turns])
