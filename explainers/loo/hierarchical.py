"""Leave-One-Out of long texts: by sentence first, then by token in the sentences that matter.

1. Each part of the text, by default each sentence, is removed as a whole, which takes one forward row a part. The
   equal share of a part's effect is a first estimate of each of its tokens. A cheap explainer, the ``proxy``, gives a
   second one.
2. Parts are opened one after the other, as long as they fit into the budget: each token of an opened part is removed,
   alone, which is exact. The order serves one of two aims:

   - a map by token: the largest parts first;
   - the parts that matter most, by the sums of their tokens' Leave-One-Out (``top=5``): first the part whose place
     among them is least sure. A part that is removed as a whole may have another effect than its tokens one by one: of
     two words that stand for each other, neither is missed alone. A proxy errs for other reasons. So how far the two
     estimates are apart says how far a part may still move, and its place is the less sure, the fewer such steps lie
     between it and its rival: the first part outside for a part of the top, and its last for others.

3. The two estimates are weighted by how well they met the sums of the opened parts. A token of a part that was not
   opened keeps the weighted estimate. How far it is off is known for the opened parts. The squared error of a part is
   assumed to be proportional to its squared size, with the factor of the last opened parts, which are the most similar
   to those that were not opened.

After AttriBoT, arXiv 2411.15102, which has a hierarchy and a smaller model as a proxy.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.loo.leave_one_out import effects_of_parts, parts_of, shared_among_features
from faithcheck.explainers.loo.outputs import outputs_without
from faithcheck.explainers.loo.removal import Removal, default_removal
from faithcheck.explainers.protocol import Explainer, attribution_of, in_standard_modes
from faithcheck.models.case import Case

ERROR_SAMPLE = 4
"""How many of the last opened parts measure the error of those that were not opened."""

PROXY_ROWS = 3
"""Rows of a proxy: one forward, one backward, and the readout gate's copied rows, which are as many as one has."""


@dataclass(frozen=True)
class HierarchyReport:
    """What a hierarchical Leave-One-Out spent and how far it may be off; one entry per example.

    Attributes:
        rows: ``(batch,)`` int64, forward rows spent, `PROXY_ROWS` for a proxy.
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
            default the largest are, for a map by token. Special features are in no place.
        proxy: an explainer of one forward and one backward pass, such as ``ReadoutGate()``; by default none.
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
    proxy: Explainer | None = None
    removal: Removal | None = None
    max_tokens: int = 4608
    name: str = "hierarchical_loo"

    @property
    def settings(self) -> str:
        """The settings in words, for reports."""
        opened = "the largest effects" if self.top is None else f"the least sure places among the top {self.top}"
        proxy = "" if self.proxy is None else f", estimated by {self.proxy.name} too"
        return f"by {self.by}{proxy}, then by token in those with {opened}, {self.budget:.0%} of full LOO's rows"

    def __post_init__(self) -> None:
        if not 0 < self.budget <= 1:
            raise ValueError(f"budget must be a share of full LOO's rows in (0, 1], got {self.budget!r}")
        if self.top is not None and self.top < 1:
            raise ValueError(f"top must be at least 1 part, got {self.top}")

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The attribution ``(batch, features)``, 0 at padding; raises as `attribute_with_report`."""
        return self.attribute_with_report(model, case)[0]

    @in_standard_modes
    def attribute_with_report(self, model: nn.Module, case: Case) -> tuple[Tensor, HierarchyReport]:
        """The attribution ``(batch, features)``, 0 at padding, and what it cost.

        Raises:
            Unsupported: from the removal or the proxy, or the case does not say which parts its features belong to.
        """
        removal, part = self.removal or default_removal(case), parts_of(case, self.by)
        effects, output = effects_of_parts(model, case, part, removal, self.max_tokens)
        estimates = [shared_among_features(effects, part)]
        if self.proxy is not None:
            estimates.append(attribution_of(self.proxy, model, case))
        parts = PartlyOpened(case, part, torch.stack(estimates))
        rows = 1 + (parts.sizes > 0).sum(1) + PROXY_ROWS * (len(estimates) - 1)
        # 10 % of 250 rows are 25, whatever the last digit of the float 0.1.
        left = ((case.unpadded.sum(1) + 1) * self.budget + 1e-9).floor().long() - rows
        while True:
            example, feature = parts.open_next(self.top, left).nonzero(as_tuple=True)
            if not len(example):
                break
            without = one_hot(feature, case.shape[1]).bool()
            outputs = outputs_without(model, case, example, without, removal, self.max_tokens)
            parts.exact[example, feature] = (output[example] - outputs).to(parts.exact.dtype)
            opened = torch.bincount(example, minlength=len(left))
            rows, left = rows + opened, left - opened
        return parts.values().to(case.inputs.dtype), HierarchyReport(rows, parts.is_exact, parts.error())


