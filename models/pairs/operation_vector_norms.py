"""Norms of vectors, against the root of a sum of squares: both have the shares x_i²/y² of Eq. 1 of arXiv 2510.18810.

x/‖x‖ in one operation is RMSNorm of the n values over √n: both hold the norm constant (Ali et al. 2022).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from faithcheck.models.expectation import ALL_LRP, INVARIANT_BY_DEFINITION, expect_lrp
from faithcheck.models.networks.operation_by_operation import FEATURES, Written, operation_pair
from faithcheck.models.pairs.operation_choices import without_ties


def root_of_squares(x: Tensor) -> Tensor:
    """√Σx²."""
    return x.square().sum(1, keepdim=True).sqrt()


def rms_norm_over_root_of_n(x: Tensor) -> Tensor:
    """x/rms(x) / √n."""
    return functional.rms_norm(x, (FEATURES,), eps=0.0) / math.sqrt(FEATURES)


operation_pair(
    "vector_norms",
    {
        "norm": Written(lambda x: torch.norm(x, dim=1, keepdim=True), root_of_squares),
        "linalg_vector_norm": Written(lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True), root_of_squares),
        "normalize": Written(lambda x: functional.normalize(x, dim=1), rms_norm_over_root_of_n),
    },
    "‖x‖ = √Σx², and x/‖x‖ = x/rms(x)/√n",
    {
        **INVARIANT_BY_DEFINITION,
        **expect_lrp("shares x²/y² of a norm, and the shares of a linear map of x/‖x‖", of=ALL_LRP),
    },
    prepare=without_ties,  # at x = 0 the norm has no gradient
)
