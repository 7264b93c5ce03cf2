"""How far two runs differ: relative, each output and each feature on a scale of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from faithcheck.axioms.equivalence_tests.forward_and_gradient import Computed
from faithcheck.models.case import Case

UNITS = 100
"""The units in the last place, of the largest term, by which two computations of one sum may differ."""


class Difference(NamedTuple):
    """A difference of two runs."""

    gap: float  # relative; NaN if an output or a gradient is
    where: str  # what differs most: "output 1", or "the gradient of output 1 at feature 2"
    row: int  # the example in which it does


@dataclass(frozen=True)
class Scale:
    """Typical sizes of outputs and gradients.

    If terms cancel, a number near 0 has the round-off of what was summed. So each difference is relative to the larger
    of the two numbers, but at least to the median of its output, or of its output's gradient at its feature, over the
    rows. If that is 0 too, or nearly, all rows cancel: the least scale is the size whose tolerance is the round-off,
    `UNITS` units in the last place, of the largest median.
    """

    outputs: Tensor  # (outputs,), the least scale of each
    gradient: Tensor  # (outputs, features), that of the gradient of each output at each feature

    @classmethod
    def of(cls, computed: Computed, target: Tensor, dtype: torch.dtype, tolerance: float) -> Scale:
        """The scale of a batch whose numbers have the round-off of ``dtype``; ``target`` is ``(batch,)``."""
        outputs, sizes = computed.outputs.abs().nan_to_num(), size(computed.gradient).nan_to_num()
        gradient = sizes.new_zeros(outputs.shape[1], sizes.shape[1])
        for output in set(target.tolist()):
            gradient[output] = sizes[target == output].median(0).values
        medians, units = outputs.median(0).values, UNITS * torch.finfo(dtype).eps / tolerance
        return cls(medians.clamp_min(units * medians.max()), gradient.clamp_min(units * gradient.max()))

    def difference(self, left: Computed, right: Computed, case: Case) -> Difference:
        """The largest relative difference of two runs on a case; 0/0 counts as 0."""
        outputs = relative(left.outputs - right.outputs, left.outputs, right.outputs, self.outputs)
        difference = size(left.gradient - right.gradient)
        gradient = relative(difference, size(left.gradient), size(right.gradient), self.gradient[case.target])
        row, output = divmod(int(outputs.argmax()), outputs.shape[1])
        largest = Difference(float(outputs.max()), f"output {output}", row)
        if largest.gap >= float(gradient.max()) or math.isnan(largest.gap):
            return largest
        row, feature = divmod(int(gradient.argmax()), gradient.shape[1])
        where = f"the gradient of output {int(case.target[row])} at feature {feature}"
        return Difference(float(gradient.max()), where, row)


def relative(difference: Tensor, left: Tensor, right: Tensor, least: Tensor) -> Tensor:
    """|difference| / max(|left|, |right|, least), entry by entry; 0/0 counts as 0."""
    scale = torch.maximum(torch.maximum(left.abs(), right.abs()), least)
    return torch.where(difference == 0, 0, difference.abs() / scale)


def size(gradient: Tensor) -> Tensor:
    """The largest entry of each feature: ``(batch, features, …)`` to ``(batch, features)``."""
    return gradient.abs().reshape(*gradient.shape[:2], -1).amax(2)


def within(gap: float, tolerance: float) -> bool:
    """Whether a gap is round-off; NaN is not."""
    return not math.isnan(gap) and gap <= tolerance
