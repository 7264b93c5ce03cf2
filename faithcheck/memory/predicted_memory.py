"""The peak memory of an attribution, predicted from the same attribution of one short example.

Nearly everything that is allocated is a tensor, and its axes are the features, the rows of a pass, or widths of the
model. So one run tells how each allocation grows. The short example has p features, and p is a prime that divides no
width of the model: an allocation whose size p divides once grows with the number of features n, twice with n². A size
that (p + 1) / 2, another prime, divides grows with n + 1, such as the rows of Leave-One-Out. If the explainer has a
``max_tokens``, it gets so few that a pass has a prime number of rows, too. What is allocated when does not depend on
the length, so the peak is that of the same allocations and frees, each with its new size.

The short example is long enough that explainers which treat short texts in another way treat it as a long one.
"""

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, cast

import torch
from torch import nn

from faithcheck.axioms.traces.model_snapshot import ModelSnapshot, restored
from faithcheck.explainers.protocol import Explainer
from faithcheck.memory.peak_memory import changes
from faithcheck.models.case import Case

LENGTHS = (193, 157, 73, 61, 37, 13)
"""Numbers p of features of a short example, the longest first: p and (p + 1) / 2 are prime."""
IN_PASSES = 157
"""The longest of them for an explainer with a ``max_tokens``: its many passes would take too long."""
SHORTER = 1.3
"""The example to predict for is at least so many times as long as the short one."""
ROWS = (5, 7, 11, 17)
"""Numbers of rows in a pass of a short example, all prime."""


@dataclass(frozen=True)
class ShortRun:
    """What was allocated and freed during the attribution of one short example."""

    batch: int  # how often the example is in the batch, once or twice
    features: int  # its number of features p
    rows: int  # the most rows of its passes for each of them, if the explainer has a ``max_tokens``; else 0
    changes: Sequence[int]  # the bytes that were allocated (> 0) and freed (< 0), in their order
    weights: frozenset[int]  # the bytes of the weights of the model: what has the size of a weight does not grow

    def peak(self, batch: int, features: int, rows: int) -> int:
        """The peak, in bytes, of so many examples of so many features, if a full pass has so many rows."""
        sizes = {size: self._size(size, batch, features, rows) for size in set(map(abs, self.changes))}
        used = accumulate(math.copysign(sizes[abs(change)], change) for change in self.changes)
        return round(max(used, default=0))

    def _size(self, size: int, batch: int, features: int, rows: int) -> float:
        """The new size of an allocation of this size."""
        p, growth = self.features, 1.0
        if not size or size in self.weights:
            return size
        if features != p:
            growth = (features / p) ** multiplicity(size, p)
            growth *= ((features + 1) / (p + 1)) ** multiplicity(size, (p + 1) // 2)
            if growth == 1:
                return size
        is_full_pass = self.rows > 1 and size % self.rows == 0
        return size * growth * (rows / self.rows if is_full_pass else batch) / self.batch


def multiplicity(number: int, prime: int) -> int:
    """How often a prime divides a number above 0: 0, 1, or 2 for twice or more."""
    return (number % prime == 0) + (number % prime**2 == 0)


class PeakPredictor:
    """Predicts the peak memory of explainers from one short run of each, on the repeated features of ``case``."""

    def __init__(self, model: nn.Module | ModelSnapshot, case: Case) -> None:
        self._snapshot = model if isinstance(model, ModelSnapshot) else ModelSnapshot(model)
        self._model, self._case = self._snapshot.model, case.select(torch.zeros_like(case.target[:1]))
        self._tensors = [*self._model.parameters(), *self._model.buffers()]
        self._widths = {width for tensor in (*self._tensors, case.inputs[0, 0]) for width in tensor.shape}
        self._runs: dict[tuple[str, int, int, int], ShortRun] = {}

    def peak(self, explainer: Explainer, batch: int, features: int) -> int:
        """The peak in bytes over what is in use, for examples of so many ``features``, padding included.

        Passes of an explainer with a ``max_tokens`` count as full, which is too much for few short examples. What it
        leaves behind is undone. Its errors are raised, on an example of the full length too.
        """
        max_tokens = getattr(explainer, "max_tokens", None) or 0
        most = IN_PASSES if max_tokens else LENGTHS[0]
        lengths = [p for p in LENGTHS if p <= most and SHORTER * p <= features and self._divides_no_width(p)]
        for short in (*lengths[:1], features):
            rows = min(self._rows(short), max(1, max_tokens // (batch * features))) if max_tokens else 0
            try:
                run = self._run(explainer, min(batch, 2), short, rows)
                return run.peak(batch, features, max(max_tokens // features, batch))
            except Exception:  # such as that of a model of images, which takes one number of patches
                if short == features:
                    raise
        raise AssertionError("the last length is that of the example")

    def _divides_no_width(self, length: int) -> bool:
        return all(width % length and width % ((length + 1) // 2) for width in self._widths)

    def _rows(self, features: int) -> int:
        """The number of rows in a pass of an example with so many features: a prime that divides no width."""
        widths = {*self._widths, features, features + 1}
        return next((prime for prime in ROWS if all(width % prime for width in widths)), ROWS[0])

    def _run(self, explainer: Explainer, batch: int, features: int, rows: int) -> ShortRun:
        """The short run; a batch of two examples shows what explainers do with several."""
        key = (explainer.name, batch, features, rows)
        if key not in self._runs:
            case = with_length(self._case.select(self._case.target.new_zeros(batch)), features)
            copied = copy.deepcopy(explainer)
            if rows:
                copied = with_max_tokens(copied, batch * rows * features)
            with restored(self._snapshot), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the attribution itself will warn
                reported = changes(lambda: copied.attribute(self._model, case), case.inputs.device)
            # Where the model has a width for the features, such as that of its positions, an activation has the size
            # of a weight, too.
            kept = (tensor for tensor in self._tensors if not {features, features + 1} & set(tensor.shape))
            self._runs[key] = ShortRun(batch, features, rows, reported, frozenset(tensor.nbytes for tensor in kept))
        return self._runs[key]


def with_length(case: Case, features: int) -> Case:
    """The case with so many features: its own in turn, repeated or cut."""
    index = torch.arange(features, device=case.inputs.device) % case.shape[1]
    chosen = case.with_features(lambda value: value.index_select(1, index))
    if "last" not in chosen.forward_arguments:
        return chosen
    last = torch.full_like(case.forward_arguments["last"], features - 1)  # the position that a decoder is read at
    return replace(chosen, forward_arguments={**chosen.forward_arguments, "last": last})


def with_max_tokens(explainer: Explainer, max_tokens: int) -> Explainer:
    """A copy of an explainer that has a ``max_tokens``, with this one."""
    if hasattr(explainer, "__dataclass_fields__"):
        return cast(Explainer, replace(cast(Any, explainer), max_tokens=max_tokens))
    copied: Any = copy.copy(explainer)
    copied.max_tokens = max_tokens
    return cast(Explainer, copied)
