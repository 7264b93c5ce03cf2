"""Slow oracles: each LRP rule again, written from its equation, one number at a time.

The engine carries relevance as a modified gradient; an oracle computes relevance itself. It takes the operands and the
relevance of the output, R_out, and returns the relevance of the operands. Equations are those of arXiv 2510.18810.
"""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor


def sign(z: float) -> float:
    """Sign 0 = +1, so that a stabilised denominator is never zero."""
    return -1.0 if z < 0 else 1.0


def ratio(numerator: float, denominator: float) -> float:
    """The quotient, where 0/0 is 0: there is no relevance to share."""
    return 0.0 if numerator == 0 else numerator / denominator


def linear_map(x: Tensor, w: Tensor, bias: Tensor, relevance: Tensor, epsilon: float) -> Tensor:
    """Eq. 1 for z_j = Σ_i x_i w_ij + b_j, ``(n,), (n, m), (m,), (m,) -> (n,)``; the bias keeps its share."""
    result = torch.zeros_like(x)
    for j in range(w.shape[1]):
        z = sum(float(x[i] * w[i, j]) for i in range(len(x))) + float(bias[j])
        for i in range(len(x)):
            result[i] += ratio(float(x[i] * w[i, j] * relevance[j]), z + epsilon * sign(z))
    return result


def bilinear(a: Tensor, v: Tensor, relevance: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Eqs. 3–4 for O = AV: every product A_ji V_ip gives half of its share of R_jp to A_ji and half to V_ip."""
    to_a, to_v = torch.zeros_like(a), torch.zeros_like(v)
    for j, p in product(range(a.shape[0]), range(v.shape[1])):
        o = sum(float(a[j, i] * v[i, p]) for i in range(a.shape[1]))
        for i in range(a.shape[1]):
            share = ratio(float(a[j, i] * v[i, p] * relevance[j, p]), 2 * o + epsilon * sign(o))
            to_a[j, i] += share
            to_v[i, p] += share
    return to_a, to_v


def values_only(a: Tensor, v: Tensor, relevance: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """CP-LRP for O = AV: A is a constant, and all relevance goes to V by Eq. 1."""
    to_v = torch.zeros_like(v)
    for j, p in product(range(a.shape[0]), range(v.shape[1])):
        o = sum(float(a[j, i] * v[i, p]) for i in range(a.shape[1]))
        for i in range(a.shape[1]):
            to_v[i, p] += ratio(float(a[j, i] * v[i, p] * relevance[j, p]), o + epsilon * sign(o))
    return torch.zeros_like(a), to_v


def softmax(z: Tensor, relevance: Tensor) -> Tensor:
    """Eq. 5 for one row, A the softmax of Z: R_Z = Z ⊙ (R_A − A Σ R_A)."""
    exponentials = [math.exp(float(value)) for value in z]
    weights = [value / sum(exponentials) for value in exponentials]
    total = float(relevance.sum())
    return z.new_tensor([float(z[i]) * (float(relevance[i]) - weights[i] * total) for i in range(len(z))])


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float, relevance: Tensor, epsilon: float) -> Tensor:
    """LayerNorm with σ held constant is the linear map w_ij = (δ_ij − 1/n) γ_j/σ with bias β."""
    n = len(x)
    mean = float(x.sum()) / n
    sigma = math.sqrt(sum((float(value) - mean) ** 2 for value in x) / n + eps)
    w = x.new_tensor([[((i == j) - 1 / n) * float(gamma[j]) / sigma for j in range(n)] for i in range(n)])
    return linear_map(x, w, beta, relevance, epsilon)


def rms_norm(x: Tensor, gamma: Tensor, eps: float, relevance: Tensor, epsilon: float) -> Tensor:
    """RMSNorm with its root mean square held constant is the linear map w_ij = δ_ij γ_j/rms."""
    rms = math.sqrt(sum(float(value) ** 2 for value in x) / len(x) + eps)
    return linear_map(x, torch.diag(gamma / rms), torch.zeros_like(x), relevance, epsilon)


def activation(x: Tensor, relevance: Tensor) -> Tensor:
    """An element-wise function leaves relevance unchanged."""
    return relevance.clone()


def product_of(a: Tensor, b: Tensor, relevance: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Eqs. 3–4 for an element-wise product: each factor receives half of the stabilised share."""
    share = torch.zeros_like(a)
    for i in range(len(a)):
        z = float(a[i] * b[i])
        share[i] = ratio(z * float(relevance[i]), 2 * z + epsilon * sign(z))
    return share, share.clone()


def residual(x: Tensor, y: Tensor, relevance: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Eq. 1 for z = x + y, element-wise: shares in proportion to x and y."""
    to_x, to_y = torch.zeros_like(x), torch.zeros_like(y)
    for i in range(len(x)):
        z = float(x[i] + y[i])
        to_x[i] = ratio(float(x[i] * relevance[i]), z + epsilon * sign(z))
        to_y[i] = ratio(float(y[i] * relevance[i]), z + epsilon * sign(z))
    return to_x, to_y
