"""Leave-One-Out of long texts: by sentence first, then by token in the sentences that matter.

1. Each part of the text, by default each sentence, is removed as a whole. This is exact, and takes one forward row a
   part.
2. Parts are opened in an order, each that still fits into the budget: each token of an opened part is removed, alone.
   The order serves one of two aims:

   - a map by token: the largest effects first;
   - the parts that matter most, by the sums of their tokens' Leave-One-Out (``top=5``): first those whose place among
     them is least sure. A part that is removed as a whole may have another effect than its tokens one by one, but
     seldom one so different that it passes a much larger one. So a part's place is the less sure, the nearer its
     effect is, as a ratio, to that of its rival: the first part outside for a part of the top, and its last for others.

3. A token of another part gets an equal share of the part's effect. How far this is from its Leave-One-Out is known for
   the opened parts. The squared error of a part is assumed to be proportional to its squared effect, with the factor of
   the last opened parts, which are the most similar to those that were not opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from faithcheck.explainers.loo.leave_one_out import effects_of_parts, parts_of, shared_among_features
from faithcheck.explainers.loo.removal import Removal, default_removal, outputs_without
from faithcheck.models.case import Case

ERROR_SAMPLE = 4
"""How many of the last opened parts measure the error of those that were not opened."""


@dataclass(frozen=True)
class HierarchyReport:
    """What a hierarchical Leave-One-Out spent and how far it may be off; one entry per example.

    Attributes:
        rows: ``(batch,)`` int64, forward rows spent.
        exact: ``(batch, features)`` bool, which features were removed alone; false at padding.
        error: ``(batch,)`` the estimated root mean square of map − LOO over the features, padding aside, in units of
            the output; 0 if all are exact, ∞ if no part with an effect was opened.
    """

    rows: Tensor
    exact: Tensor
    error: Tensor


@dataclass(frozen=True)
class HierarchicalLeaveOneOut:
    """Leave-One-Out by sentence, then by token in the sentences that matter, within a budget.

    Attributes:
        budget: the share, in (0, 1], of full LOO's n + 1 forward rows for n features. The rows of the first step are
            spent whatever the budget.
        by: the parts of the first step: "word", "sentence" or "paragraph".
        top: how many parts are to be found: those whose place among the ``top`` is least sure are opened first. By
            default the largest effects are, for a map by token.
        removal: how features are removed; by default by the attention mask if the case has one, else they take their
            baseline values.
        max_tokens: the most features, padding included, in one forward pass; bounds memory, not the result.

    Raises:
        ValueError: a budget or a number of parts outside its range.
    """

    label: ClassVar[str] = "Hierarchical Leave-One-Out"
    summary: ClassVar[str] = "Leave-One-Out by sentence, then by token in the sentences that matter"

    budget: float = 0.1
    by: str = "sentence"
    top: int | None = None
    removal: Removal | None = None
    max_tokens: int = 4608
    name: str = "hierarchical_loo"

    @property
    def settings(self) -> str:
        """The settings in words, for reports."""
        opened = "the largest effects" if self.top is None else f"the least sure places among the top {self.top}"
        return f"by {self.by}, then by token in those with {opened}, {self.budget:.0%} of full LOO's rows"

    def __post_init__(self) -> None:
        if not 0 < self.budget <= 1:
            raise ValueError(f"budget must be a share of full LOO's rows in (0, 1], got {self.budget!r}")
        if self.top is not None and self.top < 1:
            raise ValueError(f"top must be at least 1 part, got {self.top}")

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The attribution ``(batch, features)``, 0 at padding; raises as `attribute_with_report`."""
        return self.attribute_with_report(model, case)[0]

    def attribute_with_report(self, model: nn.Module, case: Case) -> tuple[Tensor, HierarchyReport]:
        """The attribution ``(batch, features)``, 0 at padding, and what it cost.

        Raises:
            Unsupported: from the removal, or the case does not say which parts its features belong to.
        """
        removal, part = self.removal or default_removal(case), parts_of(case, self.by)
        effects, output = effects_of_parts(model, case, part, removal, self.max_tokens)
        shares, sizes = shared_among_features(effects, part), sizes_of_parts(part)
        first_rows, features = 1 + (sizes > 0).sum(1), case.unpadded.sum(1)
        # 10 % of 250 rows are 25, whatever the last digit of the float 0.1.
        left = ((features + 1) * self.budget + 1e-9).floor().long() - first_rows
        order = by_size(effects) if self.top is None else by_doubt(effects, self.top)
        number = opened_parts(order, sizes, left)
        is_opened, last = number > 0, number > (number.amax(1, keepdim=True) - ERROR_SAMPLE).clamp(min=0)
        opened = of_features(is_opened, part)
        example, feature = opened.nonzero(as_tuple=True)
        values = shares.clone()
        if len(example):
            without = one_hot(feature, case.shape[1]).bool()
            outputs = outputs_without(model, case, example, without, removal, self.max_tokens)
            values[example, feature] = output[example] - outputs
        off = (values - shares).square() * of_features(last, part)
        error = estimated_error(off.sum(1), effects.square(), last, ~is_opened & (sizes > 1))
        exact = opened | of_features(sizes == 1, part)
        return values, HierarchyReport(first_rows + opened.sum(1), exact, error / features.sqrt())


