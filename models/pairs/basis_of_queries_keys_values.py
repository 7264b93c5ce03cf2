"""Changes of basis in every head: of queries and keys, and of values and attended values.

A head uses queries and keys only in q·k, and its values only through its columns of the output projection. So for any
invertible M, (W_Q, W_K) → (M W_Q, M⁻ᵀ W_K) and (W_V, W_O) → (M W_V, W_O M⁻¹) leave logits and outputs the same.

Why AttnLRP and CP-LRP stay the same, at ε = 0:

1. A linear map passes the plain gradient on: relevance R at M z becomes Mᵀ R at z.
2. Queries and keys. Let G be the gradient at the logits. The bilinear rule gives ½ Σ_j G_ij M⁻ᵀ k_j at M q_i. Times Mᵀ
   this is ½ Σ_j G_ij k_j, as without M. At M⁻ᵀ k_j it gives ½ Σ_i G_ij M q_i; times M⁻¹ this is as without M, too. In
   CP-LRP the logits have no relevance.
3. Values. Let S be the gradient at the head's attended values; with M it is M⁻ᵀ S. At M v_j the rule gives
   ½ Σ_i A_ij M⁻ᵀ S_i (CP-LRP: without ½); times Mᵀ, as without M. At A_ij it gives ½ (M⁻ᵀ S_i)·(M v_j) = ½ S_i·v_j.

With ε > 0 each coordinate of M z is scaled by its own |·| / (|·| + ε), which depends on M: AttnLRP changes on both
pairs, CP-LRP on the pair of values. In float32 M z is rounded differently from z: gaps of 1e-7 to 1e-5.
"""

import math

import torch
from torch import Tensor, nn

from faithcheck.models.architectures.base_models import layers
from faithcheck.models.architectures.transformer_layer import LinearView
from faithcheck.models.transform import function_preserving_transform


def draw_scales(size: int) -> Tensor:
    """Random factors ``(size,)`` in [½, 2], so that the scaled weights stay well conditioned."""
    return torch.exp2(2 * torch.rand(size, dtype=torch.float64) - 1)


def well_conditioned(size: int) -> Tensor:
    """A random matrix ``(size, size)`` with singular values in [½, 2]."""
    left, right = (torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))[0] for _ in range(2))
    return left * draw_scales(size) @ right


def commuting_with_rotations(size: int) -> Tensor:
    """A random matrix ``(size, size)`` that commutes with rotary positions, with singular values in [½, 2].

    A position rotates coordinates i and i + size/2 by an angle φ. Read as one complex number, they are multiplied by
    e^{iφ}. This commutes with a matrix that multiplies each such complex number by a complex factor.
    """
    scale, angle = draw_scales(size // 2), math.tau * torch.rand(size // 2, dtype=torch.float64)
    real, imaginary = torch.diag(scale * angle.cos()), torch.diag(scale * angle.sin())
    return torch.cat([torch.cat([real, -imaginary], 1), torch.cat([imaginary, real], 1)])


def multiply(matrices: Tensor, linear: LinearView) -> None:
    """W → M W and b → M b head by head, matrices ``(heads, size, size)``."""
    matrices = matrices.to(linear.weight)
    for rows in (linear.weight, linear.bias):
        if rows is not None:
            heads = rows.reshape(*matrices.shape[:2], -1)
            rows.copy_((matrices @ heads).reshape(rows.shape))


@function_preserving_transform(
    "basis.query_key",
    why="(M q)·(M⁻ᵀ k) = q·k; rotary positions commute with the M chosen, and queries that share a key share M",
    lrp="the bilinear rule gives ½ G M⁻ᵀ k at M q, and W_Q's Mᵀ turns it into ½ G k at q; in the same way at k",
)
def query_key(embedding_model: nn.Module) -> nn.Module:
    """W_Q → M W_Q and W_K → M⁻ᵀ W_K in each head, with their biases."""
    for layer in layers(embedding_model):
        draw = commuting_with_rotations if layer.rotary else well_conditioned
        size = len(layer.key.weight) // layer.key_value_heads
        matrices = torch.stack([draw(size) for _ in range(layer.key_value_heads)])
        multiply(matrices.repeat_interleave(layer.queries_per_key, 0), layer.query)
        multiply(matrices.inverse().mT, layer.key)
    return embedding_model


@function_preserving_transform(
    "basis.value_output",
    why="attention weights mix tokens and M mixes coordinates, so that W_O M⁻¹ cancels M behind the attention weights",
    lrp="the gradient at M V is M⁻ᵀ times the one without M: Mᵀ cancels M⁻ᵀ at V, and M V cancels it at the weights",
)
def value_output(embedding_model: nn.Module) -> nn.Module:
    """W_V → M W_V with its bias, and W_O → W_O M⁻¹, in each head."""
    for layer in layers(embedding_model):
        size = len(layer.value.weight) // layer.key_value_heads
        matrices = torch.stack([well_conditioned(size) for _ in range(layer.key_value_heads)])
        multiply(matrices, layer.value)
        transposed = LinearView(layer.output.weight.T, None)  # (W_O M⁻¹)ᵀ = M⁻ᵀ W_Oᵀ
        multiply(matrices.inverse().mT.repeat_interleave(layer.queries_per_key, 0), transposed)
    return embedding_model
