"""Linear attention, associated to the left and to the right.

The pair of You et al. 2025, Table 1, on real digits, and one of BERT-base's size.
"""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case, output_difference
from faithcheck.models.data.handwritten_digits import load_digits
from faithcheck.models.networks.linear_attention import LinearAttention, LinearAttentionBlock, Order, path_gradients
from faithcheck.models.pair import INVARIANT_BY_DEFINITION, Expectation, equivalent_pair, expect_lrp
from faithcheck.models.training.digit_classifier import trained

IMAGES = 8
CITE = "You et al. 2025 (arXiv 2510.18810), §4.1, Table 1"


class Shares(NamedTuple):
    """The weights of the three paths in a propagated map x ⊙ (query·g_q + key·g_k + value·g_v)."""

    query: float
    key: float
    value: float


# The output is a sum of products q·k·v of three linear maps of the tokens, and the bilinear rule with ε → 0 (AttnLRP,
# Achtibat et al. 2024, Eqs. 3–4 of You et al.) gives each factor of a product half of its gradient. (QKᵀ)V passes
# first V against QKᵀ, then Q against K: ½ for V, ½·½ for Q and K. Q(KᵀV) passes first Q against KᵀV, then K against V.
ATTNLRP: dict[Order, Shares] = {"left": Shares(1 / 4, 1 / 4, 1 / 2), "right": Shares(1 / 2, 1 / 4, 1 / 4)}
# CP-LRP holds the attention weights, and so query and key, constant, in either order.
CPLRP: dict[Order, Shares] = {"left": Shares(0, 0, 1), "right": Shares(0, 0, 1)}
GRADIENT: dict[Order, Shares] = {"left": Shares(1, 1, 1), "right": Shares(1, 1, 1)}


def propagated(shares: dict[Order, Shares], model: nn.Module, case: Case) -> Tensor:
    """The map ``(batch, pixels)`` that the shares give on a model: x ⊙ (query·g_q + key·g_k + value·g_v)."""
    model = _linear_attention(model)
    paths = zip(shares[model.order], path_gradients(model, case), strict=True)
    return case.inputs * torch.stack([share * gradient for share, gradient in paths]).sum(0)


