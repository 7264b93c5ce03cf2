"""PA-LRP for position embeddings: what they keep of the relevance goes to the tokens at their positions.

Bakish, Zimerman, Chefer & Wolf 2025, arXiv 2506.02138: a Transformer's inputs are pairs of a token and its position. An
LRP method reads relevance at the word embeddings x, and the position embeddings p that a model adds keep their share.
With the rules of AttnLRP and G, the modified gradient at the sum x + p, Eq. 1 of arXiv 2510.18810 gives x ⊙ G and
p ⊙ G. The map here is their sum over a token's coordinates, (x + p) ⊙ G: for ε → 0, AttnLRP of the model as a function
of x + p.

So the tokens have what AttnLRP's tokens and positions have in its conservation ledger. Positions of no token, such as
that of a ViT's class token, keep theirs. Of the paper's rules, those for rotary positions are not here: a model that
adds no position embeddings is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from faithcheck.explainers.lrp.attnlrp import AttnLRP
from faithcheck.explainers.lrp.position_pairs import AddedPositions
from faithcheck.explainers.protocol import Unsupported, per_feature
from faithcheck.models.case import Case


@dataclass(frozen=True)
class PositionalLRP:
    """(x + p) ⊙ G: AttnLRP whose map has the relevance of added position embeddings, too.

    Attributes:
        epsilon: the stabiliser ε ≥ 0 of AttnLRP.
    """

    label: ClassVar[str] = "PA-LRP"
    summary: ClassVar[str] = "AttnLRP, and the relevance of position embeddings at their tokens; Bakish et al. 2025"

    epsilon: float = 0.0
    name: str = "pa_lrp"
    claims: frozenset[str] = frozenset(
        "linearity additivity antisymmetry scale determinism batching precision randomisation".split()
    )

    @property
    def settings(self) -> str:
        """The settings in words."""
        return AttnLRP(self.epsilon).settings

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """One forward and one backward pass: ``(batch, features)``.

        Raises:
            Unsupported: see `LRP.attribute`; or the model adds no position embeddings to its tokens.
        """
        pairs, output = AttnLRP(self.epsilon).propagate(model, case, AddedPositions)
        assert isinstance(pairs, AddedPositions)
        gradient, relevances = pairs.relevances(output)
        of_tokens = [each.sum(2)[:, -case.shape[1] :] for each in relevances if _is_of_tokens(each, case)]
        if not of_tokens:
            raise Unsupported(
                "no position embeddings that are added to the tokens, so that none keep relevance: take attnlrp"
            )
        return per_feature(case.inputs * gradient) + torch.stack(of_tokens).sum(0).to(case.inputs.dtype)

    def position_relevance(self, model: nn.Module, case: Case) -> Tensor:
        """None, as the tokens have it.

        Raises:
            Unsupported: always.
        """
        raise Unsupported("its map has the relevance of positions, at their tokens")


def _is_of_tokens(relevance: Tensor, case: Case) -> bool:
    return relevance.dim() == 3 and relevance.shape[1] >= case.shape[1]
