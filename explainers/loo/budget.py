"""Leave-One-Out within a budget: exact where it matters, by mask gates elsewhere, with an estimate of the error.

One forward and one backward pass give every feature's finite change φ_i (`gates.FiniteMaskGate`), and, before rows and
layers cancel, how much removing it *moves*,

    s_i = Σ over layers and rows |Σ over heads of what attention row j loses without key i|.

φ_i = Σ of the same with its sign is the estimate of LOO_i = f(x) − f(x without i), and s_i says how far it may be off:
what cancels to first order need not cancel beyond. So features are removed in earnest in the order of s_i, special
ones first, which soak up attention: for these gates are weakest.

For the features that are left, |LOO_i − estimate_i| is assumed to be in proportion to s_i, as it was for the last
`CHECKED` that were removed in earnest, their nearest kin: those before move more, and are off by more in proportion.

With enough rows the estimates get better instead: features that stay move less, so that groups of them can be taken
halfway, each group in a pass of its own, as in `gates.GroupedMaskGate`, without disturbing each other much. The last
`CHECKED` are among them, to measure the error by. Derivations: this project's; figures in docs/remedies.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from faithcheck.explainers.attention_observer import AttentionObserver
from faithcheck.explainers.gates.mask_gates import CLAIMS, OWN, at_inputs, dealt, own_and_others, without_own_row
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.removal import AttentionMask, Deletion, Removal, Replacement, outputs_without
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.case import Case, select_target

CHECKED = 4
"""How many of the features that were removed last measure the error of those that were not."""

GATE = 2
"""Rows of one gate: a forward row, and a backward row that is asked for no weight's gradient, which costs as much."""

GROUPED_FROM = 24
"""From so many rows on, half of them go to groups: with fewer, a group is too large to help."""


@dataclass(frozen=True)
class Report:
    """What a budgeted Leave-One-Out spent and how far it may be off; a row an example.

    Attributes:
        rows: ``(batch,)`` int64, forward rows spent, a backward row being one.
        exact: ``(batch, features)`` bool, which features were removed in earnest; false at padding.
        error: ``(batch,)`` the estimated root mean square of map − LOO over the present features, in units of the
            output; 0 where all are exact, ∞ where too few rows were left to tell.
        correlation: ``(batch,)`` the estimated Pearson correlation with LOO over present features that are not special;
            1 where all are exact, 0 where too few rows were left to tell.
        estimate: what the other features' values are from, an entry an example: "finite_mask_gate",
            "grouped_mask_gate", or "" where all are exact.
    """

    rows: Tensor
    exact: Tensor
    error: Tensor
    correlation: Tensor
    estimate: tuple[str, ...]