def attnlrp_gap(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """AttnLRP's map on f minus that on g, ``(batch, pixels)``: ¼ x ⊙ (g_v − g_q) where f is left and g right.

    x ⊙ (¼g_q + ¼g_k + ½g_v) − x ⊙ (½g_q + ¼g_k + ¼g_v). As f = g, one set of path gradients, f's, serves both.
    """
    f, g = _linear_attention(f), _linear_attention(g)
    through_query, through_key, through_value = (
        here - there for here, there in zip(ATTNLRP[f.order], ATTNLRP[g.order], strict=True)
    )
    g_q, g_k, g_v = path_gradients(f, case)
    return case.inputs * (through_query * g_q + through_key * g_k + through_value * g_v)


def _linear_attention(model: nn.Module) -> LinearAttention:
    if not isinstance(model, LinearAttention):
        raise TypeError(f"the closed form is that of LinearAttention, not of {type(model).__name__}")
    return model


@torch.no_grad()
def loo_surplus(model: nn.Module, case: Case) -> Tensor:
    """Σ LOO_i − (f(x) − f(0)), ``(batch,)``, from the weights alone: no pixel is removed, the model is never run.

    The n tokens e_j = w x_j + p_j are pooled by their mean, so f = QᵀM/n² with Q = Σ_j q_j, M = Σ_j k_j v_j, where
    v_j = h·W_V e_j is what the explained output's row h of the head reads of a value. Removing pixel i takes a x_i from
    Q, a = W_Q w, and Δ_i = x_i (b v_i + c k_i) − x_i² bc from M, b = W_K w, c = h·W_V w. Hence

        n² Σ LOO_i = Σ_i [x_i aᵀM + QᵀΔ_i − x_i aᵀΔ_i],   n² (f(x) − f(0)) = QᵀM − Q₀ᵀM₀, with e_j = p_j in Q₀, M₀.

    Raises:
        TypeError, ValueError: a model that is not the one above.
    """
    model = _linear_attention(model)
    if model.position is None or model.pooling != "mean" or (model.mean, model.std) != (0.0, 1.0):
        raise ValueError("the closed form is that of position embeddings, mean pooling and no standardisation")
    x = case.inputs
    embedding_models = (model.head.weight @ model.value.weight)[case.target]  # h W_V, (batch, width)

    def maps(tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys ``(batch, n, width)``, read values ``(batch, n, 1)``."""
        return model.query(tokens), model.key(tokens), (tokens * embedding_models.unsqueeze(1)).sum(2, keepdim=True)

    pixel = model.pixel.T.unsqueeze(0)  # (1, 1, width)
    (a, b, c), (q, k, v) = maps(pixel), maps(x.unsqueeze(2) * pixel + model.position)
    q0, k0, v0 = maps(model.position.expand(len(x), -1, -1))
    query, moment = q.sum(1), (k * v).sum(1)
    x = x.unsqueeze(2)
    delta = x * (b * v + c * k) - x.square() * b * c  # (batch, n, width)
    left_out = (x * a).sum(1) * moment + query * delta.sum(1) - (x * a * delta).sum(1)
    whole = query * moment - q0.sum(1) * (k0 * v0).sum(1)
    return (left_out - whole).sum(1) / x.shape[1] ** 2


def _incomplete(shares: dict[Order, Shares], why: str) -> Expectation:
    """Completeness fails by Σ_i a_i − (f(x) − f(x′)), shape (batch,), with the map a from path gradients."""

    def residual(model: nn.Module, case: Case) -> Tensor:
        return propagated(shares, model, case).sum(1) - output_difference(model, case)

    return Expectation("VIOLATES", why, predict=residual, cite=CITE)


def _holds(why: str) -> Expectation:
    return Expectation("HOLDS", why, cite=CITE)


EXPECTED: dict[tuple[str, str], Expectation] = {
    ("invariance", "loo"): _holds("depends on the function alone"),
    ("invariance", "gradient_x_input"): _holds("depends on the function alone: both orders give x ⊙ (g_q + g_k + g_v)"),
    ("invariance", "integrated_gradients"): _holds(
        "depends on the function alone; exact with two Gauss–Legendre nodes, as the gradient has degree 2 on the path"
    ),
    ("invariance", "cplrp"): _holds("all relevance goes through the value path: both orders give x ⊙ g_v"),
    ("invariance", "attnlrp"): Expectation(
        "VIOLATES",
        "each product halves, so the factor multiplied last gets ½ and the other two ¼: the gap is ¼ x ⊙ (g_v − g_q)",
        predict=attnlrp_gap,
        cite=CITE,
    ),
    ("completeness", "integrated_gradients"): _holds("Gauss–Legendre integrates the quadratic gradient exactly"),
    ("completeness", "loo"): Expectation(
        "VIOLATES", "LOO counts a product of pixels once for each of them", predict=loo_surplus, cite=CITE
    ),
    ("completeness", "gradient_x_input"): _incomplete(
        GRADIENT, "a product of three paths counts three times, and the constant position embeddings keep their part"
    ),
    ("completeness", "attnlrp"): _incomplete(
        ATTNLRP, "relevance sums to the output at the tokens; there the position embeddings keep their part"
    ),
    ("completeness", "cplrp"): _incomplete(
        CPLRP, "relevance sums to the output at the value path's tokens; there the position embeddings keep their part"
    ),
    ("loo", "loo"): _holds("correlates perfectly with itself"),
}


@lru_cache(maxsize=8)
def _weights(seed: int, fingerprint: str) -> dict[str, Tensor]:
    digits = load_digits()
    assert digits.fingerprint == fingerprint
    return trained(LinearAttention, {"order": "right", "pixels": digits.pixels}, digits, seed).weights


def build_one(order: Order, seed: int, dtype: torch.dtype, device: torch.device) -> LinearAttention:
    """The classifier in one order, with the weights that the seed's training gives (cached, see `trained`)."""
    digits = load_digits()
    with torch.random.fork_rng(devices=[]):
        model = LinearAttention(order, pixels=digits.pixels)
    model.load_state_dict(_weights(seed, digits.fingerprint))
    return model.to(device, dtype).eval()


def digits_case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    """The first eight dev images, each with the class that the classifier predicts (in float64), against black."""
    images = load_digits().dev_images[:IMAGES]
    with torch.no_grad():
        target = build_one("left", seed, torch.float64, torch.device("cpu"))(images).argmax(1)
    inputs = images.clone().to(device, dtype)  # not a view of the cached images
    return Case(inputs, target.to(device), torch.zeros_like(inputs))


@equivalent_pair(
    "linear_attention.assoc",
    case=digits_case,
    why="matrix multiplication is associative: (QKᵀ)V = Q(KᵀV), with shared weights trained on digits",
    cite=CITE,
    expected=EXPECTED,
)
def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """f associates to the left, g to the right."""
    return build_one("left", seed, dtype, device), build_one("right", seed, dtype, device)


def random_tokens(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    """Two sequences of four random tokens of width 768, baseline 0."""
    inputs = torch.randn(2, 4, 768, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    inputs = inputs.to(device, dtype)
    return Case(inputs, torch.tensor([0, 1], device=device), torch.zeros_like(inputs))


def block_gap(f: LinearAttentionBlock, g: LinearAttentionBlock, case: Case) -> Tensor:
    """`attnlrp_gap` of tokens, ``(batch, tokens)``: ¼ x ⊙ (g_v − g_q), summed over a token's axes.

    Every head halves as one does, the heads add up, and the residual gets the same in f and g. A bias keeps its share
    of a query, key or value in either order.
    """
    g_q, _, g_v = path_gradients(f, case)
    return (case.inputs * (g_v - g_q)).sum(2) / 4


@equivalent_pair(
    "linear_attention.bert_sized",
    case=random_tokens,
    why="matrix multiplication is associative in each of 12 heads",
    cite=CITE,
    expected={
        **INVARIANT_BY_DEFINITION,
        **expect_lrp("V gets ½ and Q ¼, or Q ½ and V ¼: ¼ x ⊙ (g_v − g_q)", predict=block_gap, cite=CITE, of="attnlrp"),
        **expect_lrp("all relevance of the attention goes through V in either order", cite=CITE, of="cplrp"),
    },
    axioms=("invariance",),
)
def build_block(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """Multi-head linear attention of BERT-base's width; f associates to the left, g to the right."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        f = LinearAttentionBlock("left").to(device, dtype).eval()
    g = deepcopy(f)
    g.order = "right"
    return f, g
