"""The effects of the gates in attention, computed layer by layer while the backward pass runs.

Derivation. One row of one head of one layer has the logits z_k, the weights A_k ∝ m_k exp z_k with gates m_k, and S_k,
the gradient of the output at A_k.

1. The first-order effect of gate i is the derivative at m = 1: ∂A_k/∂m_i = A_k (δ_ki − A_i), so that

       ∂f/∂m_i = Σ_k S_k A_k (δ_ki − A_i) = A_i (S_i − Σ_k A_k S_k),

   which is also the gradient at the logit z_i.
2. Without key i the weights are A_k / (1 − A_i) for k ≠ i, and 0 for i. The finite effect is the change of the weights
   times their gradient:

       Σ_k S_k (A_k − A_k without i) = A_i (S_i − Σ_k A_k S_k) / (1 − A_i),

   which is the first-order effect over 1 − A_i.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

EffectKind: TypeAlias = Literal["first-order", "finite"]

AttentionGradients: TypeAlias = tuple[Tensor, ...]
"""One example in one layer: attention weights, the gradient at them and, if known, the gradient at the logits."""

BATCH_ENTRIES = 2**18
"""Up to how many attention weights layers of short texts are computed in one batch, to save the time of small calls."""

REUSED_ENTRIES = 2**16
"""From how many attention weights of an example in a layer on the gradient at the logits is taken from the backward
pass. With fewer, the hook for it takes longer than computing it again (docs/results/cost.md)."""

TAPPED_ENTRIES = 2**13
"""From how many attention weights in a layer on a tap hands over their gradient. A copy of fewer takes less time, up to
2¹⁶. The bound is lower, so that the short example by which memory is predicted has taps, as a long text has."""

NEARLY_ONE = 0.99
"""Above this attention weight A, 1 − A has lost two digits to round-off, and the sum of the other weights is used."""


class GradientTap(torch.autograd.Function):
    """The identity on values. Its backward pass shows the gradient to a callback if the anchor's gradient is asked for.

    Asking for the gradient at the values themselves would keep it until the end of the backward pass: for a long text
    twice the memory.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, anchor: Tensor, callback: Callable[[Tensor], None]) -> Tensor:
        """The values. ``anchor`` is a scalar whose gradient is 0."""
        ctx.callback = callback
        return values.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """The unchanged gradient at the values, and 0 at the anchor."""
        ctx.callback(gradient)
        return gradient, gradient.new_zeros(()), None


class GateEffectCollector:
    """Computes the effects of the gates of each layer as soon as the backward pass has the gradients.

    Of many attention weights, taps hand over the gradients, and no tensor of the graph is held: the graph holds the
    collector, and a cycle would never be freed. Of few, the backward pass returns the gradients at its end: that takes
    more memory, but less time than a tap in each layer. It is asked for the gradient of one of the ``anchors`` per
    layer: a scalar, or the weights. ``effects`` are by (layer, example), ``(queries, keys)`` of each kind, summed over
    heads. ``readout_rows``, ``(batch, queries)`` bool, are the rows of the last layer that the output is read at.
    """

    def __init__(self) -> None:
        self.anchors: list[Tensor] = []
        self.has_taps: bool | None = None  # in all layers or in none: with both, tensors would be held in a cycle
        self.untapped: list[Tensor] = []  # the attention weights A by layer, if there are no taps
        self.readout_rows = torch.empty(0)
        self.buffer = torch.empty(0)  # shared by all layers: allocating it for each layer takes time
        self.reset(())

    def reset(self, kinds: tuple[EffectKind, ...]) -> None:
        """Discard the effects of an earlier backward pass; the next one computes these kinds."""
        self.kinds = kinds
        self.effects: dict[tuple[int, int], list[Tensor]] = {}
        self.pending: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # A and its gradient, until the gradient at the logits comes
        self.batch: list[tuple[tuple[int, int], AttentionGradients]] = []  # up to `BATCH_ENTRIES`

    def tap(self, attention: Tensor, weights: Tensor, logits: Tensor | None) -> Tensor:
        """The weights, of which the backward pass hands over the gradient, and that at the logits if these are given.

        ``attention`` is A of the layer, detached; ``weights`` are A, or A with features partly removed.
        """
        if self.has_taps is None:
            self.has_taps = attention.numel() >= TAPPED_ENTRIES
        if not self.has_taps:
            self.untapped.append(attention)
            self.anchors.append(weights.requires_grad_())
            return weights.clone()  # the model may write to it
        layer, has_logits = len(self.anchors), logits is not None  # a hook that holds the logits would keep them alive

        def at_weights(gradient: Tensor) -> None:
            self.find_readout_rows(gradient)
            if has_logits:
                self.pending[layer] = attention, gradient
            else:
                self.add(layer, zip(attention, gradient, strict=True))

        def at_logits(gradient: Tensor) -> None:
            if layer in self.pending:
                self.add(layer, zip(*self.pending.pop(layer), gradient, strict=True))

        if logits is not None:
            logits.register_hook(at_logits)  # type: ignore[no-untyped-call]
        self.anchors.append(weights.new_zeros((), requires_grad=True))
        if not weights.requires_grad:
            weights = weights.clone()  # the model may write to it, and autograd would not notice
        tapped: Tensor = GradientTap.apply(weights, self.anchors[-1], at_weights)  # type: ignore[no-untyped-call]
        return tapped

    def find_readout_rows(self, gradient: Tensor) -> None:
        """Find `readout_rows` by the gradient at the weights, which comes for the last layer first."""
        if not len(self.readout_rows):
            size = torch.maximum(gradient.amax(-1), -gradient.amin(-1))  # a copy of |gradient| takes longer
            self.readout_rows = rows_with_gradient(size.flatten(1, -2).amax(1) if size.dim() > 2 else size)

    def run_backward(self, output: Tensor) -> None:
        """Run the backward pass from the explained output ``(batch,)``, and compute the effects."""
        gradients = torch.autograd.grad(output.sum(), self.anchors, allow_unused=True)
        for layer in reversed(range(len(self.untapped))):
            gradient = gradients[layer]
            if gradient is not None:
                self.find_readout_rows(gradient)
                self.add(layer, zip(self.untapped[layer].unbind(), gradient.unbind(), strict=True))
        self.finish()

    def finish(self) -> None:
        """Compute what is left after the backward pass, also for layers whose logits got no gradient."""
        for layer, (attention, gradient) in self.pending.items():
            self.add(layer, zip(attention, gradient, strict=True))
        self.pending = {}
        self.compute_batch()

    def add(self, layer: int, examples: Iterable[AttentionGradients]) -> None:
        """Add the examples of one layer to the batch, and compute the batch once it is large enough."""
        for example, tensors in enumerate(examples):
            by_heads = tuple(flatten_heads(values) for values in tensors)
            if self.batch and [x.shape for x in self.batch[0][1]] != [x.shape for x in by_heads]:
                self.compute_batch()
            self.batch.append(((layer, example), by_heads))
            if 2 * len(self.batch) * by_heads[0].numel() > BATCH_ENTRIES:
                self.compute_batch()

    def compute_batch(self) -> None:
        """Compute the effects of the batch, and empty it."""
        if not self.batch:
            return
        places, parts = zip(*self.batch, strict=True)
        self.batch = []
        stacked = [
            at_least_float32(torch.stack(values) if len(values) > 1 else values[0].unsqueeze(0))
            for values in zip(*parts, strict=True)
        ]
        if self.buffer.shape != stacked[0].shape or self.buffer.dtype != stacked[0].dtype:
            self.buffer = torch.empty_like(stacked[0])
        by_kind = gate_effects(self.kinds, self.buffer, *stacked)
        self.effects |= {place: each for place, *each in zip(places, *by_kind, strict=True)}


