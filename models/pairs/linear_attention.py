"""Linear attention to the left and to the right, derived in `faithcheck.models.networks.linear_attention`.

The pair of You et al. 2025 (arXiv 2510.18810), Table 1, on real digits, and one of BERT-base's size.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.data.handwritten_digits import load_digits
from faithcheck.models.expectation import Expectations, expect, expect_lrp
from faithcheck.models.networks.digit_classifier import trained
from faithcheck.models.networks.linear_attention import (
    ATTNLRP,
    CPLRP,
    GRADIENT,
    LinearAttention,
    LinearAttentionBlock,
    Order,
    PathShares,
    association_gap,
    attnlrp_gap,
    loo_excess,
    path_completeness_error,
)
from faithcheck.models.pair import copies, equivalent_pair, invariance_pair, random_points

IMAGES = 8
CITE = "You et al. 2025 (arXiv 2510.18810), §4.1, Table 1"


def expect_incomplete(explainer: str, shares: dict[Order, PathShares], why: str) -> Expectations:
    """Completeness fails by Σ_i a_i − (f(x) − f(x′)), with the map a that these shares of the paths give."""
    return expect("completeness", explainer, why, predict=path_completeness_error(shares), cite=CITE)


EXPECTED: Expectations = {
    **expect("invariance", "loo", "depends on the function alone", cite=CITE),
    **expect(
        "invariance",
        "gradient_x_input",
        "depends on the function alone: both orders give x ⊙ (g_q + g_k + g_v)",
        cite=CITE,
    ),
    **expect(
        "invariance",
        "integrated_gradients",
        "depends on the function alone; exact with two Gauss–Legendre nodes, as the gradient has degree 2 on the path",
        cite=CITE,
    ),
    **expect_lrp("all relevance goes through the value path: both orders give x ⊙ g_v", of="cplrp", cite=CITE),
    **expect_lrp(
        "each product halves, so the factor multiplied last gets ½ and the other two ¼: the gap is ¼ x ⊙ (g_v − g_q)",
        predict=attnlrp_gap,
        cite=CITE,
        of="attnlrp",
    ),
    **expect(
        "completeness", "integrated_gradients", "Gauss–Legendre integrates the quadratic gradient exactly", cite=CITE
    ),
    **expect(
        "completeness", "loo", "LOO counts a product of pixels once for each of them", predict=loo_excess, cite=CITE
    ),
    **expect_incomplete(
        "gradient_x_input",
        GRADIENT,
        "a product of three paths counts three times, and the constant position embeddings keep their share",
    ),
    **expect_incomplete(
        "attnlrp", ATTNLRP, "relevance sums to the output at the tokens; the position embeddings keep their share of it"
    ),
    **expect_incomplete(
        "cplrp",
        CPLRP,
        "relevance sums to the output at the value path's tokens; the position embeddings keep their share of it",
    ),
    **expect("loo", "loo", "Leave-One-Out correlates with itself", cite=CITE),
}


@lru_cache(maxsize=8)
def _weights(seed: int, fingerprint: str) -> dict[str, Tensor]:
    digits = load_digits()
    assert digits.fingerprint == fingerprint
    return trained(LinearAttention, {"order": "right", "pixels": digits.pixels}, digits, seed).weights


def build_one(order: Order, seed: int, dtype: torch.dtype, device: torch.device) -> LinearAttention:
    """The classifier in one order, with the weights that training with the seed gives (cached, see `trained`)."""
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
    rows = math.isqrt(inputs.shape[1])
    return Case(inputs, target.to(device), torch.zeros_like(inputs), image_shape=(rows, rows))


@equivalent_pair(
    "linear_attention.assoc",
    case=digits_case,
    why="matrix multiplication is associative: (QKᵀ)V = Q(KᵀV), with shared weights trained on digits",
    cite=CITE,
    expected=EXPECTED,
)
def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    return build_one("left", seed, dtype, device), build_one("right", seed, dtype, device)


invariance_pair(
    "linear_attention.bert_sized",
    copies(lambda: LinearAttentionBlock("left"), order="right"),
    random_points(2, 4, 768, classes=2),
    expect_lrp("V gets ½ and Q ¼, or Q ½ and V ¼: ¼ x ⊙ (g_v − g_q)", predict=association_gap, cite=CITE, of="attnlrp"),
    expect_lrp("all relevance of the attention goes through V in either order", cite=CITE, of="cplrp"),
    why="matrix multiplication is associative in each of 12 heads",
    cite=CITE,
)
