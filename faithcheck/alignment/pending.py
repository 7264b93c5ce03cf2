"""The tasks of one explainer that wait for a worker, the costliest first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from faithcheck.models.data.stored import stored_array


class Pending:
    """The numbers of the tasks that no worker has, with their costs.

    Those of the beginning are in temporary files, so that memory does not grow with them. The few that come back, or
    take the place of another one, are held.

    Attributes:
        cost: of all together.

    Args:
        tasks: each number with its cost.
        length: how many they are.
    """

    def __init__(self, tasks: Iterable[tuple[int, float]], length: int) -> None:
        self._numbers, self._costs = stored_array(length, np.int64), stored_array(length, np.float64)
        for place, (number, cost) in enumerate(tasks):
            self._numbers[place], self._costs[place] = number, cost
        order = np.lexsort((-self._numbers, self._costs))  # the costliest last; of equal ones the first number
        self._numbers[:], self._costs[:] = self._numbers[order], self._costs[order]
        self._length = length
        self._again: dict[int, float] = {}
        self._parts: dict[int, float] = {}
        self.cost = float(self._costs.sum())

    def __len__(self) -> int:
        return self._length + len(self._again) + len(self._parts)

    def __contains__(self, number: int) -> bool:
        held = number in self._again or number in self._parts
        return held or bool((self._numbers[: self._length] == number).any())

    def first(self) -> tuple[int, float]:
        """The next task and its cost: one that came back, else the costliest, else a part; there is one."""
        if self._again:
            return next(reversed(self._again.items()))
        if self._length:
            return int(self._numbers[self._length - 1]), float(self._costs[self._length - 1])
        return next(iter(self._parts.items()))

    def take_first(self) -> None:
        """A worker has the first."""
        number, cost = self.first()
        if number in self._again:
            del self._again[number]
        elif self._length:
            self._length -= 1
        else:
            del self._parts[number]
        self.cost -= cost

    def put_back(self, number: int, cost: float) -> None:
        """A worker had this task, and is gone: it comes next."""
        self._again[number] = cost
        self.cost += cost

    def split(self, number: int, parts: Mapping[int, float]) -> None:
        """Do these parts, in their order and after all others, in place of a task that was put back."""
        self.cost += sum(parts.values()) - self._again.pop(number)
        self._parts = {**parts, **self._parts}

    def drop(self, after: int) -> int:
        """The tasks beyond this number are not to be done. Returns how many they were."""
        before = len(self)
        kept = self._numbers[: self._length] <= after
        length = int(kept.sum())
        for values in (self._numbers, self._costs):
            values[:length] = values[: self._length][kept]
        self._length = length
        self._again, self._parts = (
            {number: cost for number, cost in held.items() if number <= after} for held in (self._again, self._parts)
        )
        self.cost = float(self._costs[:length].sum()) + sum(self._again.values()) + sum(self._parts.values())
        return before - len(self)
