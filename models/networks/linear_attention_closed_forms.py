"""Closed forms of explainers on linear attention, from the gradients through the query, key and value path.

With g_q, g_k, g_v the output's gradients through each path alone (`path_gradients`), and the output a sum of products
q·k·v of three linear maps of the tokens:

1. AttnLRP with ε → 0 (the bilinear rule, arXiv 2510.18810, Eqs. 3–4) gives each factor of a product half of its
   gradient. (QKᵀ)V propagates first V against QKᵀ, then Q against K: ½ for V, ½·½ for Q and K. Q(KᵀV) propagates first
   Q against KᵀV, then K against V: ½ for Q, ¼ for K and V. Gap ¼ x ⊙ (g_v − g_q).
2. CP-LRP holds the attention weights, and so query and key, constant: x ⊙ g_v in either order.
3. Gradient × input gives x ⊙ (g_q + g_k + g_v), and Integrated Gradients from 0, without positions, a third of it, as
   block-wise LRP does for any order.
4. Several heads add up, and each halves as one head does. The residual of a block gets the same in both orders.
5. PA-LRP gives position embeddings their part: the same as AttnLRP, of the tokens e = wx + p in place of x.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case, output_difference, select_target
from faithcheck.models.networks.linear_attention import HasPaths, LinearAttention, Order, path_gradients


class PathShares(NamedTuple):
    """The weights of the three paths in a propagated map x ⊙ (query·g_q + key·g_k + value·g_v)."""

    query: float
    key: float
    value: float


ATTNLRP: dict[Order, PathShares] = {"left": PathShares(1 / 4, 1 / 4, 1 / 2), "right": PathShares(1 / 2, 1 / 4, 1 / 4)}


def in_either_order(query: float, key: float, value: float) -> dict[Order, PathShares]:
    """The same shares whichever product is computed first."""
    return {"left": PathShares(query, key, value), "right": PathShares(query, key, value)}


CPLRP = in_either_order(0, 0, 1)
GRADIENT = in_either_order(1, 1, 1)
BLOCKWISE = in_either_order(1 / 3, 1 / 3, 1 / 3)


def weighted_paths(shares: PathShares, model: HasPaths, case: Case) -> Tensor:
    """x ⊙ (query·g_q + key·g_k + value·g_v), shaped like the inputs."""
    paths = zip(shares, path_gradients(model, case), strict=True)
    return case.inputs * torch.stack([share * gradient for share, gradient in paths]).sum(0)


def propagated(shares: dict[Order, PathShares], model: nn.Module, case: Case) -> Tensor:
    """The map ``(batch, pixels)`` that the shares of the model's order give."""
    model = checked(model)
    return weighted_paths(shares[model.order], model, case)


def attnlrp_gap(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """AttnLRP's map on f minus that on g, ``(batch, pixels)``: ¼ x ⊙ (g_v − g_q) where f is left and g right.

    As f and g are one function, f's path gradients serve both.
    """
    f, g = checked(f), checked(g)
    difference = PathShares(*(in_f - in_g for in_f, in_g in zip(ATTNLRP[f.order], ATTNLRP[g.order], strict=True)))
    return weighted_paths(difference, f, case)


def association_gap(f: HasPaths, g: nn.Module, case: Case) -> Tensor:
    """AttnLRP's map on f = (QKᵀ)V minus that on g = Q(KᵀV): ¼ x ⊙ (g_v − g_q), summed over the axes of a feature.

    Shape ``(batch, features)``. For any model with paths; a bias keeps its share of a query, key or value in both.
    """
    gap = weighted_paths(PathShares(-1 / 4, 0, 1 / 4), f, case)
    return gap.reshape(*case.shape, -1).sum(2)


class OfTokens:
    """The upper part of a `LinearAttention`, with separate tokens for each path."""

    def __init__(self, model: LinearAttention) -> None:
        self.forward_paths = model.attend


def association_gap_with_positions(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """`attnlrp_gap` of tokens with their positions, e = wx + p: ¼ e ⊙ (g_v − g_q), ``(batch, pixels)``."""
    model = checked(f)
    with torch.no_grad():
        tokens = model.embed(model.scale(case.inputs))
    case_of_tokens = replace(case, inputs=tokens, baseline=torch.zeros_like(tokens))
    return association_gap(OfTokens(model), g, case_of_tokens)


@torch.no_grad()
def output_at_baseline(model: nn.Module, case: Case) -> Tensor:
    """f(x′), ``(batch,)``: Σ_i a_i − (f(x) − f(x′)) of a map whose sum is f(x)."""
    return select_target(replace(case, inputs=case.baseline).run(model), case.target)


def path_completeness_error(shares: dict[Order, PathShares]) -> Callable[[nn.Module, Case], Tensor]:
    """Σ_i a_i − (f(x) − f(x′)), ``(batch,)``, with the map a that the shares give."""

    def predict(model: nn.Module, case: Case) -> Tensor:
        return propagated(shares, model, case).sum(1) - output_difference(model, case)

    return predict


def checked(model: nn.Module) -> LinearAttention:
    """The model, if it is a `LinearAttention`.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(model, LinearAttention):
        raise TypeError(f"the closed form holds for LinearAttention, not for {type(model).__name__}")
    return model


@torch.no_grad()
def loo_excess(model: nn.Module, case: Case) -> Tensor:
    """Σ LOO_i − (f(x) − f(0)), ``(batch,)``, from the weights alone: no pixel is removed, the model never runs.

    1. The n tokens e_j = w x_j + p_j are pooled by their mean, so f = QᵀM/n² with Q = Σ_j q_j, M = Σ_j k_j v_j, where
       v_j = h·W_V e_j is what the explained output's row h of the head reads of a value.
    2. With a = W_Q w, b = W_K w, c = h·W_V w: removing pixel i takes a x_i from Q and
       Δ_i = x_i (b v_i + c k_i) − x_i² bc from M.
    3. Hence n² Σ LOO_i = Σ_i [x_i aᵀM + QᵀΔ_i − x_i aᵀΔ_i].
    4. And n² (f(x) − f(0)) = QᵀM − Q₀ᵀM₀, with e_j = p_j in Q₀ and M₀.

    Raises:
        TypeError: the model is not a `LinearAttention`.
        ValueError: it has no positions, is not pooled by the mean, or standardises.
    """
    model = checked(model)
    if model.position is None or model.pooling != "mean" or (model.mean, model.std) != (0.0, 1.0):
        raise ValueError("the closed form holds for position embeddings, mean pooling and no standardisation")
    x = case.inputs
    value_row = (model.head.weight @ model.value.weight)[case.target]  # h W_V, (batch, width)

    def query_key_value(tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys ``(batch, n, width)``, and values as the head reads them ``(batch, n, 1)``."""
        return model.query(tokens), model.key(tokens), (tokens * value_row.unsqueeze(1)).sum(2, keepdim=True)

    pixel = model.pixel.T.unsqueeze(0)  # (1, 1, width)
    (a, b, c), (q, k, v) = query_key_value(pixel), query_key_value(x.unsqueeze(2) * pixel + model.position)
    q0, k0, v0 = query_key_value(model.position.expand(len(x), -1, -1))
    query, moment = q.sum(1), (k * v).sum(1)
    x = x.unsqueeze(2)
    delta = x * (b * v + c * k) - x.square() * b * c  # (batch, n, width)
    loo_sum = (x * a).sum(1) * moment + query * delta.sum(1) - (x * a * delta).sum(1)
    difference = query * moment - q0.sum(1) * (k0 * v0).sum(1)
    return (loo_sum - difference).sum(1) / x.shape[1] ** 2
