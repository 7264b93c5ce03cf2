"""Attention Rollout: how attention weights, multiplied through the layers, reach each token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from faithcheck.explainers.lrp.operations import operation_name
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.case import Case


class AttentionWeights(TorchFunctionMode):
    """Collects every softmax over at least ``features`` positions, averaged over heads: ``(batch, n, n)`` a layer."""

    def __init__(self, batch: int, features: int) -> None:
        super().__init__()
        self.batch, self.features = batch, features
        self.layers: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = operation_name(func)
        if name == "scaled_dot_product_attention":
            raise Unsupported(f"{name} hides the attention weights: load the model with attn_implementation='eager'")
        if name == "softmax" and result.dim() >= 3 and result.shape[-2] == result.shape[-1] >= self.features:
            rows = result.detach().sum(-1)
            if len(result) != self.batch or not torch.allclose(rows, torch.ones_like(rows), atol=1e-3):
                raise Unsupported("attention weights that are not (batch, …, queries, keys), normalised over the keys")
            heads = result.detach().reshape(len(result), -1, *result.shape[-2:])
            self.layers.append(heads.mean(1))
        return result


@dataclass(frozen=True)
class AttentionRollout:
    """Ã⁽ˡ⁾ = A⁽ˡ⁾ Ã⁽ˡ⁻¹⁾, A averaged over heads; Abnar & Zuidema 2020, arXiv 2005.00928, Eq. 1.

    Attributes:
        residual: mix each layer's weights with the residual connection, ½A + ½I, as the original method does (the
            default); False is the form of arXiv 2510.18810, which has no residual term.
        row: the output position whose row is the attribution; by default the position that the output is read at,
            which is the case's ``last`` for a decoder and 0, [CLS], for any other model.
    """

    residual: bool = True
    row: int | None = None
    name: str = "attention_rollout"
    claims: frozenset[str] = frozenset("invariance shift determinism batching".split())

    @torch.no_grad()
    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """One forward pass: ``(batch, features)``, non-negative, the same for every target.

        Each row sums to 1, or less where the model puts positions of its own, such as a ViT's class token, before the
        features.

        Raises:
            Unsupported: the model has no softmax over its features, hides it, or has layers of unlike length.
        """
        with AttentionWeights(*case.shape) as weights:
            case.run(model)
        lengths = {layer.shape[-1] for layer in weights.layers}
        if not lengths:
            raise Unsupported("no softmax attention over the features in this model")
        if len(lengths) > 1:
            raise Unsupported(f"layers of {' and '.join(map(str, sorted(lengths)))} positions: no rule to join them")
        (length,) = lengths
        identity = torch.eye(length).to(case.inputs)
        rollout = identity
        for layer in weights.layers:
            weight = layer.to(identity)  # some models compute their softmax in float32 whatever their own dtype is
            rollout = ((weight + identity) / 2 if self.residual else weight) @ rollout
        examples = torch.arange(len(rollout), device=rollout.device)
        first = torch.zeros_like(examples)
        row = case.forward_arguments.get("last", first) if self.row is None else first + self.row
        return rollout[examples, row, length - case.shape[1] :]
