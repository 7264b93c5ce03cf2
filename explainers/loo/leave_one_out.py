"""Leave-One-Out: how the output changes when one feature is removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.loo.removal import Removal, default_removal, outputs_without
from faithcheck.models.case import Case


@builtin("removal")
@dataclass(frozen=True)
class LeaveOneOut:
    """LOO_i = f(x) − f(x without i). For a random removal, f(x without i) is the mean over its draws.

    arXiv 2510.18810, §3.1; occlusion, Zeiler & Fergus 2014.

    Attributes:
        removal: how a feature is removed; by default by the attention mask if the case has one, else it takes its
            baseline value.
        max_tokens: the most features, padding included, in one forward pass; bounds memory, not the result.
    """

    label: ClassVar[str] = "Leave-One-Out"
    summary: ClassVar[str] = "how the output changes when one feature is removed; the reference"

    removal: Removal | None = None
    max_tokens: int = 4608  # on a CPU, passes of 2048 take a tenth longer
    name: str = "loo"
    claims: frozenset[str] = frozenset(
        "invariance loo full_removal sensitivity dummy linearity additivity antisymmetry symmetry shift scale "
        "determinism batching randomisation".split()
    )

    @property
    def settings(self) -> str:
        """The settings in words, for reports."""
        if self.removal is None:
            return "removed by the attention mask where the case has one, else replaced by the baseline"
        return f"removed: {self.removal.description}"

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """One forward row per example and one per feature that is not padding: ``(batch, features)``, 0 at padding.

        Raises:
            Unsupported: from the removal.
        """
        return self.attribute_with_output(model, case)[0]

    def attribute_with_output(self, model: nn.Module, case: Case) -> tuple[Tensor, Tensor]:
        """The attribution ``(batch, features)`` and the explained output f(x), ``(batch,)``, from the same passes."""
        batch, features = case.shape
        example, feature = case.unpadded.nonzero(as_tuple=True)
        all_examples = torch.arange(batch, device=example.device)
        without = case.unpadded.new_zeros(len(example), features).scatter_(1, feature.unsqueeze(1), True)
        outputs = outputs_without(
            model,
            case,
            torch.cat([all_examples, example]),
            torch.cat([torch.zeros_like(case.unpadded), without]),
            self.removal or default_removal(case),
            self.max_tokens,
        )
        unchanged = outputs[:batch]
        attribution = unchanged.new_zeros(case.shape)
        attribution[example, feature] = unchanged[example] - outputs[batch:]
        return attribution, unchanged
