"""A sparse linear surrogate: which parts of a text matter, from a fixed number of random ablations (ContextCite).

Cohen-Wang et al. 2024, arXiv 2409.00729, §3: each ablation keeps a random half of the parts. The outputs are fitted by
LASSO as a linear function of which parts are kept; a part's weight is its effect.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from faithcheck.explainers.loo.leave_one_out import parts_of, shared_among_features
from faithcheck.explainers.loo.outputs import outputs_without
from faithcheck.explainers.loo.removal import Removal, default_removal, generators, require_draws
from faithcheck.explainers.protocol import in_standard_modes
from faithcheck.models.case import Case


@dataclass(frozen=True)
class SparseSurrogate:
    """The weights of a sparse linear function of which parts are there; special parts are always kept, and get 0.

    Attributes:
        ablations: how many random ablations the function is fitted to, which are as many forward rows.
        by: the parts: "token", "word", "sentence" or "paragraph".
        penalty: of the sum of the absolute weights, in units of the standard deviation of the outputs.
        removal: how features are removed; by default by the attention mask if the case has one, else they take their
            baseline values.
        max_tokens: the most features, padding included, in one forward pass; bounds memory, not the result.
        seed: of the ablations.

    Raises:
        ValueError: no ablations.
    """

    label: ClassVar[str] = "Sparse surrogate"
    summary: ClassVar[str] = "a sparse linear function fitted to random ablations; ContextCite, arXiv 2409.00729"

    ablations: int = 64
    by: str = "sentence"
    penalty: float = 0.01
    removal: Removal | None = None
    max_tokens: int = 4608
    seed: int = 0
    name: str = "sparse_surrogate"

    @property
    def settings(self) -> str:
        """The settings in words, for reports."""
        return f"{self.ablations} ablations by {self.by}, LASSO with penalty {self.penalty:g}, seed {self.seed}"

    def __post_init__(self) -> None:
        require_draws(self.ablations)

    @in_standard_modes
    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The weight of each part, shared equally among its features: ``(batch, features)``, 0 at padding.

        Raises:
            Unsupported: from the removal, or the case does not say which parts its features belong to.
        """
        part = parts_of(case, self.by)
        kept = [self._kept(case.non_special[i], part[i], random) for i, _, random in generators(case, self.seed, 0)]
        removed = torch.cat([~of[:, numbers.clamp(min=0)] for of, numbers in zip(kept, part, strict=True)])
        example = torch.arange(len(part), device=part.device).repeat_interleave(self.ablations)
        removal = self.removal or default_removal(case)
        outputs = outputs_without(
            model, case, example, removed & case.non_special[example], removal, self.max_tokens
        ).view(-1, self.ablations)
        weights = [self._weights(of, output) for of, output in zip(kept, outputs, strict=True)]
        padded = nn.utils.rnn.pad_sequence(weights, batch_first=True)
        return shared_among_features(padded, part).to(case.inputs.dtype)

    def _kept(self, non_special: Tensor, part: Tensor, random: np.random.Generator) -> Tensor:
        """Which parts each ablation keeps, ``(ablations, parts)`` bool: each with probability ½, special ones always.

        Args:
            non_special: ``(features,)`` bool.
            part: ``(features,)``, from `parts_of`.
            random: draws the parts.
        """
        parts = int(part.max()) + 1
        kept = torch.from_numpy(random.random((self.ablations, parts)) < 0.5).to(part.device)
        is_removable = torch.zeros(parts, dtype=torch.bool, device=part.device)
        is_removable[part[non_special]] = True
        return kept | ~is_removable

    def _weights(self, kept: Tensor, outputs: Tensor) -> Tensor:
        """The weights ``(parts,)`` of the function fitted to the outputs ``(ablations,)``."""
        scale = outputs.std(correction=0)
        if not scale > 0:
            return outputs.new_zeros(kept.shape[1])
        from sklearn.linear_model import Lasso  # not at the top: it takes a second, and every run lists the explainers

        lasso = Lasso(alpha=self.penalty)
        lasso.fit(kept.double().cpu().numpy(), (outputs / scale).double().cpu().numpy())
        return torch.from_numpy(lasso.coef_).to(outputs) * scale