def gate_effects(
    kinds: tuple[EffectKind, ...], buffer: Tensor, weights: Tensor, gradient: Tensor, at_logits: Tensor | None = None
) -> list[Tensor]:
    """The effects of each key's gate in each row, summed over heads; one ``(…, queries, keys)`` tensor for each kind.

    ``weights`` are A, ``gradient`` is S, and ``at_logits`` the gradient at the logits, if the backward pass made it;
    all are ``(…, heads, queries, keys)``, as ``buffer`` is, which is overwritten.
    """
    if at_logits is None:
        at_logits = torch.mul(weights, gradient)
        at_logits = torch.sub(gradient, at_logits.sum(-1, keepdim=True), out=at_logits).mul_(weights)
    return [
        sum_over_heads(at_logits if kind == "first-order" else finite_effect(weights, gradient, at_logits, buffer))
        for kind in kinds
    ]


def finite_effect(weights: Tensor, gradient: Tensor, first_order: Tensor, effect: Tensor) -> Tensor:
    """The finite effect in each head, written to ``effect``: the first-order effect over 1 − A.

    Where a row attends almost only to key i, 1 − A_i is round-off. There the effect is computed as

        A_i (S_i − Σ_{k≠i} A_k S_k / Σ_{k≠i} A_k),

    and is 0 where the row attends to nothing else.
    """
    torch.sub(1, weights, out=effect)
    has_nearly_one = not bool(effect.amin() >= 1 - NEARLY_ONE)
    torch.div(first_order, effect, out=effect)
    if has_nearly_one:
        rows = (weights.amax(-1) > NEARLY_ONE).nonzero(as_tuple=True)
        row_weights, row_gradient = weights[rows], gradient[rows]
        key = row_weights.argmax(-1, keepdim=True)
        others = row_weights.scatter(-1, key, 0)
        total = others.sum(-1, keepdim=True)
        others_mean = (others * row_gradient).sum(-1, keepdim=True) / total
        change = row_weights.gather(-1, key) * (row_gradient.gather(-1, key) - others_mean)
        effect[(*rows, key.squeeze(-1))] = change.masked_fill(total == 0, 0).squeeze(-1)
    return effect


def rows_with_gradient(size: Tensor) -> Tensor:
    """The rows that the output is read at, ``(batch, rows)`` bool, by the size of the output's gradient at each row.

    Round-off does not count: a readout that is rotated and rotated back leaves some gradient at every row.
    """
    return size > min(100 * torch.finfo(size.dtype).eps, 1e-3) * size.amax(1, keepdim=True)


def clear_own_rows(effects: Tensor, readout_rows: Tensor) -> None:
    """Set the effect of each feature in its own row to 0, in place, unless the output is read there.

    A removed token's own row is read by no other row, so its change reaches the output only at a readout row. The
    features are the last positions of the effects, ``(…, batch, queries, features)``.
    """
    queries, features = effects.shape[-2:]
    own_rows = effects.diagonal(features - queries, -2, -1)
    own_rows.masked_fill_(~readout_rows[:, queries - features :], 0)


def at_least_float32(values: Tensor) -> Tensor:
    """The values in float32 or wider: float16 and bfloat16 keep too few digits of 1 − A."""
    return values.float() if values.element_size() < 4 else values


def flatten_heads(values: Tensor) -> Tensor:
    """The values of one example as ``(heads, queries, keys)``, whatever axes come before the last two."""
    return values.reshape(-1, *values.shape[-2:])


def sum_over_heads(values: Tensor) -> Tensor:
    """The sum over heads, ``(…, heads, queries, keys)`` to ``(…, queries, keys)``."""
    return values.sum(-3)
