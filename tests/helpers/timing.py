"""Time functions in turn, so that a busy machine slows all of them alike."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats


class Ratio(NamedTuple):
    """The median of ratios and its 95 % interval, which fewer than six turns do not have."""

    median: float
    low: float | None
    high: float | None

    @property
    def half_width(self) -> float | None:
        """The largest distance of the interval's ends from the median, relative to it."""
        if self.low is None or self.high is None:
            return None
        return max(self.high - self.median, self.median - self.low) / self.median

    @property
    def cells(self) -> list[str]:
        """The median and the interval, as cells of a table."""
        within = "none of so few" if self.low is None else f"{self.low:.3g} – {self.high:.3g}"
        return [f"{self.median:.3g}", within]


def interval(ratios: Sequence[float]) -> Ratio:
    """The median and its 95 % interval between two order statistics, of any distribution: Conover 1999, §3.2."""
    bounds = stats.quantile_test(ratios, p=0.5).confidence_interval(0.95)
    low, high = (float(bound) if math.isfinite(bound) else None for bound in (bounds.low, bounds.high))
    return Ratio(float(median(ratios)), low, high)


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
    """Milliseconds ``(turns, functions)``, one call of each a turn in an order drawn anew, after one turn to warm up.

    What a call leaves behind, such as memory that is mapped already, changes the time of the next one.
    """
    times, random_order = np.zeros((turns + 1, len(functions))), random.Random(0)
    for turn in times:
        for i in random_order.sample(range(len(functions)), len(functions)):
            turn[i] = milliseconds(functions[i], device)
    return times[1:]


FEWEST = 6  # turns: 1 − 2 · 2⁻⁶ > 95 %, so that the median has an interval


@dataclass(frozen=True)
class Limits:
    """When to stop: every interval is ``within`` this part of its ratio, or after so many turns, or seconds.

    The seconds stop nothing of fewer than `FEWEST` turns.
    """

    within: float = 0.05
    turns: int = 400
    seconds: float = 30.0


def until_precise(
    calls: Mapping[str, Sequence[Callable[[], object]]],
    device: torch.device,
    limits: Limits,
    seed: int,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, np.ndarray]:
    """Milliseconds of each call and its units, in turn, until the ratios to the first unit are precise.

    A turn is a call and its units, one right after the other in an order drawn anew, so that a slow moment slows all of
    them. The next turn is that of the name that has taken the least time. Whoever is precise has no further turn.
    """
    times: dict[str, list[list[float]]] = {name: [] for name in calls}
    spent, start, random_order = dict.fromkeys(calls, 0.0), clock(), random.Random(seed)
    while spent:
        name = min(spent, key=lambda name: spent[name])
        order = random_order.sample(range(len(calls[name])), len(calls[name]))
        taken = {i: milliseconds(calls[name][i], device) for i in order}
        times[name].append([taken[i] for i in sorted(taken)])
        spent[name] += sum(taken.values())
        if is_precise(times[name], limits) or len(times[name]) == limits.turns:
            del spent[name]
        if clock() - start > limits.seconds:
            spent = {name: already for name, already in spent.items() if len(times[name]) < FEWEST}
    return {name: np.array(of) for name, of in times.items()}


def is_precise(times: list[list[float]], limits: Limits) -> bool:
    """Whether the ratio of the first to the second of these times ``(turns, functions)`` has a narrow interval."""
    of = np.array(times)
    width = interval(of[:, 0] / of[:, 1]).half_width
    return width is not None and width <= limits.within
