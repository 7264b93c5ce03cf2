"""Attention Rollout: how attention weights, multiplied through the layers, reach each token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from faithcheck.explainers.attention_observer import AttentionObserver
from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.protocol import Unsupported
from faithcheck.explainers.refused_modules import flex_attention, refuse_modules
from faithcheck.models.case import Case


class HeadMeans(AttentionObserver):
    """Records each layer's attention weights averaged over heads, ``(batch, positions, positions)``, to save memory."""

    def attend(self, logits: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """See `AttentionObserver.attend`."""
        weights = softmax(logits)
        self.note(weights.detach().reshape(len(weights), -1, *weights.shape[-2:]).mean(1))
        return weights


@builtin("attention")
@dataclass(frozen=True)
class AttentionRollout:
    """Ã⁽ˡ⁾ = A⁽ˡ⁾ Ã⁽ˡ⁻¹⁾, A averaged over heads; Abnar & Zuidema 2020, arXiv 2005.00928, Eq. 1.

    Attributes:
        residual: mix each layer's weights with the residual connection, ½A + ½I, as the original method does (the
            default); False is the form of arXiv 2510.18810, which has no residual term.
        row: the output position whose row is the attribution; by default the position that the output is read at,
            which is the case's ``last`` for a decoder and 0, [CLS], for any other model.
    """

    label: ClassVar[str] = "Attention Rollout"
    summary: ClassVar[str] = "attention weights, multiplied layer by layer; Abnar & Zuidema 2020"

    residual: bool = True
    row: int | None = None
    name: str = "attention_rollout"
    claims: frozenset[str] = frozenset("invariance sensitivity shift determinism batching precision".split())

    @property
    def settings(self) -> str:
        """The settings in words, for reports."""
        residual = "½A + ½I a layer (Abnar & Zuidema)"
        layer = residual if self.residual else "A a layer, without residual (the paper's form)"
        row = "the row that the output is read at" if self.row is None else f"row {self.row}"
        return f"{layer}, mean over heads, {row}"

    @torch.no_grad()
    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """One forward pass: ``(batch, features)``, non-negative, the same for every target.

        Each row sums to 1, or less where the model puts positions of its own, such as a ViT's class token, before the
        features.

        Raises:
            Unsupported: the model has no softmax attention over its features, hides the weights, has layers of
                different lengths, or is read at several positions.
        """
        if self.row is None and "answer" in case.forward_arguments:
            raise Unsupported(
                "the log-likelihood of an answer is read at several positions, and each has its own row: explain a "
                "single token, or choose the row"
            )
        refuse_modules(model, flex_attention)
        with HeadMeans(case) as attention:
            case.run(model)
        positions = attention.require_attention()
        identity = torch.eye(positions).to(case.inputs)
        rollout = identity
        for layer in attention.weights:
            weights = layer.to(identity)  # some models compute their softmax in float32 whatever their own dtype is
            rollout = ((weights + identity) / 2 if self.residual else weights) @ rollout
        examples = torch.arange(len(rollout), device=rollout.device)
        first = torch.zeros_like(examples)
        row = case.forward_arguments.get("last", first) if self.row is None else first + self.row
        return rollout[examples, row, positions - case.shape[1] :]
