"""PA-LRP: the relevance that positions keep goes to the tokens at these positions.

Bakish, Zimerman, Chefer & Wolf 2025, arXiv 2506.02138: a Transformer's inputs are pairs of a token and its position. An
LRP method reads relevance at the word embeddings x. Here, positions are operands with relevance, too, and AttnLRP's own
rules share it (`faithcheck.explainers.lrp.position_pairs`). The map adds what a position has to its token.

*Added, x + p.* With G, the modified gradient at the sum, Eq. 1 of arXiv 2510.18810 gives x ⊙ G and p ⊙ G. Their sum
over a token's coordinates is (x + p) ⊙ G: for ε → 0, AttnLRP of the model as a function of x + p. So the tokens have
what AttnLRP's tokens and positions have in its conservation ledger.

*Rotary, q' = q ⊙ cos + (rotated q) ⊙ sin* (Su et al. 2021, arXiv 2104.09864, Eq. 34), and likewise the keys. Each
product z = h ⊙ c with c = cos or sin has two operands, so that its relevance z ⊙ G is shared equally (Eqs. 3–4):

1. c gets ½ z ⊙ G, which goes to the token at its position: over both products and all coordinates ½ q' ⊙ G.
2. h gets the other half: ½ of the gradient that AttnLRP passes on, where constants have no share.
3. So a token's query and key keep half of their relevance at the token itself, in each layer, and half goes on to what
   the layer read there. Nothing is gained or lost between them. Biases and softmaxes of the layers below keep less.

The paper's own code also takes absolute values and divides each layer's map by its largest value. Here the map keeps
its signs and its sum.

Positions of no token, such as that of a ViT's class token, keep theirs. A model in which no positions are found is
refused, and one whose positions are of pairs of tokens, such as a bias of attention logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from faithcheck.explainers.lrp.attnlrp import AttnLRP
from faithcheck.explainers.lrp.position_pairs import PositionPairs
from faithcheck.explainers.protocol import Unsupported, per_feature
from faithcheck.models.case import Case


@dataclass(frozen=True)
class PositionalLRP:
    """AttnLRP whose map has the relevance of added and of rotary positions, too.

    Attributes:
        epsilon: the stabiliser ε ≥ 0 of AttnLRP.
    """

    label: ClassVar[str] = "PA-LRP"
    summary: ClassVar[str] = "AttnLRP, and the relevance of positions at their tokens; Bakish et al. 2025"

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
            Unsupported: see `LRP.attribute`; or no positions of tokens are found in the model.
        """
        pairs, output = AttnLRP(self.epsilon).propagate(model, case, PositionPairs)
        assert isinstance(pairs, PositionPairs)
        if not pairs.positions:
            raise Unsupported("no position embeddings were found that are added or rotate: take attnlrp")
        gradient, relevances = pairs.relevances(output)
        of_tokens = torch.stack(pairs.of_tokens(relevances, case.shape)).sum(0)
        return per_feature(case.inputs * gradient) + of_tokens.to(case.inputs.dtype)

    def position_relevance(self, model: nn.Module, case: Case) -> Tensor:
        """None, as the tokens have it.

        Raises:
            Unsupported: always.
        """
        raise Unsupported("its map has the relevance of positions, at their tokens")
