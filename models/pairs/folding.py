"""Linear maps that follow each other, written as one or as two. Relevance is that of ε = 0.

* A norm's γ and β, where nothing but linear maps follows (in BERT and RoBERTa, behind the last norm only):
  W (γ ⊙ n + β) + b = (W γ) n + (W β + b). The norm's rule holds σ constant: centred γ ⊙ Wᵀu over σ (no centring in
  RMSNorm), u the gradient behind the map. With γ in W that is (W γ)ᵀu, the same vector.
* A map as a product, W = (W A⁻¹) A: the plain gradients multiply to Aᵀ (W A⁻¹)ᵀ u = Wᵀ u.
* The values' bias b, past attention: each row of weights A sums to one, so A (V + 1 bᵀ) = A V + 1 bᵀ, and W_O b may
  join the output's bias. Let S be the gradient at A V. At V the rule leaves ½ Aᵀ S (CP-LRP: Aᵀ S), with no b in it; at
  A it leaves ½ S_i·v_j + ½ S_i·b, the second the same in all of row i. The softmax's gradient (Eq. 5) in a row with
  gradient r at its weights a, a ⊙ (r − a·r), is 0 for a constant r. CP-LRP has no relevance at A.

Broken by ε > 0, for AttnLRP and CP-LRP: each linear map's output is scaled by its own |z| / (|z| + ε), and z is another
where a bias or a factor has moved. In float32: gaps of 1e-7 to 1e-5.
"""

from __future__ import annotations

from torch import nn
from transformers.pytorch_utils import Conv1D

from faithcheck.models.architectures.base_models import Linear, as_module, layers
from faithcheck.models.pairs.basis import well_conditioned
from faithcheck.models.transform import function_preserving_transform


def can_take_beta(embedding_model: nn.Module) -> bool:
    """Whether every map that follows a norm with a β has a bias to add it to."""
    norms = [norm for layer in layers(embedding_model) for norm in layer.norms]
    return all(getattr(norm, "bias", None) is None or all(m.bias is not None for m in maps) for norm, maps in norms)


@function_preserving_transform(
    "folding.norm",
    where=can_take_beta,
    why="W (γ ⊙ n + β) + b = (W γ) n + (W β + b)",
    lrp="with σ constant a norm is linear, and the gradient of linear maps does not see how they are divided",
)
def norm(embedding_model: nn.Module) -> nn.Module:
    """Every norm's γ and β taken into the linear maps that follow: γ = 1, β = 0."""
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
    "folding.product",
    why="W = (W A⁻¹) A",
    lrp="a linear map has the plain gradient, and Aᵀ (W A⁻¹)ᵀ = Wᵀ",
)
def product(embedding_model: nn.Module) -> nn.Module:
    """A map into the feed-forward neurons (a gate, where there is one) as two, A random and invertible."""
    for layer in layers(embedding_model):
        weight, bias = layer.up[0].weight, layer.up[0].bias
        first = well_conditioned(weight.shape[1]).to(weight)
        two = nn.Sequential(as_module(Linear(first, None)), as_module(Linear(weight @ first.inverse(), bias)))
        for name, module in list(layer.module.named_modules()):
            if isinstance(module, nn.Linear | Conv1D) and module.weight.data_ptr() == weight.data_ptr():
                layer.module.set_submodule(name, two)
    return embedding_model


@function_preserving_transform(
    "folding.value_bias",
    base_models=("bert", "bert_trained", "roberta", "gpt2", "vit"),
    where=lambda embedding_model: all(
        m.bias is not None for layer in layers(embedding_model) for m in (layer.value, layer.output)
    ),
    why="attention weights sum to one, so that every token gets the values' bias whole",
    lrp="it adds the same to what arrives at a whole row of weights, which the softmax's gradient takes off again",
    cite="arXiv 2510.18810, Eqs. 3–5",
)
def value_bias(embedding_model: nn.Module) -> nn.Module:
    """The values' bias taken through the output projection into its bias."""
    for layer in layers(embedding_model):
        assert layer.value.bias is not None
        assert layer.output.bias is not None
        layer.output.bias.add_(layer.output.weight @ layer.value.bias)
        layer.value.bias.zero_()
    return embedding_model
