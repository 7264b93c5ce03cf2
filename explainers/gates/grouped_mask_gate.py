"""The grouped mask gate: one group of features halfway to being removed at a time, in a few passes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.gates.attention_gates import attention_gate_effects, output_without
from faithcheck.explainers.gates.expectations import GROUPED, GROUPED_ON_MASKED_MODELS, GROUPS
from faithcheck.explainers.gates.gate import GATE_CLAIMS, GateRemoval, gates_attention, input_gate_effects, is_long_text
from faithcheck.explainers.gates.sinks import SINK_SHARE, sink_shares, with_exact_values
from faithcheck.explainers.loo.outputs import outputs_without
from faithcheck.explainers.loo.removal import Replacement
from faithcheck.explainers.protocol import in_standard_modes, per_feature
from faithcheck.explainers.refused_modules import flex_attention, quantised_weights, refuse_modules
from faithcheck.models.case import Case
from faithcheck.models.expectation import Expectation

OWN_GROUP_WEIGHT = 0.6
"""The weight of φ(½), the finite effect in the pass of a feature's own group."""


@builtin("gate")
@dataclass(frozen=True)
class GroupedMaskGate:
    """The finite gate with one group of features halfway at a time, and special features by themselves.

    1. Features are assigned to groups in turn, so that neighbours, which interact most, are in different groups.
    2. Each group has a forward and a backward pass of its own. In it the group is removed with strength s = ½, along
       O(s) = (1 − s)·O + s·(O without the group).
    3. φ_i(s) is the finite effect of feature i at s: φ_i(½) in the pass of its own group, and φ_i(0) in the mean over
       the passes of the other groups. Then

           LOO_i = ∫₀¹ φ_i(s) ds ≈ 0.6 φ_i(½) + 0.4 φ_i(0).

       The midpoint rule alone, φ_i(½), is right up to the curvature of φ for a feature by itself. But the rest of its
       group adds noise to φ_i(½), which a share of φ_i(0) reduces; 0.6 is best for groups of 5 and of 60 features alike
       (docs/results/remedies.md).
    4. Special features would disturb a group most, and are in none. Each has a forward pass without it, f(x without i).
       f(x) itself is never computed, but f with group g halfway is. By the trapezoidal rule for what the group lost,

           f(x) ≈ mean over groups g of [ f(g halfway) + ½ Σ_{i in g} ½ (φ_i(0) + φ_i(½)) ].

    5. In long texts (`LONG_TEXT`) the passes of step 4 take as long as a forward and backward pass, and special
       features matter less. There they get φ(0), the finite gate, in the mean over the groups.
    6. Attention sinks (`faithcheck.explainers.gates.sinks`) are special in texts of any length: the pass in which one
       was halfway runs again without it, and f(x) is computed.

    Costs ``groups`` forward and backward passes, and in short texts a forward pass for each special feature.

    Attributes:
        groups: how many, at least 2.
        removal: see `OnePassGate`.
        max_tokens: the most features, padding included, in one pass; bounds memory, not the result.

    Raises:
        ValueError: fewer than 2 groups, or ``max_tokens`` below 1.
    """

    label: ClassVar[str] = "Grouped mask gate"
    summary: ClassVar[str] = "like finite_mask_gate, one group of tokens halfway removed in each pass; derived here"

    groups: int = 4
    removal: GateRemoval | None = None
    max_tokens: int = 2048
    name: str = "grouped_mask_gate"
    claims: frozenset[str] = GATE_CLAIMS | {"bounds", "full_removal"}

    def __post_init__(self) -> None:
        if not isinstance(self.groups, int) or self.groups < 2:
            raise ValueError(f"a grouped gate needs at least 2 groups, got {self.groups!r}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")

    @property
    def expected(self) -> Mapping[tuple[str, str], Expectation]:
        """What theory expects on the suite's models."""
        if self.groups != GROUPS or self.removal == "attention_mask":
            return {}
        return GROUPED if self.removal == "baseline" else {**GROUPED, **GROUPED_ON_MASKED_MODELS}

    @property
    def settings(self) -> str:
        """The settings in words, for reports."""
        return f"{self.groups} groups of features, each halfway to being removed in a pass of its own"

    @in_standard_modes
    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The attribution ``(batch, features)``, 0 at padding; raises as `MaskGate`."""
        refuse_modules(model, flex_attention, quantised_weights)
        batch, features = case.shape
        group = assign_groups(case.non_special, self.groups).unsqueeze(1)
        halfway = group == torch.arange(self.groups, device=group.device).unsqueeze(-1)
        example = torch.arange(batch, device=group.device).repeat_interleave(self.groups)
        of_passes = self._run_passes(model, case, example, halfway.flatten(0, 1))
        effects, outputs, shares = (torch.unflatten(values, 0, (batch, self.groups)) for values in of_passes)
        shares = shares.mean(1)
        sinks = shares >= SINK_SHARE
        disturbed = (halfway & sinks.unsqueeze(1)).any(2)
        if disturbed.any():
            halfway = halfway & ~sinks.unsqueeze(1)
            of_passes = self._run_passes(model, case, disturbed.nonzero()[:, 0], halfway[disturbed])
            effects[disturbed], outputs[disturbed], _ = of_passes
        own, others = own_and_other_groups(effects, halfway)
        attribution = torch.where(halfway.any(1), combine_own_and_others(own, others), others) * case.unpadded
        output = (outputs + (halfway * (own + others).unsqueeze(1)).sum(2) / 4).mean(1)
        with_sinks = sinks.any(1).nonzero().flatten()  # there the effects are too far off to make f(x) of them
        nothing = sinks.new_zeros(len(with_sinks), features)
        output[with_sinks] = self._outputs_without(model, case, with_sinks, nothing).to(output)

        def exact_change(example: Tensor, feature: Tensor) -> Tensor:
            return output[example] - self._outputs_without(model, case, example, one_hot(feature, features).bool())

        special = case.unpadded & ~case.non_special & ~is_long_text(case).unsqueeze(1)
        return with_exact_values(case, attribution, shares, exact_change, special).to(case.inputs.dtype)

    def _run_passes(self, model: nn.Module, case: Case, example: Tensor, halfway: Tensor) -> tuple[Tensor, ...]:
        """Finite effects with some features halfway, outputs ``(passes,)``, and `sink_shares`, one row a pass."""
        parts = [self._effects(model, case.select(rows), part) for rows, part in self._split_passes(example, halfway)]
        return tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))

    def _effects(self, model: nn.Module, case: Case, halfway: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `_run_passes`, in one pass."""
        if gates_attention(case, self.removal):
            effects, outputs, weights = attention_gate_effects(model, case, "finite", halfway, 0.5)
            return effects, outputs, sink_shares(weights, case)
        coordinates, outputs = input_gate_effects(model, case, halfway)
        return (effects := per_feature(coordinates)), outputs, torch.zeros_like(effects)

    def _outputs_without(self, model: nn.Module, case: Case, example: Tensor, removed: Tensor) -> Tensor:
        """The outputs of examples ``(rows,)`` without features ``(rows, features)``, ``(rows,)``."""
        if not len(example):
            return case.inputs.new_zeros(0)
        if not gates_attention(case, self.removal):
            return outputs_without(model, case, example, removed, Replacement(), self.max_tokens)
        passes = self._split_passes(example, removed)
        return torch.cat([output_without(model, case.select(rows), features) for rows, features in passes])

    def _split_passes(self, example: Tensor, removed: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
        """Split examples ``(rows,)`` and removed features ``(rows, features)`` by ``max_tokens``."""
        rows = max(1, self.max_tokens // removed.shape[1])
        return zip(torch.split(example, rows), torch.split(removed, rows), strict=True)


def assign_groups(features: Tensor, groups: int) -> Tensor:
    """The group of each of these features ``(batch, features)`` bool, 0 … groups − 1 in turn; −1 for other features."""
    return torch.where(features, (features.cumsum(1) - 1) % groups, -1)


def own_and_other_groups(effects: Tensor, halfway: Tensor) -> tuple[Tensor, Tensor]:
    """φ(½) and φ(0) of each feature: its effect in its own group's pass, and the mean over those of the other groups.

    Both arguments are ``(…, groups, features)``; ``halfway`` says which features are halfway in a group's pass.
    """
    return (effects * halfway).sum(-2), (effects * ~halfway).sum(-2) / (~halfway).sum(-2)


def combine_own_and_others(own: Tensor, others: Tensor) -> Tensor:
    """0.6 φ(½) + 0.4 φ(0), see `GroupedMaskGate`."""
    return OWN_GROUP_WEIGHT * own + (1 - OWN_GROUP_WEIGHT) * others
