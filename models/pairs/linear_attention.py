"""Linear attention, associated to the left and to the right: the pair of You et al. 2025, Table 1, on real digits."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case, change
from faithcheck.models.data import load_digits
from faithcheck.models.linear_attention import LinearAttention, Order, path_gradients
from faithcheck.models.pair import Expectation, equivalent_pair
from faithcheck.models.training import trained

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


def _incomplete(shares: dict[Order, Shares], why: str) -> Expectation:
    """Completeness fails by Σ_i a_i − (f(x) − f(x′)), shape (batch,), with the map a from path gradients."""

    def residual(model: nn.Module, case: Case) -> Tensor:
        return propagated(shares, model, case).sum(1) - change(model, case)

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
        "UNCLAIMED", "LOO counts a product of pixels once for each of them", cite=CITE
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
