"""The linear-attention classifier of You et al. 2025 (arXiv 2510.18810, §4.1): one token a pixel, no softmax.

Without biases its output is a sum of products q·k·v of three linear maps of the tokens. So every propagation rule has a
closed form on it, in the gradients g_q, g_k and g_v through these three paths alone (`path_gradients`):

1. AttnLRP with ε → 0 (the bilinear rule, arXiv 2510.18810, Eqs. 3–4) gives each factor of a product half of its
   gradient. (QKᵀ)V propagates first V against QKᵀ, then Q against K: ½ for V, ½·½ for Q and K. Q(KᵀV) propagates first
   Q against KᵀV, then K against V: ½ for Q, ¼ for K and V. Gap ¼ x ⊙ (g_v − g_q).
2. CP-LRP holds the attention weights, and so query and key, constant: x ⊙ g_v in either order.
3. Gradient × input gives x ⊙ (g_q + g_k + g_v), and Integrated Gradients from 0, without positions, a third of it, as
   block-wise LRP does for any order.
4. Several heads add up, and each halves as one head does. The residual of a block gets the same in both orders.
5. PA-LRP gives position embeddings their part: the same as AttnLRP, of the tokens e = wx + p in place of x.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from faithcheck.models.case import Case, output_difference, select_target

Order: TypeAlias = Literal["left", "right"]
Pooling: TypeAlias = Literal["mean", "flatten"]
CLASSES = 10


class LinearAttention(nn.Module):
    """Linear attention over the pixels of an image, ``(batch, pixels)`` in [0, 1] to ``(batch, 10)`` logits.

    Pixel i is the token e_i = w·(x_i − mean)/std + p_i. With Q = W_Q e, K = W_K e, V = W_V e, shapes (pixels, width),

    * ``order="left"`` computes (QKᵀ)V and ``order="right"`` Q(KᵀV), either divided by the number of pixels, so that the
      sum over keys is a mean. The two orders share their parameters' names, so `state_dict` goes from one to the other;
    * the tokens are pooled and a linear head gives the logits. No map has a bias.

    Args:
        order: ``left`` or ``right``.
        pixels: tokens of an image.
        width: the embedding's dimension; 32 in the paper.
        pooling: ``mean`` over tokens, or ``flatten``: the head sees every token. The paper does not say.
        position: whether p_i is learned or absent. The paper does not say.
        mean, std: the pixels' standardisation, in the model, so that its input 0 is a black pixel; (0, 1) for none.

    Raises:
        ValueError: an unknown order or pooling, or std ≤ 0.
    """

    def __init__(
        self,
        order: Order = "left",
        *,
        pixels: int,
        width: int = 32,
        pooling: Pooling = "mean",
        position: bool = True,
        mean: float = 0.0,
        std: float = 1.0,
    ) -> None:
        super().__init__()
        if order not in ("left", "right"):
            raise ValueError(f"order must be 'left' or 'right', got {order!r}")
        if pooling not in ("mean", "flatten"):
            raise ValueError(f"pooling must be 'mean' or 'flatten', got {pooling!r}")
        if not std > 0:
            raise ValueError(f"std must be positive, got {std}")
        self.order, self.pooling, self.mean, self.std = order, pooling, mean, std
        self.pixel = nn.Parameter(torch.randn(width, 1))
        self.position = nn.Parameter(torch.randn(pixels, width)) if position else None
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width * (pixels if pooling == "flatten" else 1), CLASSES, bias=False)
        # Xavier keeps the product of three maps of order 1 at the start. With torch's default, a sixth of the size,
        # two of four seeds stayed below 60 % on 8×8 digits after five epochs.
        for layer in (self.query, self.key, self.value, self.head):
            nn.init.xavier_normal_(layer.weight)

    def forward(self, pixels: Tensor) -> Tensor:
        """``(batch, pixels)`` to ``(batch, 10)``."""
        return self.classify(self.embed(self.scale(pixels)))

    def scale(self, pixels: Tensor) -> Tensor:
        """Standardise; return the pixels themselves where mean is 0 and std is 1."""
        return pixels if (self.mean, self.std) == (0.0, 1.0) else (pixels - self.mean) / self.std

    def embed(self, pixels: Tensor) -> Tensor:
        """Scaled pixels ``(batch, pixels)`` to tokens ``(batch, pixels, width)``."""
        tokens = linear(pixels.unsqueeze(-1), self.pixel)
        return tokens if self.position is None else tokens + self.position

    def classify(self, tokens: Tensor) -> Tensor:
        """Tokens ``(batch, pixels, width)`` to logits ``(batch, 10)``."""
        return self.attend(tokens, tokens, tokens)

    def attend(self, for_query: Tensor, for_key: Tensor, for_value: Tensor) -> Tensor:
        """Logits ``(batch, 10)`` from the tokens of each path, each ``(batch, pixels, width)``."""
        q, k, v = self.query(for_query), self.key(for_key), self.value(for_value)
        output = (q @ k.transpose(1, 2)) @ v if self.order == "left" else q @ (k.transpose(1, 2) @ v)
        output = output / q.shape[1]
        return self.head(output.mean(1) if self.pooling == "mean" else output.flatten(1))

    def forward_paths(self, for_query: Tensor, for_key: Tensor, for_value: Tensor) -> Tensor:
        """The output with separate pixels for each path, each ``(batch, pixels)``, to ``(batch, 10)``.

        ``forward_paths(x, x, x)`` equals ``forward(x)``.
        """
        return self.attend(*(self.embed(self.scale(x)) for x in (for_query, for_key, for_value)))


class LinearAttentionBlock(nn.Module):
    """Linear attention of BERT-base's size, with biases and random weights: ``(batch, tokens, 768)`` to ``(batch, 2)``.

    In each of 12 heads, ``order="left"`` computes (QKᵀ)V and ``order="right"`` Q(KᵀV), either divided by the number of
    tokens; then come an output map, the residual, the mean over tokens and a head.
    """

    def __init__(self, order: Order, *, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.order, self.heads = order, heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """``(batch, tokens, 768)`` to ``(batch, 2)``."""
        return self.head((tokens + self.attend(tokens, tokens, tokens)).mean(1))

    def attend(self, for_query: Tensor, for_key: Tensor, for_value: Tensor) -> Tensor:
        """The term added to the residual, from the tokens of each path; all ``(batch, tokens, 768)``."""
        q, k, v = (
            layer(tokens).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer, tokens in ((self.query, for_query), (self.key, for_key), (self.value, for_value))
        )
        output = (q @ k.transpose(2, 3)) @ v if self.order == "left" else q @ (k.transpose(2, 3) @ v)
        return self.output((output / q.shape[2]).transpose(1, 2).flatten(2))

    def forward_paths(self, for_query: Tensor, for_key: Tensor, for_value: Tensor) -> Tensor:
        """The output without the residual, with separate tokens for each path, to ``(batch, 2)``."""
        return self.head(self.attend(for_query, for_key, for_value).mean(1))


class HasPaths(Protocol):
    """A model whose output can be computed from separate inputs for query, key and value."""

    def forward_paths(self, for_query: Tensor, for_key: Tensor, for_value: Tensor) -> Tensor:
        """The outputs ``(batch, outputs)``; each argument is shaped like the model's inputs."""
        ...