def sizes_of_parts(part: Tensor) -> Tensor:
    """How many features each part has: ``(batch, features)`` numbers from `parts_of` to ``(batch, parts)``."""
    numbers = torch.arange(max(1, int(part.max()) + 1), device=part.device)
    return (part.unsqueeze(2) == numbers).sum(1)


def of_features(parts: Tensor, part: Tensor) -> Tensor:
    """Of each feature, what holds of its part: ``(batch, parts)`` bool to ``(batch, features)``; false at padding."""
    return parts.gather(1, part.clamp(min=0)) & (part >= 0)


def by_size(effects: Tensor) -> Tensor:
    """The parts, the largest effects first: ``(batch, parts)`` effects to ``(batch, parts)`` indices."""
    return effects.abs().argsort(dim=1, descending=True, stable=True)


def by_doubt(effects: Tensor, top: int) -> Tensor:
    """The parts, the least sure place among the ``top`` first: ``(batch, parts)`` effects to as many indices.

    Where the parts are no more than ``top``, or the others have no effect, no place is in doubt: the order is by size.
    """
    order = by_size(effects)
    sizes = pad(effects.abs().gather(1, order), (0, top + 1))
    rival = sizes[:, top - 1 : top].expand_as(sizes).clone()
    rival[:, :top] = sizes[:, top : top + 1]
    smaller, larger = torch.minimum(sizes, rival), torch.maximum(sizes, rival)
    doubt = (smaller / larger.clamp(min=torch.finfo(sizes.dtype).tiny))[:, : order.shape[1]]
    return order.gather(1, doubt.argsort(dim=1, descending=True, stable=True))


def opened_parts(order: Tensor, sizes: Tensor, left: Tensor) -> Tensor:
    """Which parts of several features are opened: in an order, each whose features still fit.

    Args:
        order: ``(batch, parts)``, the indices of the parts.
        sizes: ``(batch, parts)``, their numbers of features.
        left: ``(batch,)``, the rows that may be spent.

    Returns:
        ``(batch, parts)`` int64: 1 for the part that is opened first, 2 for the second, …, 0 for those that are not.
    """
    number, left = torch.zeros_like(sizes), left.unsqueeze(1)
    for part in torch.split(order, 1, dim=1):
        size = sizes.gather(1, part)
        fits = (size > 1) & (size <= left)
        number.scatter_(1, part, (number.amax(1, keepdim=True) + 1) * fits)
        left = left - size * fits
    return number


def estimated_error(off: Tensor, squares: Tensor, sample: Tensor, unopened: Tensor) -> Tensor:
    """The root of the estimated squared error of all unopened parts, ``(batch,)``; 0 if there is none.

    Args:
        off: ``(batch,)``, the squared error of the sample, summed over its features.
        squares: ``(batch, parts)``, the squared effect of each part.
        sample: ``(batch, parts)`` bool, the last opened parts.
        unopened: ``(batch, parts)`` bool, the parts of several features that were not opened.
    """
    factor = off / (squares * sample).sum(1)  # 0 / 0 if none was opened
    error = (factor * (squares * unopened).sum(1)).sqrt()
    return torch.where(unopened.any(1), error.nan_to_num(torch.inf, torch.inf), torch.zeros_like(error))


TOP_FIVE = HierarchicalLeaveOneOut(top=5, name="hierarchical_loo_top_five")
"""On the command line: ``--explainer faithcheck.explainers.loo.hierarchical:TOP_FIVE``."""
