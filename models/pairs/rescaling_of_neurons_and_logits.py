"""Scales and shifts that cancel: of neurons, of attention logits, of keys.

Why AttnLRP and CP-LRP stay the same, at ε = 0:

1. ReLU neurons. ReLU(c z) = c ReLU(z) for c > 0: the weights and bias into a neuron times c, the weights out of it
   divided by c. ReLU's rule is the plain gradient, the same 0 or 1 at z and at c z. The gradient behind the neuron is
   divided by c, and the map into the neuron multiplies it by c.
2. Gated neurons. SwiGLU's s(a) ⊙ u is linear in u, which may be scaled by any c ≠ 0. Let S be the gradient at the
   product; with c it is S/c. The rule gives ½ (c u)(S/c) at s(a), as without c. At c u it gives ½ s(a) (S/c), hence
   ½ s(a) S at u, as without c.
3. Logits. The factor 1/√d may be part of W_Q, as every step is linear in q. (In the base models √d is a power of two,
   so that the results are equal bit by bit.)
4. Key biases. A key's bias b adds q_i·b to all logits of row i, which the softmax ignores. So its gradient G at the
   logits, in AttnLRP the plain gradient (Eq. 5), has rows that sum to zero. The bilinear rule gives
   ½ Σ_j G_ij (k_j + b) at q_i, which is ½ Σ_j G_ij k_j. At k_j it gives ½ Σ_i G_ij q_i, which has no b in it. In CP-LRP
   neither has relevance. So b may take any value. It is drawn again, as training leaves it at about 1e-4, its gradient
   being 0. Rotary positions would rotate b by another angle for each j: the transform does not apply to them.

With ε > 0, |z| / (|z| + ε) depends on the scale of z and on its bias: AttnLRP changes on all pairs, CP-LRP on the
neurons'. In float32: gaps of 1e-7 to 1e-5.
"""

import torch
from torch import Tensor, nn

from faithcheck.models.architectures.base_models import layers
from faithcheck.models.architectures.transformer_layer import LinearView
from faithcheck.models.pairs.basis_of_queries_keys_values import draw_scales
from faithcheck.models.transform import every_layer, function_preserving_transform

RULES = "arXiv 2510.18810, Eqs. 3–5"


def multiply(linear: LinearView, factors: Tensor | float) -> None:
    """Multiply the map's outputs by factors ``(outputs,)``, or all by one number."""
    linear.weight.T.mul_(factors)
    if linear.bias is not None:
        linear.bias.mul_(factors)


@function_preserving_transform(
    "rescaling.relu_neurons",
    requires=[
        every_layer(
            "ReLU in every feed-forward block", lambda layer: isinstance(layer.activation, nn.ReLU) and not layer.gated
        )
    ],
    variants=("bert_relu",),
    why="ReLU(c z) / c = ReLU(z) for c > 0",
    lrp="ReLU has the same gradient, 0 or 1, at z and at c z; the map behind divides by c, the map before multiplies",
)
def relu_neurons(embedding_model: nn.Module) -> nn.Module:
    """Multiply the weights into each feed-forward neuron by a c in [½, 2], and divide the weights out of it by c."""
    for layer in layers(embedding_model):
        (up,) = layer.up
        factors = draw_scales(len(up.weight)).to(up.weight)
        multiply(up, factors)
        layer.down.weight.div_(factors)
    return embedding_model


@function_preserving_transform(
    "rescaling.gated_neurons",
    requires=[every_layer("a gated feed-forward block in every layer", lambda layer: layer.gated)],
    why="SwiGLU is linear in the factor that is not the gate",
    lrp="the gate gets ½ (c u)(S/c) = ½ u S, and u gets c times ½ s(a) S/c: both as without c",
    cite=RULES,
)
def gated_neurons(embedding_model: nn.Module) -> nn.Module:
    """Multiply SwiGLU's linear factor by a c in ±[½, 2] in each neuron, and divide the weights out of it by c."""
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
    lrp="a constant factor multiplies the gradient by itself, before the product with k or behind it",
    cite=RULES,
)
def logits(embedding_model: nn.Module) -> nn.Module:
    for layer in layers(embedding_model):
        multiply(layer.query, layer.attention.scaling)
        layer.attention.scaling = 1.0
    return embedding_model


@function_preserving_transform(
    "rescaling.key_bias",
    requires=[
        every_layer("a bias in every map to keys", lambda layer: layer.key.bias is not None),
        every_layer("positions that do not rotate keys", lambda layer: not layer.rotary),
    ],
    why="a key's bias b adds q·b to every logit of a row, and softmax ignores a constant added to a row",
    lrp="so the gradient at a row of logits sums to zero, and b, which all keys share, adds 0 to the relevance at q",
    cite=RULES,
)
def key_bias(embedding_model: nn.Module) -> nn.Module:
    for layer in layers(embedding_model):
        assert layer.key.bias is not None
        layer.key.bias.normal_()
    return embedding_model
