"""Changes of basis: of queries and keys, and of values and attended values, in every head.

A head sees queries and keys only in q·k, and its values only in its columns of the output projection. So for any
invertible M, (W_Q, W_K) → (M W_Q, M⁻ᵀ W_K) and (W_V, W_O) → (M W_V, W_O M⁻¹) leave logits and outputs alone.

Relevance, at ε = 0: a linear map has the plain gradient, so what arrives at M z arrives at z times Mᵀ.

* Let G be the gradient at the logits. The bilinear rule leaves ½ Σ_j G_ij M⁻ᵀ k_j at M q_i; times Mᵀ, that is
  ½ Σ_j G_ij k_j, as without M. So too at k_j: M⁻¹ ½ Σ_i G_ij M q_i. CP-LRP has no relevance here.
* Let S be the gradient at the head's attended values; with M it is M⁻ᵀ S. At M v_j the rule leaves ½ Σ_i A_ij M⁻ᵀ S_i
  (CP-LRP: without ½); times Mᵀ, as without M. At A_ij it leaves ½ (M⁻ᵀ S_i)·(M v_j) = ½ S_i·v_j.

Broken by ε > 0, which scales each coordinate of M z by its own |·| / (|·| + ε): AttnLRP moves on both pairs, CP-LRP on
the values'. In float32 M z rounds otherwise than z: gaps of 1e-7 to 1e-5.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from faithcheck.models.architectures.base_models import Linear, layers
from faithcheck.models.transform import function_preserving_transform


def draw_scales(size: int) -> Tensor:
    """Random factors ``(size,)`` in [½, 2], so that what they scale stays well conditioned."""
    return torch.exp2(2 * torch.rand(size, dtype=torch.float64) - 1)


def well_conditioned(size: int) -> Tensor:
    """A random matrix ``(size, size)`` whose singular values lie in [½, 2]."""
    left, right = (torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))[0] for _ in range(2))
    matrix: Tensor = left * draw_scales(size) @ right
    return matrix


def commuting_with_rotations(size: int) -> Tensor:
    """A random matrix ``(size, size)`` that commutes with rotary positions; its singular values lie in [½, 2].

    A position turns coordinates i and i + size/2 by an angle: read as one complex number, it is multiplied by e^{iφ}.
    That commutes with a matrix that multiplies each of these numbers by a complex one.
    """
    scale, angle = draw_scales(size // 2), math.tau * torch.rand(size // 2, dtype=torch.float64)
    real, imaginary = torch.diag(scale * angle.cos()), torch.diag(scale * angle.sin())
    return torch.cat([torch.cat([real, -imaginary], 1), torch.cat([imaginary, real], 1)])


def multiply(matrices: Tensor, linear: Linear) -> None:
    """W → M W and b → M b head by head, matrices ``(heads, size, size)``."""
    matrices = matrices.to(linear.weight)
    for rows in (linear.weight, linear.bias):
        if rows is not None:
            heads = rows.reshape(*matrices.shape[:2], -1)
            rows.copy_((matrices @ heads).reshape(rows.shape))


@function_preserving_transform(
    "basis.query_key",
    why="(M q)·(M⁻ᵀ k) = q·k; rotary positions commute with the M chosen, and queries that share a key share M",
    lrp="half of the logits' gradient meets M⁻ᵀ k, then Mᵀ, so that at q it is half of it times k again; so too at k",
)
def query_key(embedding_model: nn.Module) -> nn.Module:
    """W_Q → M W_Q and W_K → M⁻ᵀ W_K in each head, with their biases."""
    for layer in layers(embedding_model):
        draw = commuting_with_rotations if layer.rotary else well_conditioned
        size, sharing = len(layer.key.weight) // layer.key_value_heads, layer.heads // layer.key_value_heads
        matrices = torch.stack([draw(size) for _ in range(layer.key_value_heads)])
        multiply(matrices.repeat_interleave(sharing, 0), layer.query)
        multiply(matrices.inverse().mT, layer.key)
    return embedding_model


@function_preserving_transform(
    "basis.value_output",
    why="attention weights mix tokens and M mixes coordinates: W_O M⁻¹ undoes M behind them as it would before",
    lrp="the gradient behind M V meets M⁻ᵀ, then Mᵀ at V and M V at the attention weights: the same at both",
)
def value_output(embedding_model: nn.Module) -> nn.Module:
    """W_V → M W_V with its bias, and W_O → W_O M⁻¹, in each head."""
    for layer in layers(embedding_model):
        size, sharing = len(layer.value.weight) // layer.key_value_heads, layer.heads // layer.key_value_heads
        matrices = torch.stack([well_conditioned(size) for _ in range(layer.key_value_heads)])
        multiply(matrices, layer.value)
        transposed = Linear(layer.output.weight.T, None)  # (W_O M⁻¹)ᵀ = M⁻ᵀ W_Oᵀ
        multiply(matrices.inverse().mT.repeat_interleave(sharing, 0), transposed)
    return embedding_model
