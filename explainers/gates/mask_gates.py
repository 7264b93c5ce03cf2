"""Mask gates: how the output moves as a feature is taken away, without taking each away in turn.

A gate m_i scales feature i between there, 1, and removed, 0. For removal by attention mask it is on key i's weight, in
every row of every layer, A_k ∝ m_k exp z_k; for removal by the baseline on the input, x′_i + m_i (x_i − x′_i).
Leave-One-Out is f(m_i = 1) − f(m_i = 0), the integral of the derivative along the gate. The explainers here evaluate
that derivative at one point, or at a few, for all features at once.

* The derivative at 1 (`MaskGate`) sees nothing of the way to 0.
* Without key i, a row's weights A_k become A_k / (1 − A_i): its output O_j changes by exactly A_ji (V_i − O_j) /
  (1 − A_ji). `FiniteMaskGate` sums this finite change, times the gradient at O_j, over rows, heads and layers. What
  stays first-order is what the layers above make of it.
* A removed token's own row is read by no other row, so its own change counts only where the output is read there. The
  derivative at 1 still has it: along m_i V_i(m_i), from 1 to 0, the integral is V_i(1), and the derivative at 1 is
  V_i(1) + V_i′(1). Without a token's own row the finite gate is nearer to Leave-One-Out: r 0.82 instead of 0.72 on
  SST-2 (docs/remedies.md).
* The derivative halfway is a better mean of the way than the one at 1, but each feature has a way of its own. Where
  many are halfway at once, each sees the others as noise: `GroupedMaskGate` lets few at a time.

They assume a model in eval mode, attention of the features to each other alone, and, where the model has positions
before the features, such as a class token, that the features are the last. Derivations: this project's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from faithcheck.explainers.attention_observer import AttentionObserver, Kind, output_without
from faithcheck.explainers.gates.expectations import GROUPED, GROUPS, TANGENT
from faithcheck.explainers.loo.removal import Replacement, at_features, outputs_without
from faithcheck.explainers.protocol import per_feature
from faithcheck.models.case import Case, select_target
from faithcheck.models.pair import Expectation

Gated: TypeAlias = Literal["attention_mask", "baseline"]
OWN = 0.6  # the weight of φ(½) in a grouped gate
LONG = 128  # present features: a text of so many is long
CLAIMS = frozenset("invariance shift scale determinism batching".split())
"""What a gate claims of either removal. A dummy or a symmetry of the function need not be one of its attention, and
where two functions are read at unlike rows, a finite gate of their sum is not the sum of theirs."""


def gates_attention(case: Case, removal: Gated | None) -> bool:
    """Whether gates stand in the attention: as asked, or where the case has an attention mask.

    Raises:
        ValueError: no such removal.
    """
    if removal not in (None, "attention_mask", "baseline"):
        raise ValueError(f"a gate removes by 'attention_mask' or 'baseline', got {removal!r}")
    return removal == "attention_mask" or (removal is None and "attention_mask" in case.forward_arguments)


@torch.enable_grad()
def moved(
    model: nn.Module, case: Case, kind: Kind, removed: Tensor | None = None, strength: float = 1.0
) -> tuple[Tensor, Tensor]:
    """What gates in the attention move; the model's inputs need no gradient.

    Returns:
        The derivative, or the finite change but for a feature's in its own row, ``(batch, features)``; and the
        explained output, ``(batch,)``.
    """
    with AttentionObserver(case, removed, strength) as attention:
        output = select_target(case.run(model), case.target)
    (found,) = attention.moved(output, kind)
    found = found.sum(0)
    return (without_own_row(found, attention.read) if kind == "change" else found).sum(1), output.detach()


def without_own_row(change: Tensor, read: Tensor) -> Tensor:
    """The changes ``(batch, queries, features)`` but for that of a feature in its own row, unless that row is read."""
    queries, features = change.shape[1:]
    own = torch.eye(queries, dtype=torch.bool, device=change.device)[:, -features:]
    return change.masked_fill(own & ~read.unsqueeze(-1), 0)


@torch.enable_grad()
def at_inputs(model: nn.Module, case: Case, halfway: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What gates at the inputs move, (x − x′) ⊙ ∂f, these features being halfway to the baseline.

    Returns:
        The derivative, shaped like the inputs; and the explained output, ``(batch,)``.
    """
    point = case.inputs.detach().clone()
    if halfway is not None:
        point = torch.where(at_features(halfway, point), (point + case.baseline) / 2, point)
    point.requires_grad_()
    output = select_target(replace(case, inputs=point).run(model), case.target)
    (gradient,) = torch.autograd.grad(output.sum(), point)
    return (case.inputs - case.baseline) * gradient, output.detach()


