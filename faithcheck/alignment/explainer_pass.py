"""What one explainer measures in an alignment: the batches that are stored and missing, and what they say together."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
from msgspec import convert, to_builtins

from faithcheck.alignment.batch import attempted
from faithcheck.alignment.batch_result import BatchResult, MeasuredExample, left_behind
from faithcheck.alignment.batches import Batches
from faithcheck.alignment.run_key import state_of
from faithcheck.alignment.store import Store, StoredRecords
from faithcheck.axioms.measure.error_text import safe_text
from faithcheck.explainers.protocol import Explainer, describe_settings, display_label
from faithcheck.models.data.stored import stored_array
from faithcheck.reports.documents.alignment import Peaks


@dataclass(frozen=True)
class ExplainerResult:
    """The maps and perturbation curves of one explainer, or the reason why it could not be measured."""

    name: str
    label: str = ""  # its name in tables and figures
    how: str = ""  # its settings, in words
    # By example, empty if the explainer could not be measured; those of a store are read when they are asked for
    records: Mapping[int, MeasuredExample] = field(default_factory=dict)
    store: Store | None = None  # that has the records; None without one
    refused: str = ""  # why the explainer could not be measured; else empty
    failed: bool = False  # whether that is an error of the explainer, and not its refusal of this model
    warned: str = ""  # how many warnings it gave, and the first of them, in words; else empty
    # What it left behind on the model or in the process, which was undone, a line for each kind
    left_behind: Sequence[str] = ()
    batches: int = 0
    smaller: str = ""  # which batches were measured in smaller parts, and why, in words; else empty
    left_out: str = ""  # which batches were not measured, because they ended several workers, in words; else empty
    memory: Peaks | None = None  # of the attribution that was predicted to take most; None if it cannot be predicted
    # The arithmetic of an attribution, in plain forward passes of the same examples, over one batch in `COUNTED`; None
    # without any
    cost: float | None = None
    no_positions: str = ""  # why no relevance of position embeddings is known; else empty


class ExplainerPass:
    """The batches that one explainer has stored and misses. Its store is open inside the context."""

    def __init__(
        self,
        explainer: Explainer,
        plan: Batches,
        key: Mapping[str, object],
        folder: Path,
        advance: Callable[[str, int], None] = lambda explainer, done: None,
    ) -> None:
        self.explainer, self.plan, self._advance = explainer, plan, advance
        self._refused: dict[int, BatchResult] = {}
        self._store: Store | None = None
        described = attempted(explainer.name, lambda: _described(explainer))
        if isinstance(described, BatchResult):
            self._refused[0], described = described, (explainer.name, "", None)
        label, how, self.state = described
        self._result = ExplainerResult(explainer.name, label, how, batches=len(plan))
        if self.state is not None:
            self._store = Store(folder, explainer.name, {**key, "explainer": self.state})
        self._left_out: dict[int, str] = {}
        self._missing = stored_array(len(plan), np.bool_)
        self._missing[:] = True

    def __enter__(self) -> Self:
        if self._store is not None:
            self._store.__enter__()
        self._done(range(len(self.plan)) if self._refused or self._store is None else self._store)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._store is not None:
            self._store.__exit__(*error)

    def missing(self) -> Iterator[int]:
        """The batches that are still to be measured, looked up one by one; none after one that refused."""
        return filter(self.is_missing, range(len(self.plan)))

    def is_missing(self, number: int) -> bool:
        """Whether this batch is still to be measured."""
        return bool(self._missing[number])

    def keep(self, number: int, result: BatchResult) -> bool:
        """Store what was measured of a batch, or why it, or the explainer, was not. Returns whether it was measured."""
        if result.left_out is not None:
            self._left_out[number] = result.left_out
        elif result.refused is not None:
            self._refused[number] = result
            self._done(range(number, len(self.plan)))
            return False
        else:
            assert self._store is not None
            self._store.append(number, to_builtins(result))
        self._done([number])
        return result.left_out is None

    def _done(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if self._missing[number]:
                self._missing[number] = False
                self._advance(self.explainer.name, len(self.plan[number]))

    def result(self) -> ExplainerResult:
        """What was measured; no batch is missing."""
        if self._refused:
            first = min(self._refused)
            refused = self._refused[first]
            return replace(
                self._result,
                refused=refused.refused or "",
                failed=refused.failed,
                left_behind=left_behind(chain(self._stored(range(first)), [refused])),
                batches=0,
            )
        assert self._store is not None
        total = _Total()
        for result in self._stored(range(len(self.plan))):
            total.add(result)
        return replace(
            self._result,
            records=StoredRecords(self._store, self.plan, self._left_out.keys()),
            store=self._store,
            warned=total.warned(len(self.plan)),
            left_behind=[*total.left_behind],
            smaller=_of_batches(total.smaller, total.first_smaller, total.batches),
            memory=total.memory,
            cost=total.attribution / total.forward if total.forward else None,
            left_out=_of_batches(len(self._left_out), next(iter(self._left_out.values()), ""), len(self.plan)),
            no_positions=total.no_positions,
        )

    def _stored(self, numbers: Iterable[int]) -> Iterator[BatchResult]:
        """What was measured of these batches, one after the other; nothing of those that were left out."""
        if self._store is not None:
            stored = (self._store[number] for number in numbers if number not in self._left_out)
            yield from (convert(content, BatchResult) for content in stored)


@dataclass
class _Total:
    """What the batches of an explainer say together, one after the other."""

    batches: int = 0
    warnings: int = 0
    first_warning: str = ""
    left_behind: dict[str, None] = field(default_factory=dict)
    smaller: int = 0
    first_smaller: str = ""
    memory: Peaks | None = None
    attribution: int = 0
    forward: int = 0
    no_positions: str = ""

    def add(self, result: BatchResult) -> None:
        self.batches += 1
        self.first_warning = self.first_warning or next(iter(result.warnings), "")
        self.warnings += len(result.warnings)
        self.left_behind |= dict.fromkeys(result.left_behind)
        self.first_smaller = self.first_smaller or result.smaller
        self.smaller += bool(result.smaller)
        self.no_positions = self.no_positions or result.no_positions
        if result.memory and (self.memory is None or result.memory.predicted > self.memory.predicted):
            self.memory = result.memory
        self.attribution += result.attribution
        self.forward += result.forward

    def warned(self, batches: int) -> str:
        """Of an explainer with so many batches."""
        first = f"the first: {self.first_warning}"
        return f"warnings: {self.warnings}, batches: {batches}; {first}" if self.warnings else ""


def _of_batches(number: int, first: str, batches: int) -> str:
    return f"{number} of {batches} batches; the first: {first}" if number else ""


def _described(explainer: Explainer) -> tuple[str, str, object]:
    """The label and the settings of an explainer in words, and its state for the key of its store."""
    return safe_text(display_label(explainer)), safe_text(describe_settings(explainer)), state_of(explainer)
