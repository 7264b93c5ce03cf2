"""Leave-One-Out within a budget: exact for the features that matter, by gates for the others, with an estimated error.

Derived here; figures in docs/results/remedies.md:

1. One forward and one backward pass give the finite effect φ_i of every feature's gate (`FiniteMaskGate`), the estimate
   of LOO_i = f(x) − f(x without i). They also give its size before rows and layers cancel,

       s_i = Σ over layers and rows |Σ over heads of what attention row j loses without key i|.

   φ_i is the same sum with signs.
2. s_i says how far φ_i may be off: what cancels to first order need not cancel beyond. So features are removed in the
   order of s_i. Special features come first: they draw much attention, and there gates are weakest. Before them come
   attention sinks (`faithcheck.explainers.gates.sinks`), even beyond the budget: without their rows the map would say
   nothing. Beside a sink no estimate exceeds the largest exact change.
3. For the features that are not removed, |LOO_i − estimate_i| is assumed to be proportional to s_i, with the factor of
   the last `ERROR_SAMPLE` features that were removed. These are the most similar: features removed before them have
   larger effects, and larger errors in proportion.
4. With enough rows the estimates become better. Groups of the remaining features are removed halfway, each in a pass of
   its own, as in `GroupedMaskGate`. Their effects are small, so they hardly disturb each other. The last
   `ERROR_SAMPLE` removed features are among them, to measure the error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.gates.attention_gates import GatedAttention
from faithcheck.explainers.gates.gate import GATE_CLAIMS, input_gate_effects
from faithcheck.explainers.gates.gate_effects import clear_own_rows
from faithcheck.explainers.gates.grouped_mask_gate import assign_groups, combine_own_and_others, own_and_other_groups
from faithcheck.explainers.gates.sinks import IS_EXACT, cut_off, is_sink, sink_shares
from faithcheck.explainers.loo.budget_expectations import TWO_FIFTHS
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.outputs import outputs_without
from faithcheck.explainers.loo.removal import Removal, Replacement, default_removal
from faithcheck.explainers.protocol import Unsupported, in_standard_modes
from faithcheck.explainers.refused_modules import flex_attention, quantised_weights, refuse_modules
from faithcheck.models.case import Case, select_target
from faithcheck.models.expectation import Expectations

ERROR_SAMPLE = 4
"""How many of the last removed features measure the error of the features that were not removed."""

GATE_ROWS = 2
"""Rows of one gate: a forward row, and a backward row, which costs as much because no weight's gradient is computed."""

MIN_ROWS_FOR_GROUPS = 24
"""From this budget on, half of the rows go to groups: with fewer rows, a group is too large to help."""


@dataclass(frozen=True)
class BudgetReport:
    """What a budgeted Leave-One-Out spent and how far it may be off; one entry per example.

    Attributes:
        rows: ``(batch,)`` int64, forward rows spent; a backward row counts as one.
        exact: ``(batch, features)`` bool, which features were removed; false at padding.
        error: ``(batch,)`` the estimated root mean square of map − LOO over the features, padding aside, in units of
            the output; 0 if all are exact, ∞ if too few rows were left to estimate it.
        correlation: ``(batch,)`` the estimated Pearson correlation with LOO over features that are neither special nor
            padding; 1 if all are exact, 0 if too few rows were left to estimate it.
        estimate: the explainer that estimates the other features, one per example: "finite_mask_gate",
            "grouped_mask_gate", or "" if all are exact.
    """

    rows: Tensor
    exact: Tensor
    error: Tensor
    correlation: Tensor
    estimate: tuple[str, ...]