def path_gradients(model: HasPaths, case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """The explained output's gradients (g_q, g_k, g_v) at the inputs through query, key and value alone.

    They come from autograd on ``forward_paths``, and sum to the model's gradient, less the part through a residual.
    """
    with torch.enable_grad():
        q, k, v = (case.inputs.detach().clone().requires_grad_() for _ in range(3))
        gradients = torch.autograd.grad(select_target(model.forward_paths(q, k, v), case.target).sum(), (q, k, v))
    return gradients[0], gradients[1], gradients[2]


# --- closed forms -----------------------------------------------------------------------------------------------------


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


def propagated(shares: dict[Order, PathShares], model: LinearAttention, case: Case) -> Tensor:
    """The map ``(batch, pixels)`` that the shares of the model's order give."""
    return weighted_paths(shares[model.order], model, case)


def attnlrp_gap(f: LinearAttention, g: LinearAttention, case: Case) -> Tensor:
    """AttnLRP's map on f minus that on g, ``(batch, pixels)``: ¼ x ⊙ (g_v − g_q) where f is left and g right."""
    difference = PathShares(*(in_f - in_g for in_f, in_g in zip(ATTNLRP[f.order], ATTNLRP[g.order], strict=True)))
    return weighted_paths(difference, f, case)


def association_gap(f: HasPaths, g: nn.Module, case: Case) -> Tensor:
    """AttnLRP's map on f = (QKᵀ)V minus that on g = Q(KᵀV), ``(batch, features)``: ¼ x ⊙ (g_v − g_q)."""
    gap = weighted_paths(PathShares(-1 / 4, 0, 1 / 4), f, case)
    return gap.reshape(*case.shape, -1).sum(2)


class OfTokens:
    """The upper part of a `LinearAttention`, with separate tokens for each path."""

    def __init__(self, model: LinearAttention) -> None:
        self.forward_paths = model.attend


def association_gap_with_positions(f: LinearAttention, g: nn.Module, case: Case) -> Tensor:
    """`attnlrp_gap` of tokens with their positions, e = wx + p: ¼ e ⊙ (g_v − g_q), ``(batch, pixels)``."""
    with torch.no_grad():
        tokens = f.embed(f.scale(case.inputs))
    case_of_tokens = replace(case, inputs=tokens, baseline=torch.zeros_like(tokens))
    return association_gap(OfTokens(f), g, case_of_tokens)


@torch.no_grad()
def output_at_baseline(model: nn.Module, case: Case) -> Tensor:
    """f(x′), ``(batch,)``: Σ_i a_i − (f(x) − f(x′)) of a map whose sum is f(x)."""
    return select_target(replace(case, inputs=case.baseline).run(model), case.target)


def path_completeness_error(shares: dict[Order, PathShares]) -> Callable[[LinearAttention, Case], Tensor]:
    """Σ_i a_i − (f(x) − f(x′)), ``(batch,)``, with the map a that the shares give."""

    def predict(model: LinearAttention, case: Case) -> Tensor:
        return propagated(shares, model, case).sum(1) - output_difference(model, case)

    return predict


@torch.no_grad()
def loo_excess(model: LinearAttention, case: Case) -> Tensor:
    """Σ LOO_i − (f(x) − f(0)), ``(batch,)``, of a model with positions, mean pooling and no standardisation, never run.

    1. The n tokens e_j = w x_j + p_j are pooled by their mean, so f = QᵀM/n² with Q = Σ_j q_j, M = Σ_j k_j v_j, where
       v_j = h·W_V e_j is what the explained output's row h of the head reads of a value.
    2. With a = W_Q w, b = W_K w, c = h·W_V w: removing pixel i takes a x_i from Q and
       Δ_i = x_i (b v_i + c k_i) − x_i² bc from M.
    3. Hence n² Σ LOO_i = Σ_i [x_i aᵀM + QᵀΔ_i − x_i aᵀΔ_i].
    4. And n² (f(x) − f(0)) = QᵀM − Q₀ᵀM₀, with e_j = p_j in Q₀ and M₀.
    """
    assert model.position is not None
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
