"""PA-LRP: the relevance that positions keep goes to the tokens at these positions.

Bakish, Zimerman, Chefer & Wolf 2025, arXiv 2506.02138: a Transformer's inputs are pairs of a token and its position. An
LRP method reads relevance at the word embeddings x. Here, positions are operands with relevance, too, and AttnLRP's own
rules share it (`faithcheck.explainers.lrp.position_pairs`). The map adds what a position has to its token.

*Added, x + p.* With G, the modified gradient at the sum, Eq. 1 of arXiv 2510.18810 gives x ⊙ G and p ⊙ G, together
AttnLRP of the model as a function of x + p.

*Rotary, q' = q ⊙ cos + (rotated q) ⊙ sin* (Su et al. 2021, arXiv 2104.09864, Eq. 34), and likewise the keys. Each
product z = h ⊙ c with c = cos or sin has two operands, so that its relevance z ⊙ G is shared equally (Eqs. 3–4): c gets
½ z ⊙ G, over both products and all coordinates ½ q' ⊙ G, and h the other half. So in each layer a token's query and key
keep half of their relevance at the token itself, and half goes on to what the layer read there.

The paper's own code also takes absolute values and divides each layer's map by its largest value. Here the map keeps
its signs and its sum.

Positions of no token, such as that of a ViT's class token, keep theirs. A model in which no positions are found is
refused, and one whose positions are of pairs of tokens, such as a bias of attention logits.

*Where it is invariant.* The map is that of AttnLRP, on the model as a function of tokens and positions. So it is
invariant where AttnLRP is, if both models join the same positions to the same values. Queries and keys in another basis
M, which commutes with rotations, have M q' and M⁻ᵀ G in place of q' and G: ½ q'·G is the same. It is not invariant, by
closed forms, where AttnLRP is not (``linear_attention.assoc``), and where one model rotates once and the other twice
(``rotary.two_steps``): a position has its half each time. It refuses rotations by products with matrices, and with
complex numbers.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.lrp.attnlrp import AttnLRP
from faithcheck.explainers.lrp.engine import CLAIMS
from faithcheck.explainers.lrp.position_pairs import PositionPairs, has_positions
from faithcheck.explainers.protocol import Unsupported, in_standard_modes, per_feature
from faithcheck.models.case import Case
from faithcheck.models.expectation import Expectations, expect
from faithcheck.models.networks.linear_attention import association_gap_with_positions, output_at_baseline

EXPECTED: Expectations = {
    **expect(
        "invariance",
        "linear_attention.assoc",
        "AttnLRP's ¼ e ⊙ (g_v − g_q), of tokens e = wx + p in place of the pixels x",
        predict=association_gap_with_positions,
    ),
    **expect(
        "completeness",
        "linear_attention.*",
        "without biases, relevance at tokens and positions sums to f(x): the output at the baseline is too much",
        predict=output_at_baseline,
    ),
    **expect("sensitivity", "control.bert.f", "an analytic gradient is 0 on a set of measure 0 only"),
    **expect("shift", "control.bert.f", "LayerNorm subtracts a token's mean, so its gradient sums to 0"),
}
"""What theory expects on the suite's subjects, beyond the claims: ``{(axiom, subject): Expectation}``."""

NO_POSITIONS = "no position embeddings were found that are added, or that rotate in real numbers: take attnlrp"


@builtin("lrp")
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
    claims: frozenset[str] = CLAIMS

    @property
    def expected(self) -> Expectations:
        """What theory expects on the suite's models, for ε → 0."""
        return {} if self.epsilon else EXPECTED

    @property
    def settings(self) -> str:
        """The settings in words."""
        return AttnLRP(self.epsilon).settings

    @in_standard_modes
    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """One forward and one backward pass: ``(batch, features)``.

        Raises:
            Unsupported: see `LRP.attribute`; or no positions of tokens are found in the model.
        """
        if not has_positions(model):
            raise Unsupported(NO_POSITIONS)
        pairs, output = AttnLRP(self.epsilon).propagate(model, case, PositionPairs)
        assert isinstance(pairs, PositionPairs)
        if self.epsilon and pairs.positions:  # it stops the gradient at a token of zeros, which then has no row
            without, _ = AttnLRP().propagate(model, case, PositionPairs)
            assert isinstance(without, PositionPairs)
            pairs.rows = without.rows
        if not pairs.positions:
            raise Unsupported(NO_POSITIONS)
        gradient, relevances = pairs.relevances(output)
        of_tokens = torch.stack(pairs.of_tokens(relevances)).sum(0)
        return per_feature(case.inputs * gradient) + of_tokens.to(case.inputs.dtype)

    def position_relevance(self, model: nn.Module, case: Case) -> Tensor:
        """Raise Unsupported, always: the tokens have it."""
        raise Unsupported("its map has the relevance of positions, at their tokens")