@builtin("gate")
@dataclass(frozen=True)
class BudgetedLeaveOneOut:
    """Leave-One-Out for the features with the largest effects, mask gates for the others.

    Without a target every example gets the rows of its budget. With a target, features are removed one at a time until
    the estimate reaches it, or the budget is spent. Over many texts a target uses rows better: it gives them to the
    texts that need them. Features that were removed are exact to round-off; the estimates are first-order.

    Attributes:
        budget: forward rows per example: an integer, or a share in (0, 1] of full LOO's n + 1 rows for n features. The
            gate's `GATE_ROWS` rows are spent whatever the budget, and a row for each attention sink.
        error: stop once the estimated error is at most this, in units of the output.
        correlation: stop once the estimated correlation with LOO is at least this, in (0, 1).
        removal: how features are removed: AttentionMask, Replacement or Deletion; by default the first if the case has
            an attention mask, else the second.
        max_tokens: the most features, padding included, in one forward pass; bounds memory, not the result.

    Raises:
        ValueError: a budget, an error or a correlation outside its range.
    """

    label: ClassVar[str] = "Budgeted Leave-One-Out"
    summary: ClassVar[str] = (
        "Leave-One-Out for the features that matter, gates for the others, in a budget; derived here"
    )

    budget: int | float = 0.4
    error: float | None = None
    correlation: float | None = None
    removal: Removal | None = None
    max_tokens: int = 2048
    name: str = "budgeted_loo"

    @property
    def claims(self) -> frozenset[str]:
        """What gates claim, without scale if the target is an error in units of the output.

        Linearity and symmetry are not among them: which features are exact depends on the function, and of two equal
        features only one may be exact.
        """
        claims = GATE_CLAIMS | {"bounds", "full_removal"}
        return claims if self.error is None else claims - {"scale"}

    @property
    def expected(self) -> Expectations:
        """What theory expects on the suite's models: closed forms of the default budget."""
        settings = (self.budget, self.error, self.correlation, self.removal)
        return TWO_FIFTHS if settings == (0.4, None, None, None) else {}

    @property
    def settings(self) -> str:
        """The settings in words, for reports."""
        rows = f"{self.budget:.0%} of full LOO's rows" if isinstance(self.budget, float) else f"{self.budget} rows"
        targets = {"error": self.error, "correlation": self.correlation}
        return "; ".join([rows, *(f"to a {name} of {value:g}" for name, value in targets.items() if value)])

    def __post_init__(self) -> None:
        is_rows = isinstance(self.budget, int) and not isinstance(self.budget, bool)
        is_share = isinstance(self.budget, float) and self.budget <= 1
        if not (is_rows or is_share) or not self.budget > 0:
            raise ValueError(f"budget must be rows, an integer ≥ 1, or a share, a float in (0, 1], got {self.budget!r}")
        if self.error is not None and not self.error >= 0:
            raise ValueError(f"error must be at least 0, got {self.error!r}")
        if self.correlation is not None and not 0 < self.correlation < 1:
            raise ValueError(f"correlation must be between 0 and 1, got {self.correlation!r}")
        if isinstance(self.removal, str):
            raise ValueError(f"removal must be AttentionMask(), Replacement() or Deletion(), got {self.removal!r}")

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The attribution ``(batch, features)``, 0 at padding; raises as `attribute_with_report`."""
        return self.attribute_with_report(model, case)[0]

    @in_standard_modes
    def attribute_with_report(self, model: nn.Module, case: Case) -> tuple[Tensor, BudgetReport]:
        """The attribution ``(batch, features)``, 0 at padding, and what it cost.

        With full LOO's budget the result is LOO's: without a target to the last bit, with a target that is not reached
        earlier up to round-off, at the cost of one row more than LOO's, the gate's.

        Raises:
            Unsupported: from the removal; a removal that no gate estimates; or the model has no softmax attention over
                the features, or hides it, or has quantised weights.
        """
        unpadded = case.unpadded.sum(1)
        rows = self.allowed_rows(unpadded)
        is_full = rows > unpadded if self.error is None and self.correlation is None else torch.zeros_like(rows).bool()
        if is_full.all():
            attribution = LeaveOneOut(self.removal_for(case), self.max_tokens).attribute(model, case)
            zeros = attribution.new_zeros(len(rows))
            return attribution, BudgetReport(unpadded + 1, case.unpadded, zeros, zeros + 1, ("",) * len(rows))
        refuse_modules(model, flex_attention, quantised_weights)
        if not is_full.any():
            progress = RemovalProgress(model, case, self.removal_for(case), self.max_tokens)
            self.spend(progress, rows)
            return progress.attribution(), progress.report()
        parts = (self.attribute_with_report(model, case.select(examples)) for examples in split_examples(is_full))
        return join_examples(is_full, *parts)

    def allowed_rows(self, unpadded: Tensor) -> Tensor:
        """The budget ``(batch,)`` of examples with this number of features, padding aside; at most full LOO's."""
        if isinstance(self.budget, int):
            return (unpadded + 1).clamp(max=self.budget)
        # 10 % of 250 rows are 25, whatever the last digit of the float 0.1.
        return ((unpadded + 1).double() * self.budget + 1e-9).floor().to(unpadded.dtype)

    def removal_for(self, case: Case) -> Removal:
        """The removal, or the default for the case."""
        return self.removal or default_removal(case)

    def spend(self, progress: RemovalProgress, rows: Tensor) -> None:
        """Spend this number of rows ``(batch,)`` on each example, or fewer if the targets are reached."""
        unpadded = progress.case.unpadded.sum(1)
        groups = torch.where((rows >= MIN_ROWS_FOR_GROUPS) & (rows <= unpadded), rows // 4, 0)
        most = torch.where(rows <= unpadded, (rows - GATE_ROWS * (1 + groups)).clamp(min=0), unpadded)
        most = torch.maximum(most, progress.sinks.sum(1))
        if self.error is None and self.correlation is None:
            progress.remove(most)
        else:
            needed = progress.removed_first.sum(1) + ERROR_SAMPLE  # to estimate the error
            progress.remove(torch.minimum(most, needed))
            while (unfinished := ~self.is_reached(progress) & (progress.removed < most)).any():
                progress.remove(progress.removed + unfinished.to(most.dtype))
            groups = groups.masked_fill(self.is_reached(progress), 0)
        progress.estimate_in_groups(groups)

    def is_reached(self, progress: RemovalProgress) -> Tensor:
        """Whether the estimates reach every target, ``(batch,)`` bool."""
        error, correlation = progress.estimated_errors()
        reached = torch.ones_like(error, dtype=torch.bool)
        if self.error is not None:
            reached &= error <= self.error
        return reached if self.correlation is None else reached & (correlation >= self.correlation)


class RemovalProgress:
    """A batch of examples whose features are removed one after the other, in the order of s_i.

    ``changes`` has f(x) − f(x without i) where the feature was removed, else 0; ``gates`` what the gates estimate;
    ``sizes`` s_i; ``removed_first`` the sinks and special features: ``(batch, features)`` each. ``removed``,
    ``(batch,)``, is how many features were removed, and ``groups`` in how many groups the gates ran, 0 for the finite
    gate.
    """

    def __init__(self, model: nn.Module, case: Case, removal: Removal, max_tokens: int) -> None:
        self.model, self.removal, self.max_tokens = model, removal, max_tokens
        self.gates_attention = is_gated_in_attention(removal)
        if isinstance(removal, Replacement):  # a feature halfway to being removed is halfway to its replacement
            case = replace(case, baseline=removal.value(case).expand_as(case.inputs))
        self.case = case
        self.removed = torch.zeros(len(case.inputs), dtype=torch.int64, device=case.inputs.device)
        self.groups = torch.zeros_like(self.removed)
        self.gates, self.sizes, self.outputs, shares = self._run_gates(torch.arange(len(case.inputs)))
        self.changes = torch.zeros_like(self.gates)
        self.sinks = is_sink(case, shares, IS_EXACT)
        self.removed_first = self.sinks | (case.unpadded & ~case.non_special)
        order = self.sizes.masked_fill(self.removed_first, torch.finfo(self.sizes.dtype).max)
        order = order.masked_fill(self.sinks, torch.inf).masked_fill(~case.unpadded, -torch.inf)
        self.rank = order.argsort(dim=1, descending=True, stable=True).argsort(dim=1)

    @property
    def exact(self) -> Tensor:
        """Which features were removed, ``(batch, features)`` bool."""
        return self.rank < self.removed.unsqueeze(1)

    def remove(self, counts: Tensor) -> None:
        """Remove the first ``counts`` features ``(batch,)`` of each example, all examples in the same passes."""
        before = self.exact
        self.removed = torch.minimum(counts, self.case.unpadded.sum(1))
        example, feature = (self.exact & ~before).nonzero(as_tuple=True)
        if not len(example):
            return
        without = torch.nn.functional.one_hot(feature, self.case.shape[1]).bool()
        outputs = outputs_without(self.model, self.case, example, without, self.removal, self.max_tokens)
        self.changes[example, feature] = (self.outputs[example] - outputs).to(self.changes.dtype)

    def estimate_in_groups(self, groups: Tensor) -> None:
        """Estimate the other features, and the last removed ones, in this number of groups ``(batch,)``; 0 for none."""
        self.groups = groups
        self.gates = self.gates.clone()
        for i in groups.nonzero().flatten().tolist():
            members = self.case.unpadded[i] & (self.error_sample | ~self.exact)[i]
            group = assign_groups(members.unsqueeze(0), int(groups[i]))
            halfway = group == torch.arange(int(groups[i]), device=group.device).unsqueeze(1)
            effects = self._run_gates(torch.full((len(halfway),), i), halfway)[0]
            combined = combine_own_and_others(*own_and_other_groups(effects, halfway))
            self.gates[i] = torch.where(members, combined, self.gates[i])

    @property
    def estimate(self) -> Tensor:
        """``(batch, features)`` what the gates estimate, beside a sink no more than the largest exact change."""
        return cut_off(self.gates, self.changes, self.sinks)

    @property
    def value(self) -> Tensor:
        """``(batch, features)`` the map so far: exact where the feature was removed, else the estimate."""
        return torch.where(self.exact, self.changes, self.estimate)

    @property
    def error_sample(self) -> Tensor:
        """The last removed features, those removed first aside, at most `ERROR_SAMPLE`: ``(batch, features)`` bool."""
        return self.exact & ~self.removed_first & (self.rank >= self.removed.unsqueeze(1) - ERROR_SAMPLE)

    def estimated_errors(self) -> tuple[Tensor, Tensor]:
        """The estimated error and the estimated correlation, both ``(batch,)``; see `BudgetReport`.

        1. The mean squared error of the sample is scaled by the ratio of mean s², of the estimated features to the
           sample, at most 1. Times their number it estimates the squared error E² of the map.
        2. The error is √(E² / n) for n features, and the correlation is √(1 − E² / Σ (map − mean)²).
        """
        estimated, sample = self.case.unpadded & ~self.exact, self.error_sample
        value = self.value
        sample_error = masked_mean((value - self.estimate).square(), sample)
        sample_size, size = (masked_mean(self.sizes.square(), where) for where in (sample, estimated))
        ratio = torch.where(size < sample_size, size / sample_size, 1)
        squared_error = sample_error * ratio * estimated.sum(1)
        non_special = self.case.non_special
        deviation = value - masked_mean(value, non_special).unsqueeze(1)
        spread = masked_mean(deviation.square(), non_special) * non_special.sum(1)
        is_unknown = estimated.any(1) & ~(sample.any(1) & (self.exact | ~self.removed_first).all(1))
        error = (squared_error / self.case.unpadded.sum(1)).sqrt().masked_fill(is_unknown, torch.inf)
        correlation = (1 - squared_error / spread).clamp(min=0).sqrt().nan_to_num(0.0).masked_fill(is_unknown, 0)
        return error, correlation.masked_fill(~(squared_error > 0) & ~is_unknown, 1)

    def attribution(self) -> Tensor:
        """The map ``(batch, features)``, 0 at padding."""
        return self.value.masked_fill(~self.case.unpadded, 0).to(self.case.inputs.dtype)

    def report(self) -> BudgetReport:
        """What was spent, and how far the map may be off."""
        error, correlation = self.estimated_errors()
        has_estimates = (self.case.unpadded & ~self.exact).any(1).tolist()
        names = [
            ("grouped_mask_gate" if has_groups else "finite_mask_gate") if estimated else ""
            for estimated, has_groups in zip(has_estimates, (self.groups > 0).tolist(), strict=True)
        ]
        rows = GATE_ROWS * (1 + self.groups) + self.removed
        return BudgetReport(rows, self.exact, error, correlation, tuple(names))

    def _run_gates(self, example: Tensor, halfway: Tensor | None = None) -> tuple[Tensor, ...]:
        """Finite effects φ_i and sizes s_i ``(rows, features)``, the outputs ``(rows,)``, and the `sink_shares`.

        The features in ``halfway``, ``(rows, features)`` bool, are halfway to being removed from each row's example.
        """
        parts, rows_per_pass = [], max(1, self.max_tokens // self.case.shape[1])
        split_effects = split_attention_effects if self.gates_attention else split_input_effects
        for rows in torch.split(torch.arange(len(example)), rows_per_pass):
            case = self.case.select(example[rows].to(self.case.inputs.device))
            part = None if halfway is None else halfway[rows.to(halfway.device)]
            effects, *others = split_effects(self.model, case, part)
            parts.append((effects.sum(1), effects.abs().sum(1), *others))
        return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))


