"""Consecutive linear maps, written as one map or as two.

Why AttnLRP and CP-LRP stay the same, at ε = 0:

1. A norm's γ and β, if only linear maps read the norm (in BERT and RoBERTa: the last norm alone).
   W (γ ⊙ n + β) + b = (W γ) n + (W β + b). The norm's rule holds σ constant. With u the gradient behind the map, the
   relevance at the norm's input is γ ⊙ Wᵀu over σ, centred unless the norm is an RMSNorm. With γ in W it is (W γ)ᵀu
   over σ, the same vector.
2. A map as a product, W = (W A⁻¹) A. The plain gradients multiply to Aᵀ (W A⁻¹)ᵀ u = Wᵀ u.
3. The values' bias b, moved behind the attention weights. Each row of weights A sums to one, so that
   A (V + 1 bᵀ) = A V + 1 bᵀ, and W_O b may join the output's bias. Let S be the gradient at A V. At V the rule gives
   ½ Aᵀ S (CP-LRP: Aᵀ S), which has no b in it. At A_ij it gives ½ S_i·v_j + ½ S_i·b, and the second term is the same in
   all of row i. The softmax's gradient (Eq. 5) in a row with gradient r at its weights a is a ⊙ (r − a·r), which is 0
   for a constant r. In CP-LRP the weights have no relevance.

With ε > 0, AttnLRP and CP-LRP change: each linear map's output z is scaled by |z| / (|z| + ε), and z is another number
once a bias or a factor is elsewhere. In float32: gaps of 1e-7 to 1e-5.
"""

from torch import nn

from faithcheck.models.architectures.base_models import layers
from faithcheck.models.architectures.transformer_layer import LinearView, TransformerLayer, as_module
from faithcheck.models.pairs.basis_of_queries_keys_values import well_conditioned
from faithcheck.models.transform import every_layer, function_preserving_transform


def can_take_beta(layer: TransformerLayer) -> bool:
    """Whether every linear map that reads a norm with a β has a bias, to which the map of β can be added."""
    return all(
        getattr(norm, "bias", None) is None or all(linear.bias is not None for linear in maps)
        for norm, maps in layer.norms
    )


@function_preserving_transform(
    "folding.norm",
    requires=[every_layer("a bias in every linear map that reads a norm with a β", can_take_beta)],
    why="W (γ ⊙ n + β) + b = (W γ) n + (W β + b)",
    lrp="with σ constant a norm is linear, and the gradient of linear maps does not depend on how they are divided",
)
def norm(embedding_model: nn.Module) -> nn.Module:
    """Move every norm's γ and β into the linear maps that read it: γ = 1, β = 0."""
    for layer in layers(embedding_model):
        for module, maps in layer.norms:
            gamma, beta = module.weight, getattr(module, "bias", None)
            for linear in maps:
                if beta is not None:
                    assert linear.bias is not None
                    linear.bias.add_(linear.weight @ beta)
                linear.weight.mul_(gamma)
            nn.init.ones_(gamma)
            if beta is not None:
                nn.init.zeros_(beta)
    return embedding_model


@function_preserving_transform(
    "folding.product", why="W = (W A⁻¹) A", lrp="a linear map has the plain gradient, and Aᵀ (W A⁻¹)ᵀ = Wᵀ"
)
def product(embedding_model: nn.Module) -> nn.Module:
    """Write a map into the feed-forward neurons (the gate's, if there is a gate) as two maps, A random."""
    for layer in layers(embedding_model):
        weight, bias = layer.up[0].weight, layer.up[0].bias
        first = well_conditioned(weight.shape[1]).to(weight)
        second = as_module(LinearView(weight @ first.inverse(), bias))
        layer.replace(layer.up[0], nn.Sequential(as_module(LinearView(first, None)), second))
    return embedding_model


@function_preserving_transform(
    "folding.value_bias",
    requires=[
        every_layer(
            "a bias in every map to values and in every output projection",
            lambda layer: layer.value.bias is not None and layer.output.bias is not None,
        )
    ],
    why="attention weights sum to one, so that every token gets the whole bias of the values",
    lrp="the bias adds a constant to the gradient at each row of weights, and the softmax's gradient ignores constants",
    cite="arXiv 2510.18810, Eqs. 3–5",
)
def value_bias(embedding_model: nn.Module) -> nn.Module:
    """Move the values' bias through the output projection into its bias."""
    for layer in layers(embedding_model):
        assert layer.value.bias is not None
        assert layer.output.bias is not None
        by_head = layer.value.bias.reshape(layer.key_value_heads, -1)
        layer.output.bias.add_(layer.output.weight @ by_head.repeat_interleave(layer.queries_per_key, 0).flatten())
        layer.value.bias.zero_()
    return embedding_model
