"""Leave-One-Out of long texts: by sentence first, then by token in the sentences that matter.

1. Each part of the text, by default each sentence, is removed as a whole. This is exact, and takes one forward row a
   part.
2. The parts are opened in the order of the sizes of their effects, as long as the budget lasts: each token of an opened
   part is removed, alone.
3. A token of another part gets an equal share of the part's effect. How far this is from its Leave-One-Out is known for
   the opened parts. The squared error of a part is assumed to be proportional to its squared effect, with the factor of
   the last opened parts, which are the most similar to those that were not opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

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
    """Leave-One-Out by sentence, then by token in the sentences with the largest effects, within a budget.

    Attributes:
        budget: the share, in (0, 1], of full LOO's n + 1 forward rows for n features. The rows of the first step are
            spent whatever the budget.
        by: the parts of the first step: "word", "sentence" or "paragraph".
        removal: how features are removed; by default by the attention mask if the case has one, else they take their
            baseline values.
        max_tokens: the most features, padding included, in one forward pass; bounds memory, not the result.

    Raises:
        ValueError: a budget outside its range.
    """

    label: ClassVar[str] = "Hierarchical Leave-One-Out"
    summary: ClassVar[str] = "Leave-One-Out by sentence, then by token in the sentences that matter"

    budget: float = 0.1
    by: str = "sentence"
    removal: Removal | None = None
    max_tokens: int = 4608
    name: str = "hierarchical_loo"

    @property
    def settings(self) -> str:
        """The settings in words, for reports."""
        return f"by {self.by}, then by token in those with the largest effects, {self.budget:.0%} of full LOO's rows"

    def __post_init__(self) -> None:
        if not 0 < self.budget <= 1:
            raise ValueError(f"budget must be a share of full LOO's rows in (0, 1], got {self.budget!r}")

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
        rank, is_opened = opened_parts(effects, sizes, left)
        opened = of_features(is_opened, part)
        example, feature = opened.nonzero(as_tuple=True)
        values = shares.clone()
        if len(example):
            without = torch.nn.functional.one_hot(feature, case.shape[1]).bool()
            outputs = outputs_without(model, case, example, without, removal, self.max_tokens)
            values[example, feature] = output[example] - outputs
        last = is_opened & (rank >= is_opened.sum(1, keepdim=True) - ERROR_SAMPLE)
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


def opened_parts(effects: Tensor, sizes: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """Which parts of several features are opened: the largest effects first, as long as all their features fit.

    Args:
        effects: ``(batch, parts)``.
        sizes: ``(batch, parts)``, their numbers of features.
        left: ``(batch,)``, the rows that may be spent.

    Returns:
        The rank of each part, from 0, and whether it is opened; both ``(batch, parts)``.
    """
    order = effects.abs().masked_fill(sizes < 2, -1).argsort(dim=1, descending=True, stable=True)
    rank = order.argsort(dim=1)
    spent = sizes.masked_fill(sizes < 2, 0).gather(1, order).cumsum(1).gather(1, rank)
    return rank, (spent <= left.unsqueeze(1)) & (sizes > 1)


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
