"""LayerNorm and RMSNorm in one operation and written out, between two linear maps.

Let c be what the norm scales (x − mean x, or x), n its size, σ² = mean c² + eps, and G the gradient at c/σ.

1. As one operation (or as a class that is treated as one) a norm is linear with its 1/σ held constant: G/σ arrives
   at c.
2. Written out, 1/σ is data. The product of c and 1/σ halves: G/2σ at c and ½ΣGc at 1/σ.
3. From 1/σ on, every step has the identity rule: 1/σ² · ½ΣGc at σ, 1/σ³ · ½ΣGc at σ², where eps keeps its share, and
   c/n of that at c.
4. Together ½(G/σ + c ΣGc/(nσ³)). The difference to step 1 is ½(G/σ − c ΣGc/(nσ³)).
5. This is half of the plain gradient of c/σ: the reciprocal's rule lacks its minus sign, and the ½ of the root and the
   2 of the square cancel.
6. All other operations are linear, so a_f − a_g = ½ x ⊙ ∇f(x), exactly, for any eps, γ, β and biases.

Two ways to write a variance agree: mean (x − mean x)² and mean x² − (mean x)² both have the modified gradient c/n, by
the identity rule of the square. ε-LRP refuses a norm written out, as it has a product of data.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from faithcheck.models.case import Case
from faithcheck.models.cases import points
from faithcheck.models.closed_forms import gradient_times_input
from faithcheck.models.expectation import INVARIANT_BY_DEFINITION, Expectations, expect_lrp
from faithcheck.models.networks.hidden_layer import two_hidden_layers
from faithcheck.models.pair import invariance_pair


def centred_variance(z: Tensor) -> Tensor:
    return (z - z.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)


def variance_from_moments(z: Tensor) -> Tensor:
    return z.square().mean(-1, keepdim=True) - z.mean(-1, keepdim=True).square()


class LayerNormByHand(nn.Module):
    """The parameters of an `nn.LayerNorm`, each step an operation of its own; ``(batch, width)`` to the same."""

    def __init__(self, norm: nn.LayerNorm, variance: Callable[[Tensor], Tensor] = centred_variance) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.variance = norm.weight, norm.bias, norm.eps, variance

    def forward(self, z: Tensor) -> Tensor:
        sigma = torch.sqrt(self.variance(z) + self.eps)
        return (z - z.mean(-1, keepdim=True)) / sigma * self.weight + self.bias


class RMSNormOfAnotherName(nn.Module):
    """The parameters and the code of a `LlamaRMSNorm`, float32 too, in a class that no rule names."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, z: Tensor) -> Tensor:
        single = z.to(torch.float32)
        single = single * torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * single.to(z.dtype)


def half_the_gradient(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """½ x ⊙ ∇f(x), ``(batch, 8)``: what the pair loses where 1/σ takes half."""
    return gradient_times_input(f, case) / 2


def expect_half_lost(why: str) -> Expectations:
    """The expectations where g treats 1/σ as data."""
    return {
        **INVARIANT_BY_DEFINITION,
        **expect_lrp(why, predict=half_the_gradient, cite="1/σ constant: Ali et al. 2022"),
    }


def layer_norm(seed: int, dtype: torch.dtype, device: torch.device) -> nn.LayerNorm:
    norm = nn.LayerNorm(6)
    randomise_affine(norm, seed)
    return norm.to(device, dtype)


def randomise_affine(norm: nn.Module, seed: int) -> None:
    for parameter in norm.parameters():
        nn.init.normal_(parameter, 1, 0.5, generator=torch.Generator().manual_seed(seed))


def layer_norm_by_hand(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    norm = layer_norm(seed, dtype, device)
    return two_hidden_layers(seed, dtype, device, norm, LayerNormByHand(norm))


invariance_pair(
    "norm.layer_norm",
    layer_norm_by_hand,
    points,
    expect_half_lost("1/σ is constant in F.layer_norm and takes half by hand: the gap is ½ gradient × input"),
    why="LayerNorm is (z − mean z)/σ ⊙ γ + β",
)


def two_variances(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    norm = layer_norm(seed, dtype, device)
    return two_hidden_layers(seed, dtype, device, LayerNormByHand(norm), LayerNormByHand(norm, variance_from_moments))


invariance_pair(
    "norm.two_variances",
    two_variances,
    points,
    expect_lrp("both variances have the modified gradient (z − mean z)/n"),
    why="mean (z − mean z)² = mean z² − (mean z)²",
)


def rms_norm_by_hand(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    weight = layer_norm(seed, dtype, device).weight.detach()
    return two_hidden_layers(
        seed,
        dtype,
        device,
        lambda z: functional.rms_norm(z, (6,), weight.to(z), eps=1e-6),
        lambda z: z / torch.sqrt(z.square().mean(-1, keepdim=True) + 1e-6) * weight.to(z),
    )


invariance_pair(
    "norm.rms_norm",
    rms_norm_by_hand,
    points,
    expect_half_lost("1/rms is constant in F.rms_norm and takes half by hand: the gap is ½ gradient × input"),
    why="RMSNorm is z/√(mean z² + eps) ⊙ γ",
)


def float32_points(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    """The points in float32 whatever the dtype: `LlamaRMSNorm` computes in float32, so no closed form is closer."""
    return points(seed, torch.float32, device)


def llama_rms_norm(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    norm = LlamaRMSNorm(6)
    randomise_affine(norm, seed)
    return two_hidden_layers(seed, torch.float32, device, norm, RMSNormOfAnotherName(norm))


invariance_pair(
    "norm.llama_rms_norm",
    llama_rms_norm,
    float32_points,
    expect_half_lost("the class has a constant 1/rms; the same code elsewhere gives half to 1/rms"),
    why="the same code in LlamaRMSNorm and in a class of another name",
)