@torch.enable_grad()
def split_attention_effects(model: nn.Module, case: Case, halfway: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The finite effect of each feature in each layer and row, the explained output, and the `sink_shares`.

    The effects are ``(batch, layers · queries, features)``, without a feature's own row, except where the output is
    read.
    """
    with GatedAttention(case, halfway, 0.5) as attention:
        output = select_target(case.run(model), case.target)
    (effects,) = attention.effects(output, "finite")
    clear_own_rows(effects, attention.readout_rows)
    return torch.cat(tuple(effects), 1), output.detach(), sink_shares(attention.weights, case)


def split_input_effects(model: nn.Module, case: Case, halfway: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(x − x′) ⊙ ∂f of each coordinate, ``(batch, coordinates, features)``; else as `split_attention_effects`."""
    effects, output = input_gate_effects(model, case, halfway)
    return effects.reshape(*case.shape, -1).transpose(1, 2), output, torch.zeros(case.shape).to(output)


def is_gated_in_attention(removal: Removal) -> bool:
    """Whether gates in the attention estimate a removal, or else gates on the inputs; Unsupported if none does."""
    if removal.gate is not None:
        return removal.gate == "attention"
    raise Unsupported(
        f"removal by {removal.name} has no gate to estimate it by: remove by attention mask, by deletion or by a "
        "replacement, or take LeaveOneOut"
    )


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of each row's values where the mask is true, ``(batch,)``; 0 for a row where it is nowhere true."""
    return torch.where(mask, values, 0).sum(1) / mask.sum(1).clamp(min=1)


def split_examples(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The indices of the chosen examples ``(batch,)`` bool, and of the others."""
    return chosen.nonzero().flatten(), (~chosen).nonzero().flatten()


def join_examples(chosen: Tensor, *parts: tuple[Tensor, BudgetReport]) -> tuple[Tensor, BudgetReport]:
    """Join the maps and reports of the chosen examples and of the others, in the order of the whole batch."""
    order = torch.cat(split_examples(chosen)).argsort()
    maps, reports = zip(*parts, strict=True)
    tensors = ("rows", "exact", "error", "correlation")
    joined = {name: torch.cat([getattr(report, name) for report in reports])[order] for name in tensors}
    names = [name for report in reports for name in report.estimate]
    return torch.cat(maps)[order], BudgetReport(**joined, estimate=tuple(names[i] for i in order.tolist()))
