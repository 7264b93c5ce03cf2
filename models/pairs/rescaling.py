"""Scales and shifts that cancel: of neurons, of logits, of keys. Relevance is that of ε = 0.

* ReLU(c z) = c ReLU(z) for c > 0: weights and bias into a neuron times c, those out of it divided by c. ReLU's rule is
  the plain gradient, the same 0 or 1 at z and at c z, and the gradient behind comes divided by c and leaves times c.
* SwiGLU's s(a) ⊙ u is linear in u, which may be scaled by any c ≠ 0. Let S be the gradient at the product; with c it is
  S/c. The rule leaves ½ (c u)(S/c) at s(a), and ½ s(a) (S/c) at c u, so ½ s(a) S at u: both as without c.
* The logits' factor 1/√d may be in W_Q: all is linear in q. (Here √d is a power of two, and not a bit changes.)
* A key's bias b adds q_i·b to all logits of row i, which the softmax does not see. So its gradient G at the logits, in
  AttnLRP the plain one (Eq. 5), has rows that sum to zero. The bilinear rule leaves ½ Σ_j G_ij (k_j + b) at q_i, which
  is ½ Σ_j G_ij k_j; what it leaves at k_j, ½ Σ_i G_ij q_i, has no b in it. CP-LRP has no relevance at either. So b may
  be removed, or be any other: it is drawn anew, as training, whose gradient is 0 there, leaves it at about 1e-4. Rotary
  positions would turn b by another angle for each j: no such pair there.

Broken by ε > 0, as |z| / (|z| + ε) depends on the scale of z and on its bias: AttnLRP moves on all of them, CP-LRP on
the neurons'. In float32: gaps of 1e-7 to 1e-5.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from faithcheck.models.architectures.base_models import Linear, layers
from faithcheck.models.pairs.basis import draw_scales
from faithcheck.models.transform import function_preserving_transform

RULES = "arXiv 2510.18810, Eqs. 3–5"


def multiply(linear: Linear, factors: Tensor | float) -> None:
    """The map's outputs times these factors, one for each, or one for all."""
    linear.weight.T.mul_(factors)
    if linear.bias is not None:
        linear.bias.mul_(factors)


@function_preserving_transform(
    "rescaling.relu_neurons",
    base_models=("bert_relu",),
    where=lambda embedding_model: embedding_model.model.config.hidden_act == "relu",
    why="ReLU(c z) / c = ReLU(z) for c > 0",
    lrp="ReLU has the same gradient, 0 or 1, at z and at c z, and what comes divided by c leaves times c",
)
def relu_neurons(embedding_model: nn.Module) -> nn.Module:
    """What goes into each feed-forward neuron times a c in [½, 2], what comes out divided by it."""
    for layer in layers(embedding_model):
        (up,) = layer.up
        factors = draw_scales(len(up.weight)).to(up.weight)
        multiply(up, factors)
        layer.down.weight.div_(factors)
    return embedding_model


@function_preserving_transform(
    "rescaling.gated_neurons",
    base_models=("llama",),
    why="SwiGLU is linear in the factor that is no gate",
    lrp="half of S/c meets c u at the gate, and leaves u's own map times c: the same at both",
    cite=RULES,
)
def gated_neurons(embedding_model: nn.Module) -> nn.Module:
    """SwiGLU's linear factor times a c in ±[½, 2] in each neuron, what comes out divided by it."""
    for layer in layers(embedding_model):
        _, up = layer.up
        signs = 1 - 2 * torch.randint(2, (len(up.weight),))
        factors = (signs * draw_scales(len(up.weight))).to(up.weight)
        multiply(up, factors)
        layer.down.weight.div_(factors)
    return embedding_model


@function_preserving_transform(
    "rescaling.logits",
    why="(q/√d)·k = (q·k)/√d",
    lrp="a constant factor passes the gradient on times itself, before a product with k as behind it",
    cite=RULES,
)
def logits(embedding_model: nn.Module) -> nn.Module:
    """The factor of attention's logits taken into W_Q and its bias."""
    for layer in layers(embedding_model):
        multiply(layer.query, layer.attention.scaling)
        layer.attention.scaling = 1.0
    return embedding_model


@function_preserving_transform(
    "rescaling.key_bias",
    base_models=("bert", "bert_trained", "roberta", "gpt2", "vit"),
    where=lambda embedding_model: all(layer.key.bias is not None for layer in layers(embedding_model)),
    why="a key's bias b adds q·b to every logit of a row, and softmax does not see what a whole row shares",
    lrp="so the gradient at a row of logits sums to zero, and b, which all keys share, adds 0 to what arrives at q",
    cite=RULES,
)
def key_bias(embedding_model: nn.Module) -> nn.Module:
    """The keys' biases drawn anew."""
    for layer in layers(embedding_model):
        assert layer.key.bias is not None
        layer.key.bias.normal_()
    return embedding_model
