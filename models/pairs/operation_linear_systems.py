"""Triangular systems of data, against forward substitution entry by entry.

AttnLRP halves each product N_ij x_j of the substitution (Eqs. 3–4 of arXiv 2510.18810); CP-LRP holds N constant, in the
operation and in the substitution by `einsum` alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from faithcheck.models.expectation import INVARIANT_BY_DEFINITION, expect, expect_lrp
from faithcheck.models.networks.operation_by_operation import Written, operation_pair

ROWS, COLUMNS = torch.tril_indices(3, 3, -1)


def system(x: Tensor) -> tuple[Tensor, Tensor]:
    """A triangular matrix with ones on its diagonal, ``(batch, 3, 3)``, and two right-hand sides, ``(batch, 3, 2)``."""
    matrix = torch.eye(3, dtype=x.dtype, device=x.device).repeat(len(x), 1, 1)
    matrix[:, ROWS, COLUMNS] = x[:, :3] / 4
    return matrix, torch.stack([x[:, 3:6], x[:, 5:8]], 2)


def in_one_operation(x: Tensor) -> Tensor:
    """A⁻¹B."""
    solved: Tensor = torch.linalg.solve_triangular(*system(x), upper=False, unitriangular=True)
    return solved


def entry_by_entry(x: Tensor) -> Tensor:
    """x₁ = b₁, x₂ = b₂ − n₂₁x₁, x₃ = b₃ − n₃₁x₁ − n₃₂x₂."""
    matrix, sides = system(x)

    def product(i: int, j: int, solved: Tensor) -> Tensor:
        return torch.einsum("b,bm->bm", matrix[:, i, j], solved)

    first = sides[:, 0]
    second = sides[:, 1] - product(1, 0, first)
    third = sides[:, 2] - (product(2, 0, first) + product(2, 1, second))
    return torch.stack([first, second, third], 1)


operation_pair(
    "linear_systems",
    {"linalg_solve_triangular": Written(in_one_operation, entry_by_entry)},
    "A⁻¹B of a triangular A, by forward substitution",
    {
        **INVARIANT_BY_DEFINITION,
        **expect_lrp("each product of the substitution by the rule for products"),
        **expect("conservation", "attnlrp", "halves of each product, and a sum: substitution loses nothing"),
    },
    axioms=("invariance", "conservation"),
)