class PartlyOpened:
    """The parts of a batch of examples, of which some are opened.

    ``part`` is from `parts_of`. The first of the ``estimates``, ``(estimates, batch, features)``, is exact for parts of
    one feature. ``sizes``, ``(batch, parts)``, is how many features each part has, and ``number``, likewise, is 1 for
    the part that was opened first, 2 for the second, …, 0 for the others. ``exact``, ``(batch, features)``, has the
    effects of features that were removed alone.
    """

    def __init__(self, case: Case, part: Tensor, estimates: Tensor) -> None:
        self.case, self.part, self.estimates = case, part, estimates
        numbers = torch.arange(max(1, int(part.max()) + 1), device=part.device)
        self.sizes = (part.unsqueeze(2) == numbers).sum(1)
        self.number = torch.zeros_like(self.sizes)
        self.exact = estimates[0].clone()
        self.sums_of_estimates = torch.stack([self.sums(estimate) for estimate in estimates])

    @property
    def is_exact(self) -> Tensor:
        """Which features were removed alone, ``(batch, features)`` bool; false at padding."""
        return self.of_features((self.number > 0) | (self.sizes == 1))

    def of_features(self, parts: Tensor) -> Tensor:
        """What holds of each feature's part: ``(batch, parts)`` bool to ``(batch, features)``; false at padding."""
        return parts.gather(1, self.part.clamp(min=0)) & (self.part >= 0)

    def sums(self, values: Tensor) -> Tensor:
        """The sum of each part's values, special features aside: ``(batch, features)`` to ``(batch, parts)``."""
        zeros = values.new_zeros(self.sizes.shape)
        return zeros.scatter_add_(1, self.part.clamp(min=0), values.masked_fill(~self.case.non_special, 0))

    def estimate(self) -> Tensor:
        """The estimates, weighted by the inverse of their squared error of the sums of the opened parts."""
        off = self.sums_of_estimates - self.sums(self.exact)
        errors = (off * (self.number > 0)).square().sum(2)
        weights = 1 / errors.clamp(min=torch.finfo(errors.dtype).tiny)
        weights = weights / weights.sum(0)
        return (weights.unsqueeze(2) * self.estimates).sum(0)

    def values(self) -> Tensor:
        """The map so far, ``(batch, features)``."""
        return torch.where(self.is_exact, self.exact, self.estimate()).masked_fill(self.part < 0, 0)

    def open_next(self, top: int | None, left: Tensor) -> Tensor:
        """Open each example's next part that fits into the rows left; return its features, ``(batch, features)``."""
        values = self.sums(self.values())
        order = by_size(values) if top is None else by_doubt(values, self.spread(), top)
        fits = (self.sizes > 1) & (self.number == 0) & (self.sizes <= left.unsqueeze(1))
        first = fits.gather(1, order).to(torch.int64).argmax(1, keepdim=True)
        opened = torch.zeros_like(fits).scatter_(1, order.gather(1, first), True) & fits
        self.number = torch.where(opened, self.number.amax(1, keepdim=True) + 1, self.number)
        return self.of_features(opened)

    def spread(self) -> Tensor:
        """How far each part's sum may still move, ``(batch, parts)``: as far as its estimates are apart.

        A single estimate may move by as much as its size.
        """
        sums = self.sums_of_estimates
        return sums[0].abs() if len(sums) == 1 else sums.amax(0) - sums.amin(0)

    def error(self) -> Tensor:
        """The estimated root mean square error of the map, ``(batch,)``; see `HierarchyReport`."""
        unopened = (self.number == 0) & (self.sizes > 1)
        sample = self.number > (self.number.amax(1, keepdim=True) - ERROR_SAMPLE).clamp(min=0)
        off = (self.exact - self.estimate()).square() * self.of_features(sample)
        squares = self.sums_of_estimates.square().amax(0)
        factor = off.sum(1) / (squares * sample).sum(1)  # 0 / 0 if none was opened
        error = (factor * (squares * unopened).sum(1) / self.case.unpadded.sum(1)).sqrt()
        return torch.where(unopened.any(1), error.nan_to_num(torch.inf, torch.inf), torch.zeros_like(error))


def by_size(sums: Tensor) -> Tensor:
    """The parts, the largest first: ``(batch, parts)`` sums to ``(batch, parts)`` indices."""
    return sums.abs().argsort(dim=1, descending=True, stable=True)


def by_doubt(sums: Tensor, spread: Tensor, top: int) -> Tensor:
    """The indices of the parts, ``(batch, parts)``, the least sure place among the ``top`` first.

    ``spread`` is how far the sum of each may move. A part that cannot move comes last.
    """
    order = by_size(sums)
    sizes = pad(sums.abs().gather(1, order), (0, top + 1))
    rival = sizes[:, top - 1 : top].expand_as(sizes).clone()
    rival[:, :top] = sizes[:, top : top + 1]
    steps = (sizes - rival).abs()[:, : order.shape[1]] / spread.gather(1, order)
    return order.gather(1, steps.nan_to_num(torch.inf, torch.inf).argsort(dim=1, stable=True))


TOP_FIVE = HierarchicalLeaveOneOut(top=5, proxy=ReadoutGate(), name="hierarchical_loo_top_five")
"""On the command line: ``--explainer faithcheck.explainers.loo.hierarchical:TOP_FIVE``."""
