"""Leave-One-Out: remove a feature and look."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from faithcheck.explainers.loo.removal import Removal, Replacement, outputs_without
from faithcheck.models.case import Case


@dataclass(frozen=True)
class LeaveOneOut:
    """LOO_i = f(x) − f(x without i); a random removal's f(x without i) is the mean over its draws.

    arXiv 2510.18810, §3.1; occlusion, Zeiler & Fergus 2014.

    Attributes:
        removal: what "without" means; by default a removed feature takes its baseline value.
        max_tokens: the most features, padding included, in one forward pass; bounds memory, not the result.
    """

    removal: Removal = field(default_factory=Replacement)
    max_tokens: int = 2048  # on a processor, larger passes leave its cache and take a quarter longer
    name: str = "loo"
    claims: frozenset[str] = frozenset(
        "invariance loo sensitivity dummy linearity symmetry shift scale determinism batching".split()
    )

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """One forward row per example and present feature, and one per example: ``(batch, features)``, 0 at padding.

        Raises:
            Unsupported: from the removal.
        """
        return self.attribute_with_output(model, case)[0]

    def attribute_with_output(self, model: nn.Module, case: Case) -> tuple[Tensor, Tensor]:
        """The attribution ``(batch, features)`` and the explained output f(x), ``(batch,)``, from the same passes."""
        batch, features = case.shape
        example, feature = case.unpadded.nonzero(as_tuple=True)
        everyone = torch.arange(batch, device=example.device)
        without = case.unpadded.new_zeros(len(example), features).scatter_(1, feature.unsqueeze(1), True)
        outputs = outputs_without(
            model,
            case,
            torch.cat([everyone, example]),
            torch.cat([torch.zeros_like(case.unpadded), without]),
            self.removal,
            self.max_tokens,
        )
        whole = outputs[:batch]
        attribution = whole.new_zeros(case.shape)
        attribution[example, feature] = whole[example] - outputs[batch:]
        return attribution, whole
