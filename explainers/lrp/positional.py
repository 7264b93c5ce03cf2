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
from faithcheck.explainers.lrp.ledger import POSITIONS
from faithcheck.explainers.lrp.ledger_recorder import LedgerRecorder
from faithcheck.explainers.lrp.recorded_operation import RecordedOperation
from faithcheck.explainers.protocol import Unsupported, per_feature
from faithcheck.models.case import Case

ADDITIONS = frozenset({"add", "add_"})


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
        recorder, output = AttnLRP(self.epsilon).propagate(model, case, LedgerRecorder)
        assert isinstance(recorder, LedgerRecorder)
        attribution = per_feature(case.inputs * recorder.backward(output.sum()))
        added = [positions for one in recorder.operations for positions in _positions(one, recorder, case)]
        if not added:
            raise Unsupported(
                "no position embeddings that are added to the tokens, so that none keep relevance: take attnlrp"
            )
        return attribution + torch.stack(added).sum(0)


def _positions(operation: RecordedOperation, recorder: LedgerRecorder, case: Case) -> list[Tensor]:
    """p ⊙ G of each position embedding p that an operation adds to tokens, ``(batch, features)``."""
    if operation.call.name not in ADDITIONS:
        return []
    (result,) = operation.results
    gradient = recorder.gradients.get(result.after)
    if gradient is None or gradient.dim() != 3 or gradient.shape[1] < case.shape[1]:
        return []
    named = [place for place, names in operation.constants.items() if POSITIONS.search(names)]
    return [(operation.leaves[place] * gradient).sum(2)[:, -case.shape[1] :] for place in named]
