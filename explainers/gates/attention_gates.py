"""Gates in the attention: removing features from attention, whole or in part, and the effect of each gate.

Removing key i from a row of attention weights A does what a 0 in an attention mask does: A_k becomes A_k / (1 − A_i)
for k ≠ i, and A_i becomes 0. The arithmetic of effects is in `gate_effects`.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from faithcheck.explainers.attention_observer import OtherAttention
from faithcheck.explainers.gates import gate_effects
from faithcheck.explainers.gates.followed_mask import FollowedMask
from faithcheck.explainers.gates.gate_effects import EffectKind, GateEffectCollector, at_least_float32, clear_own_rows
from faithcheck.explainers.gates.gate_observer import GateObserver
from faithcheck.explainers.gates.sinks import ExactChange
from faithcheck.explainers.refused_modules import flex_attention, refuse_modules
from faithcheck.models.case import Case, select_target


class GatedAttention(GateObserver):
    """Attention with features removed whole or in part, and the effect of each feature's gate on the output.

    The features in ``removed``, ``(batch, features)`` bool, are removed from every row of every layer, as far as
    ``strength`` in [0, 1] says: the weights become (1 − strength)·A + strength·(A without them). ``weights`` has each
    layer's A, ``(batch, …, queries, keys)``, detached; ``gated_weights`` has the weights that the model continues with.
    """

    remedy = "remove them by their baseline"

    def __init__(
        self, case: Case, removed: Tensor | None = None, strength: float = 1.0, mask: FollowedMask | None = None
    ) -> None:
        super().__init__(case, mask)
        self.removed, self.strength = removed, strength
        self.gated_weights: list[Tensor] = []
        self._collector = GateEffectCollector()

    def attend(self, logits: Tensor, softmax: Callable[[Tensor], Tensor]) -> Tensor:
        """See `AttentionObserver.attend`; removes features, and taps the weights for the backward pass."""
        # The backward pass computes the gradient at the logits anyway, and long texts reuse it. It is of no use if
        # the gated weights are not A, or the dtype is narrow.
        reuse = bool(self.weights) and logits.requires_grad and self.removed is None
        reuse &= logits.element_size() >= 4 and logits.numel() >= len(logits) * gate_effects.REUSED_ENTRIES
        if reuse:
            logits = logits.view_as(logits)  # a private view: other readers of the logits would add to their gradient
        attention, weights = self.remove_features(logits, softmax)
        if torch.is_grad_enabled():
            if not (weights.requires_grad and self.weights):
                weights = weights.detach()  # nothing below the first attention needs a gradient
            weights = self._collector.tap(attention.detach(), weights, logits if reuse else None)
        self.note(attention.detach())
        self.gated_weights.append(weights)
        return weights

    def remove_features(self, logits: Tensor, softmax: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """A, and the weights with the removed features removed as far as ``strength`` says.

        In part: A_k shall become (1 − s)·A_k where k is removed, and (1 − s + s/r)·A_k elsewhere, where r is the
        attention that the features not removed have. So the logits of the removed features are lowered by the log of
        the ratio of these factors, log(1 + s / ((1 − s) r)). It counts as a constant, which spares the graph a second
        softmax.
        """
        if self.removed is None:
            return 2 * (softmax(logits),)
        removed = logits.new_zeros(len(logits), logits.shape[-1], dtype=torch.bool)
        removed[:, -self.case.shape[1] :] = self.removed
        removed = removed.reshape(len(removed), *(1,) * (logits.dim() - 2), -1)
        if self.strength == 1:
            # The lowest number, not −∞: under a causal mask the first row may have nothing else to attend to.
            return 2 * (softmax(logits.masked_fill(removed, torch.finfo(logits.dtype).min)),)
        attention = softmax(logits.detach())
        rest = at_least_float32(attention) @ at_least_float32((~removed).to(attention)).mT
        rest = rest.clamp_min(torch.finfo(torch.float32).tiny)
        lowered = -torch.log1p(self.strength / (1 - self.strength) / rest).to(logits)
        return attention, softmax(torch.addcmul(logits, lowered, removed.to(logits)))

    def require_attention(self) -> int:
        """See `AttentionObserver.require_attention`; refuses also what the gates would miss."""
        if self.open_exponentials:
            place = self.open_exponentials[0][3]
            raise OtherAttention(f"exp in {place()}: exponentials over the features of which no softmax is made")
        positions, features = super().require_attention(), self.case.shape[1]
        if positions > features:
            attended = torch.stack([(weights[..., -features:] > 0).flatten(1, -2).any(1) for weights in self.weights])
            expected = self.case.unpadded if self.removed is None else self.case.unpadded & ~self.removed
            if bool((expected & ~attended.any(0)).any()):
                raise OtherAttention(
                    f"softmax in {self.places[0]()}: features that no row attends to: they are not the last positions "
                    "(padding?)"
                )
        return positions

    def unread(self, layer: int) -> OtherAttention:
        """The error that refuses a layer of attention that the explained output does not depend on."""
        return OtherAttention(
            f"softmax in {self.places[layer]()}: the explained output does not depend on these attention weights; "
            f"{self.remedy}"
        )

    @property
    def readout_rows(self) -> Tensor:
        """The rows of the last layer that the output is read at, ``(batch, queries)`` bool; known after `effects`."""
        return self._collector.readout_rows

    def effects(self, output: Tensor, *kinds: EffectKind) -> tuple[Tensor, ...]:
        """The effects of each feature's gate in each row of each layer, summed over heads: one backward pass.

        Gives one tensor ``(layers, batch, queries, features)`` for each kind. Raises OtherAttention if no attention was
        observed, layers differ in length, or the explained output ``(batch,)`` does not depend on weights.
        """
        self.require_attention()
        if not output.requires_grad and not output.is_inference():  # in inference mode torch raises its own error
            raise self.unread(0)
        self._collector.reset(kinds)
        self._collector.run_backward(output)
        effects, layers = self._collector.effects, len(self.weights)
        if len(effects) < layers * len(output):
            raise self.unread(min(set(range(layers)) - {layer for layer, _ in effects}))
        by_kind = zip(*(effects[place] for place in sorted(effects)), strict=True)
        features = slice(-self.case.shape[1], None)
        return tuple(torch.unflatten(torch.stack(each)[..., features], 0, (layers, -1)) for each in by_kind)


@torch.enable_grad()
def attention_gate_effects(
    model: nn.Module,
    case: Case,
    kind: EffectKind,
    removed: Tensor | None = None,
    strength: float = 1.0,
    mask: FollowedMask | None = None,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The effect of each feature's gate, summed over layers and rows; the model's inputs need no gradient.

    Returns the effects ``(batch, features)``, the explained output ``(batch,)``, and the attention weights of each
    layer. Finite effects leave out a feature's own row, see `clear_own_rows`. For the arguments see `GatedAttention`.
    """
    attention = GatedAttention(case, removed, strength, mask)
    with attention.single_pass(model), attention:
        output = select_target(case.run(model), case.target)
    (by_layer,) = attention.effects(output, kind)
    effects = by_layer.sum(0)
    if kind == "finite":
        clear_own_rows(effects, attention.readout_rows)
    return effects.sum(1), output.detach(), attention.weights


@torch.no_grad()
def output_without(model: nn.Module, case: Case, removed: Tensor) -> Tensor:
    """The explained output ``(batch,)`` when no row attends to the removed features, ``(batch, features)`` bool.

    The same as a 0 in the attention mask for models that use the mask in their self-attention alone, and defined also
    for models that take no mask. (OPT derives positions from the mask, and ALiBi distances.) Raises Unsupported if no
    attention over the features was observed, or the model has flex attention.
    """
    refuse_modules(model, flex_attention)
    with GatedAttention(case, removed) as attention:
        output = case.run(model)
    attention.require_attention()
    return select_target(output, case.target)


def changes_from(output: Tensor, model: nn.Module, case: Case) -> ExactChange:
    """How far the explained output ``(batch,)`` falls without a feature, by a forward row, see `output_without`."""

    def exact_change(example: Tensor, feature: Tensor) -> Tensor:
        removed = one_hot(feature, case.shape[1]).bool()
        return output[example] - output_without(model, case.select(example), removed)

    return exact_change
