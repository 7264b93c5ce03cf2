"""Attention Rollout: how attention weights, multiplied through the layers, reach each token."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from faithcheck.explainers.attention_observer import AttentionObserver
from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.gates.gate_effects import rows_with_gradient
from faithcheck.explainers.protocol import Unsupported, in_standard_modes
from faithcheck.explainers.refused_modules import flex_attention, refuse_modules
from faithcheck.models.case import Case, select_target


class HeadMeans(AttentionObserver):
    """Records each layer's attention weights averaged over heads, ``(batch, positions, positions)``, to save memory.

    ``last_weights`` are the last layer's weights before the mean, with a gradient.
    """

    last_weights: Tensor

    def attend(self, logits: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """See `AttentionObserver.attend`."""
        self.last_weights = softmax(logits).detach().requires_grad_()
        self.note(self.last_weights.detach().reshape(len(logits), -1, *logits.shape[-2:]).mean(1))
        return self.last_weights.clone()  # the model may write to it

    def rows_read(self, output: Tensor) -> Tensor:
        """The rows of the last layer that the output ``(batch,)`` depends on, ``(batch, positions)`` bool."""
        gradient = None
        if output.requires_grad:
            (gradient,) = torch.autograd.grad(output.sum(), self.last_weights, allow_unused=True)
        if gradient is None:  # of weights that are quantised, for one
            return torch.zeros(self.weights[-1].shape[:2], dtype=torch.bool, device=output.device)
        size = gradient.abs().amax(-1)
        return rows_with_gradient(size.reshape(len(size), -1, size.shape[-1]).amax(1))


@builtin("attention")
@dataclass(frozen=True)
class AttentionRollout:
    """Ã⁽ˡ⁾ = A⁽ˡ⁾ Ã⁽ˡ⁻¹⁾, A averaged over heads; Abnar & Zuidema 2020, arXiv 2005.00928, Eq. 1.

    Attributes:
        residual: mix each layer's weights with the residual connection, ½A + ½I, as the original method does (the
            default); False is the form of arXiv 2510.18810, which has no residual term.
        row: the output position whose row is the attribution; by default the position that the explained output is read
            at, the mean over them if there are several. It is found by the output's gradient at the last layer's
            weights. Where there is none, it is the case's ``last`` or 0, [CLS].
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

    @in_standard_modes
    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """One forward pass, and a backward pass to the last layer: ``(batch, features)``, non-negative.

        Each row sums to 1, or less where the model puts positions of its own, such as a ViT's class token, before the
        features.

        Raises:
            Unsupported: the model has no softmax attention over its features, hides the weights, has layers of
                different lengths, explains an answer of several tokens, or does not show which row is read.
        """
        if self.row is None and "answer" in case.forward_arguments:
            raise Unsupported(
                "the log-likelihood of an answer is read at several positions, and each has its own row: explain a "
                "single token, or choose the row"
            )
        refuse_modules(model, flex_attention)
        with torch.set_grad_enabled(self.row is None):
            copied = case.copy()  # a model may write to its inputs
            with HeadMeans(copied) as attention:
                output = select_target(copied.run(model), copied.target)
            positions = attention.require_attention()
            read = attention.rows_read(output)
        rollout = identity = torch.eye(positions).to(case.inputs)
        for layer in attention.weights:
            weights = layer.to(identity)  # some models compute their softmax in float32 whatever their own dtype is
            rollout = ((weights + identity) / 2 if self.residual else weights) @ rollout
        if self.row is not None:
            return rollout[:, self.row, positions - case.shape[1] :]
        unknown = ~read.any(1)
        first = torch.zeros(len(rollout), dtype=torch.int64, device=rollout.device)
        stated = case.forward_arguments.get("last", first).long()
        read[unknown, stated[unknown]] = True
        if "last" not in case.forward_arguments and bool((rollout[unknown, 0, 0] == 1).any()):
            raise Unsupported(
                "the output has no gradient at the last layer's attention weights, and the first row attends to itself "
                "alone, so which row is read is unknown: choose AttentionRollout(row=…), -1 for the last"
            )
        share = read.to(rollout) / read.sum(1, keepdim=True)
        read_rows: Tensor = share.unsqueeze(1) @ rollout
        return read_rows[:, 0, positions - case.shape[1] :]