def difference_gradient(model: nn.Module, case: Case) -> Tensor:
    """(x − x′) ⊙ ∂f(x): the gate of removal by the baseline, at 1; ``(batch, features)``."""
    return per_feature(at_inputs(model, case)[0])


@dataclass(frozen=True)
class MaskGate:
    """∂f/∂m_i at m = 1: one forward and one backward pass.

    Attributes:
        removal: what a gate scales: the "attention_mask", or the difference to the "baseline". By default the first
            where the case has an attention mask. Models that take no mask can be gated in their attention as well.
    """

    removal: Gated | None = None
    name: str = "mask_gate"
    claims: frozenset[str] = CLAIMS | {"linearity"}

    @property
    def expected(self) -> Mapping[tuple[str, str], Expectation]:
        """The suite's cells, which remove by the baseline."""
        return {} if self.removal == "attention_mask" else TANGENT

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The derivatives ``(batch, features)``, 0 at padding.

        Raises:
            Unsupported: the model has no softmax attention over the features, or hides it.
            ValueError: no such removal.
        """
        if not gates_attention(case, self.removal):
            return difference_gradient(model, case)
        derivative, _ = moved(model, case, "derivative")
        return (derivative * case.unpadded).to(case.inputs.dtype)


@dataclass(frozen=True)
class FiniteMaskGate:
    """Σ over rows j of S_j · (O_j − O_j without i), S the gradient at O: one forward and one backward pass.

    Assumes that the layers above are linear in what changes, and that the changes in several layers add up. Its weak
    point is special tokens that soak up attention: without them O changes by much.

    Attributes:
        removal: see `MaskGate`; by the baseline the gate is linear in its input, and this is `MaskGate`.
    """

    removal: Gated | None = None
    name: str = "finite_mask_gate"
    claims: frozenset[str] = CLAIMS

    @property
    def expected(self) -> Mapping[tuple[str, str], Expectation]:
        """The suite's cells, which remove by the baseline."""
        return {} if self.removal == "attention_mask" else TANGENT

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The changes ``(batch, features)``, 0 at padding; raises as `MaskGate`."""
        if not gates_attention(case, self.removal):
            return difference_gradient(model, case)
        change, _ = moved(model, case, "change")
        return (change * case.unpadded).to(case.inputs.dtype)


@dataclass(frozen=True)
class GroupedMaskGate:
    """The finite gate with few features halfway at a time; special features by themselves.

    Features are dealt out to groups in turn, so that neighbours, which interact most, are apart. Each group has a
    forward and a backward row of its own, in which its features are taken away by the strength ½: along
    O(s) = (1 − s)·O + s·(O without the group). With φ_i(s) a feature's finite change at s, and φ_i(0) its mean in the
    rows of the other groups,

        LOO_i = ∫₀¹ φ_i(s) ds ≈ 0.6 φ_i(½) + 0.4 φ_i(0).

    The midpoint rule alone, φ_i(½), is right for a feature by itself up to the curvature of φ. But what the rest of a
    group does to φ_i(½) is noise, and a share of φ_i(0) the better for it; 0.6 is best for groups of 5 and of 60
    features alike (docs/remedies.md).

    Special features would disturb a group most, and are left out: each has a forward row without it, f(x without i).
    f(x) has none, but is f with a group halfway, and by the trapezoidal rule what the group lost so far,

        f(x) ≈ f(g halfway) + ½ Σ_{i in g} ½ (φ_i(0) + φ_i(½)), in the mean over groups g.

    In long texts (`LONG`) two such rows take as long as another pass, and special features matter less there: theirs is
    φ(0), the finite gate's, in the mean over the groups.

    Costs ``groups`` forward and backward passes, and in short texts a forward pass for each special feature.

    Attributes:
        groups: how many, at least 2.
        removal: see `MaskGate`.
        max_tokens: the most features, padding included, in one pass; bounds memory, not the result.

    Raises:
        ValueError: fewer than 2 groups, or ``max_tokens`` below 1.
    """

    groups: int = 4
    removal: Gated | None = None
    max_tokens: int = 2048
    name: str = "grouped_mask_gate"
    claims: frozenset[str] = CLAIMS

    def __post_init__(self) -> None:
        if not isinstance(self.groups, int) or self.groups < 2:
            raise ValueError(f"a grouped gate needs at least 2 groups, got {self.groups!r}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")

    @property
    def expected(self) -> Mapping[tuple[str, str], Expectation]:
        """The suite's cells, which remove by the baseline."""
        return {} if self.removal == "attention_mask" or self.groups != GROUPS else GROUPED

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The attribution ``(batch, features)``, 0 at padding; raises as `MaskGate`."""
        group = dealt(case.non_special, self.groups)
        halfway = group.unsqueeze(1) == torch.arange(self.groups, device=group.device).unsqueeze(-1)
        change, output = self._halfway(model, case, halfway)
        own, others = own_and_others(change, halfway)
        attribution = torch.where(group >= 0, OWN * own + (1 - OWN) * others, others) * case.unpadded
        whole = (output + (halfway * (own + others).unsqueeze(1)).sum(2) / 4).mean(1)
        alone = case.unpadded & ~case.non_special & ~long_texts(case).unsqueeze(1)
        example, feature = alone.nonzero(as_tuple=True)
        attribution[example, feature] = whole[example] - self._without(model, case, example, feature)
        return attribution.to(case.inputs.dtype)

    def _halfway(self, model: nn.Module, case: Case, halfway: Tensor) -> tuple[Tensor, Tensor]:
        """Finite changes ``(batch, groups, features)`` and outputs ``(batch, groups)``, a group halfway in each row."""
        batch, features = case.shape
        example = torch.arange(batch, device=halfway.device).repeat_interleave(self.groups)
        parts = [
            self._moved(model, case.select(rows), removed)
            for rows, removed in self._passes(example, halfway.flatten(0, 1))
        ]
        change, output = (torch.cat(made) for made in zip(*parts, strict=True))
        return change.view(batch, self.groups, features), output.view(batch, self.groups)

    def _moved(self, model: nn.Module, case: Case, removed: Tensor) -> tuple[Tensor, Tensor]:
        """The finite change of every feature, these being halfway ``(rows, features)``, and the output ``(rows,)``."""
        if gates_attention(case, self.removal):
            return moved(model, case, "change", removed, 0.5)
        change, output = at_inputs(model, case, removed)
        return per_feature(change), output

    def _without(self, model: nn.Module, case: Case, example: Tensor, feature: Tensor) -> Tensor:
        """The explained output of these examples, each without one feature: ``(rows,)``."""
        if not len(example):
            return case.inputs.new_zeros(0)
        removed = torch.nn.functional.one_hot(feature, case.shape[1]).bool()
        if not gates_attention(case, self.removal):
            return outputs_without(model, case, example, removed, Replacement(), self.max_tokens)
        parts = [output_without(model, case.select(rows), gone) for rows, gone in self._passes(example, removed)]
        return torch.cat(parts)

    def _passes(self, example: Tensor, removed: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
        """Examples ``(rows,)`` and what is removed ``(rows, features)``, as many rows at once as memory is to hold."""
        rows = max(1, self.max_tokens // removed.shape[1])
        return zip(torch.split(example, rows), torch.split(removed, rows), strict=True)


def long_texts(case: Case) -> Tensor:
    """Which examples are long, ``(batch,)`` bool."""
    return case.unpadded.sum(1) >= LONG


def own_and_others(change: Tensor, halfway: Tensor) -> tuple[Tensor, Tensor]:
    """φ(½) and φ(0) of each feature: its change in the row of its own group, and its mean in those of the others.

    Args:
        change: ``(…, groups, features)``.
        halfway: bool, likewise: which features are halfway in a group's row.
    """
    return (change * halfway).sum(-2), (change * ~halfway).sum(-2) / (~halfway).sum(-2)


def dealt(features: Tensor, groups: int) -> Tensor:
    """The group of each of these ``(batch, features)``, 0 … groups − 1 in turn; −1 elsewhere."""
    return torch.where(features, (features.cumsum(1) - 1) % groups, -1)