@dataclass(frozen=True)
class BudgetedLeaveOneOut:
    """Leave-One-Out for those features that move the output most, mask gates for the others.

    Without a target every example gets the rows of its budget. With one, features are removed one at a time until the
    estimate says that it is reached, or the budget is spent. Over many texts that is the better use of rows: it gives
    them to those that need them. Exact to round-off where it is exact; the estimates are a first-order guess.

    Attributes:
        budget: forward rows an example: so many if an integer; a share of full LOO's, n + 1 for n present features, if
            a float in (0, 1]. A gate's `GATE` rows are spent whatever the budget.
        error: stop once the estimated error is at most this, in units of the output.
        correlation: stop once the estimated correlation with LOO is at least this, in (0, 1).
        removal: what "without" means: AttentionMask, Replacement or Deletion; by default the first where the case has
            an attention mask, and otherwise the second.
        max_tokens: the most features, padding included, in one forward pass; bounds memory, not the result.

    Raises:
        ValueError: a budget, an error or a correlation that is none.
    """

    budget: int | float = 0.4
    error: float | None = None
    correlation: float | None = None
    removal: Removal | None = None
    max_tokens: int = 2048
    name: str = "budgeted_loo"

    @property
    def claims(self) -> frozenset[str]:
        """What gates claim, but for scale where the target is an error in units of the output.

        Linearity and symmetry are not among them: which features are exact depends on the function, and of two that are
        alike only one may be.
        """
        return CLAIMS if self.error is None else CLAIMS - {"scale"}

    def __post_init__(self) -> None:
        whole = isinstance(self.budget, int) and not isinstance(self.budget, bool)
        share = isinstance(self.budget, float) and self.budget <= 1
        if not (whole or share) or not self.budget > 0:
            raise ValueError(f"budget must be rows, an integer ≥ 1, or a share, a float in (0, 1], got {self.budget!r}")
        if self.error is not None and not self.error >= 0:
            raise ValueError(f"error must be at least 0, got {self.error!r}")
        if self.correlation is not None and not 0 < self.correlation < 1:
            raise ValueError(f"correlation must be between 0 and 1, got {self.correlation!r}")
        if isinstance(self.removal, str):
            raise ValueError(f"removal must be AttentionMask(), Replacement() or Deletion(), got {self.removal!r}")

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The map ``(batch, features)``, 0 at padding; raises as `attribute_with_report`."""
        return self.attribute_with_report(model, case)[0]

    def attribute_with_report(self, model: nn.Module, case: Case) -> tuple[Tensor, Report]:
        """The map ``(batch, features)``, 0 at padding, and what it cost.

        Where the budget is that of full LOO, so are the numbers: without a target to the last bit; with one that is not
        reached before, at one row more than LOO's, the gate's.

        Raises:
            Unsupported: from the removal; one that no gate stands for; or the model has no softmax attention over the
                features, or hides it.
        """
        present = case.unpadded.sum(1)
        rows = self.rows(present)
        full = rows > present if self.error is None and self.correlation is None else torch.zeros_like(rows).bool()
        if full.all():
            exactly = LeaveOneOut(self.removed_by(case), self.max_tokens).attribute(model, case)
            nothing = exactly.new_zeros(len(rows))
            return exactly, Report(present + 1, case.unpadded, nothing, nothing + 1, ("",) * len(rows))
        if not full.any():
            search = Search(model, case, self.removed_by(case), self.max_tokens)
            self.spend(search, rows)
            return search.attribution(), search.report()
        return joined(case, full, *(self.attribute_with_report(model, case.select(of)) for of in split(full)))

    def rows(self, present: Tensor) -> Tensor:
        """The budget of examples of so many present features ``(batch,)``, at most that of full LOO."""
        if isinstance(self.budget, int):
            return (present + 1).clamp(max=self.budget)
        # 0.1 of 250 rows are 25, whatever the last digit of 0.1 is.
        return ((present + 1).double() * self.budget + 1e-9).floor().to(present.dtype)

    def removed_by(self, case: Case) -> Removal:
        """The removal, or the one that suits the case."""
        return self.removal or (AttentionMask() if "attention_mask" in case.forward_arguments else Replacement())

    def spend(self, search: Search, rows: Tensor) -> None:
        """Spend so many rows ``(batch,)`` on each example, or fewer if the targets are reached."""
        present = search.case.unpadded.sum(1)
        groups = torch.where((rows >= GROUPED_FROM) & (rows <= present), rows // 4, 0)
        most = torch.where(rows <= present, (rows - GATE * (1 + groups)).clamp(min=0), present)
        if self.error is None and self.correlation is None:
            search.remove(most)
        else:
            enough = search.special_tokens_mask.sum(1) + CHECKED
            search.remove(torch.minimum(most, enough))
            while (going := ~self.reached(search) & (search.removed < most)).any():
                search.remove(search.removed + going.to(most.dtype))
            groups = groups.masked_fill(self.reached(search), 0)
        search.group(groups)

    def reached(self, search: Search) -> Tensor:
        """Whether the estimates meet every target, ``(batch,)`` bool."""
        error, correlation = search.errors()
        met = torch.ones_like(error, dtype=torch.bool)
        if self.error is not None:
            met &= error <= self.error
        return met if self.correlation is None else met & (correlation >= self.correlation)


class Search:
    """A batch whose features are removed in earnest one after the other, in the order of how much they move.

    Attributes:
        value: ``(batch, features)`` the map so far.
        moves: ``(batch, features)`` s_i.
        removed: ``(batch,)`` int64, how many features were removed in earnest.
    """

    def __init__(self, model: nn.Module, case: Case, removal: Removal, max_tokens: int) -> None:
        self.model, self.removal, self.max_tokens = model, removal, max_tokens
        self.gate_on_attention = on_attention(removal, case)
        if isinstance(removal, Replacement):  # what is halfway to being removed is halfway to its value
            case = replace(case, baseline=removal.value(case).expand_as(case.inputs))
        self.case = case
        self.special_tokens_mask = case.unpadded & ~case.non_special
        self.removed = torch.zeros(len(case.inputs), dtype=torch.int64, device=case.inputs.device)
        self.groups = torch.zeros_like(self.removed)
        changes, self.moves, self.whole = self._gate(torch.arange(len(case.inputs)))
        self.value = self.estimate = changes
        order = self.moves.masked_fill(self.special_tokens_mask, torch.inf).masked_fill(~case.unpadded, -torch.inf)
        self.rank = order.argsort(dim=1, descending=True, stable=True).argsort(dim=1)

    @property
    def exact(self) -> Tensor:
        """Which features were removed in earnest, ``(batch, features)`` bool."""
        return self.rank < self.removed.unsqueeze(1)

    def remove(self, counts: Tensor) -> None:
        """Remove the first so many features ``(batch,)`` of each example, all examples in the same passes."""
        before = self.exact
        self.removed = torch.minimum(counts, self.case.unpadded.sum(1))
        example, feature = (self.exact & ~before).nonzero(as_tuple=True)
        if not len(example):
            return
        without = torch.nn.functional.one_hot(feature, self.case.shape[1]).bool()
        outputs = outputs_without(self.model, self.case, example, without, self.removal, self.max_tokens)
        self.value = self.value.clone()
        self.value[example, feature] = self.whole[example] - outputs

    def group(self, groups: Tensor) -> None:
        """Estimate anew what is left, and what was removed last, in so many groups ``(batch,)``; not at all in 0."""
        self.groups = groups
        self.estimate = self.estimate.clone()
        for i in groups.nonzero().flatten().tolist():
            staying = self.case.unpadded[i] & (self.checked | ~self.exact)[i]
            group = dealt(staying.unsqueeze(0), int(groups[i]))
            halfway = group == torch.arange(int(groups[i]), device=group.device).unsqueeze(1)
            change = self._gate(torch.full((len(halfway),), i), halfway)[0]
            own, others = own_and_others(change, halfway)
            self.estimate[i] = torch.where(staying, OWN * own + (1 - OWN) * others, self.estimate[i])
        self.value = torch.where(self.exact, self.value, self.estimate)

    @property
    def checked(self) -> Tensor:
        """The last features removed in earnest, special ones aside, at most `CHECKED`: ``(batch, features)`` bool."""
        return self.exact & ~self.special_tokens_mask & (self.rank >= self.removed.unsqueeze(1) - CHECKED)

    def errors(self) -> tuple[Tensor, Tensor]:
        """The estimated error and the estimated correlation, both ``(batch,)``; see `Report`."""
        left, checked = self.case.unpadded & ~self.exact, self.checked
        off, moved = mean((self.value - self.estimate).square(), checked), mean(self.moves.square(), checked)
        moves = mean(self.moves.square(), left)
        square = off * torch.where(moves < moved, moves / moved, 1) * left.sum(1)  # Σ over those left
        ordinary = self.case.non_special
        spread = mean((self.value - mean(self.value, ordinary).unsqueeze(1)).square(), ordinary) * ordinary.sum(1)
        unknown = left.any(1) & ~(checked.any(1) & (self.exact | ~self.special_tokens_mask).all(1))
        error = (square / self.case.unpadded.sum(1)).sqrt().masked_fill(unknown, torch.inf)
        correlation = (1 - square / spread).clamp(min=0).sqrt().nan_to_num(0.0)
        return error, correlation.masked_fill(unknown, 0).masked_fill(~(square > 0) & ~unknown, 1)

    def attribution(self) -> Tensor:
        """The map ``(batch, features)``, 0 at padding."""
        return self.value.masked_fill(~self.case.unpadded, 0).to(self.case.inputs.dtype)

    def report(self) -> Report:
        """What was spent, and how far the map may be off."""
        error, correlation = self.errors()
        left = (self.case.unpadded & ~self.exact).any(1).tolist()
        names = [
            ("grouped_mask_gate" if grouped else "finite_mask_gate") if some else ""
            for some, grouped in zip(left, (self.groups > 0).tolist(), strict=True)
        ]
        return Report(GATE * (1 + self.groups) + self.removed, self.exact, error, correlation, tuple(names))

    def _gate(self, example: Tensor, halfway: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Finite changes and how much each feature moves ``(rows, features)``, and the explained outputs ``(rows,)``.

        Args:
            example: ``(rows,)`` which example each row is.
            halfway: ``(rows, features)`` bool, the features that are halfway to being removed; by default none.
        """
        made, size = [], max(1, self.max_tokens // self.case.shape[1])
        for rows in torch.split(torch.arange(len(example)), size):
            part = self.case.select(example[rows].to(self.case.inputs.device))
            removed = None if halfway is None else halfway[rows.to(halfway.device)]
            parts, output = (attention_parts if self.gate_on_attention else input_parts)(self.model, part, removed)
            made.append((parts.sum(1), parts.abs().sum(1), output))
        changes, moves, outputs = (torch.cat(tensors) for tensors in zip(*made, strict=True))
        return changes, moves, outputs


@torch.enable_grad()
def attention_parts(model: nn.Module, case: Case, removed: Tensor | None) -> tuple[Tensor, Tensor]:
    """The finite change of each feature in each layer and row, and the explained output.

    Returns:
        ``(batch, layers · queries, features)``, without a feature's own row unless it is read; and ``(batch,)``.
    """
    with AttentionObserver(case, removed, 0.5) as attention:
        output = select_target(case.run(model), case.target)
    (change,) = attention.moved(output, "change")
    return torch.cat([without_own_row(layer, attention.read) for layer in change], 1), output.detach()


def input_parts(model: nn.Module, case: Case, removed: Tensor | None) -> tuple[Tensor, Tensor]:
    """(x − x′) ⊙ ∂f of each feature's coordinates, ``(batch, coordinates, features)``, and the explained output."""
    change, output = at_inputs(model, case, removed)
    return change.reshape(*case.shape, -1).transpose(1, 2), output


def on_attention(removal: Removal, case: Case) -> bool:
    """Whether a removal's gate stands in the attention.

    Raises:
        Unsupported: it has none.
    """
    if isinstance(removal, AttentionMask | Deletion):
        return True
    if isinstance(removal, Replacement):
        return False
    raise Unsupported(
        f"removal by {removal.name} has no gate to estimate it by: remove by attention mask, by deletion or by a "
        "replacement, or take LeaveOneOut"
    )


def mean(values: Tensor, where: Tensor) -> Tensor:
    """The mean of each row's values where that holds, ``(batch,)``; 0 where it does nowhere."""
    return torch.where(where, values, 0).sum(1) / where.sum(1).clamp(min=1)


def split(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of the examples that are chosen ``(batch,)`` bool, and of the others."""
    return chosen.nonzero().flatten(), (~chosen).nonzero().flatten()


def joined(case: Case, chosen: Tensor, *parts: tuple[Tensor, Report]) -> tuple[Tensor, Report]:
    """The maps and reports of the chosen examples and of the others, as those of the whole case."""
    back = torch.cat(split(chosen)).argsort()
    (a, first), (b, second) = parts
    tensors = ("rows", "exact", "error", "correlation")
    together = {name: torch.cat([getattr(first, name), getattr(second, name)])[back] for name in tensors}
    names = first.estimate + second.estimate
    return torch.cat([a, b])[back], Report(**together, estimate=tuple(names[i] for i in back.tolist()))
