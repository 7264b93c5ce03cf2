"""The linear-attention classifier of You et al. 2025 (arXiv 2510.18810, §4.1): one token a pixel, no softmax.

Without biases its output is a sum of products of a query, a key and a value. So every propagation rule has a closed
form on it, in the gradients through these three paths (`path_gradients`); see
`faithcheck.models.networks.linear_attention_closed_forms`.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from faithcheck.models.case import Case, select_target

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
        return self.head(output.mean(1) if self.pooling == "mean" else output.flatten(1))  # type: ignore[no-any-return]

    def forward_paths(self, for_query: Tensor, for_key: Tensor, for_value: Tensor) -> Tensor:
        """The output with separate pixels for each path, each ``(batch, pixels)``, to ``(batch, 10)``.

        ``forward_paths(x, x, x)`` equals ``forward(x)``.
        """
        return self.attend(*(self.embed(self.scale(x)) for x in (for_query, for_key, for_value)))


class LinearAttentionBlock(nn.Module):
    """Linear attention of BERT-base's size: ``(batch, tokens, 768)`` to ``(batch, 2)`` logits.

    With Q, K, V the maps of the tokens in each of 12 heads, ``order="left"`` computes (QKᵀ)V and ``order="right"``
    Q(KᵀV), either divided by the number of tokens; then come an output map, the residual, the mean over tokens and a
    head. All maps have biases, and the weights are random.
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
    """The explained output's gradient at the inputs through query, key and value alone.

    Three tensors (g_q, g_k, g_v) shaped like the inputs. They sum to the gradient of ``model``, except the part through
    a block's residual. Computed by autograd on ``forward_paths``, without any propagation rule.
    """
    with torch.enable_grad():
        q, k, v = (case.inputs.detach().clone().requires_grad_() for _ in range(3))
        gradients = torch.autograd.grad(select_target(model.forward_paths(q, k, v), case.target).sum(), (q, k, v))
    return gradients[0], gradients[1], gradients[2]
