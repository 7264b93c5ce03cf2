"""Leave-One-Out: remove a feature and look."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case, explained


@dataclass(frozen=True)
class LeaveOneOut:
    """LOO_i = f(x) − f(x without i), a removed feature taking its baseline value.

    arXiv 2510.18810, §3.1; occlusion, Zeiler & Fergus 2014.

    Attributes:
        rows: the most rows in one forward pass; bounds memory, not the result.
    """

    rows: int = 512
    name: str = "loo"
    claims: frozenset[str] = frozenset({"invariance", "loo"})

    @torch.no_grad()
    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """One forward row per example and feature, and one per example: ``(batch, features)``."""
        batch, features = case.shape
        whole = explained(model(case.inputs.clone()), case.target)
        index = torch.arange(batch * features, device=case.inputs.device)
        example, removed = index // features, index % features
        without = []
        for i, j in zip(torch.split(example, self.rows), torch.split(removed, self.rows), strict=True):
            inputs = case.inputs[i]
            inputs[torch.arange(len(i), device=i.device), j] = case.baseline[i, j]
            without.append(explained(model(inputs), case.target[i]))
        return whole.unsqueeze(1) - torch.cat(without).view(batch, features)
