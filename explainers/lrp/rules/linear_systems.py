"""Systems of linear equations with a triangular matrix, as in gated delta rules (arXiv 2412.06464): substitution.

1. X solves AX = B with a lower triangular A. Row i is x_i = (b_i − Σ_{j<i} A_ij x_j) / A_ii.
2. So X is computed row by row from products, sums and quotients, and each of them has its own rule. What follows holds
   for every method and every ε, and needs no rule of its own.
3. Let A have ones on its diagonal and N below it. If A carries relevance, AttnLRP halves each product N_ij x_j (Eqs.
   3–4 of arXiv 2510.18810), so that in the limit ε → 0 the gradients of a row are Λ_j = G_j − ½ Σ_{i>j} N_ij Λ_i, with
   G the gradient at X: (I + ½N)ᵀ Λ = G. B has the gradient Λ, and N has −½ Λ Xᵀ. Derived here.
4. This conserves relevance: Σ B⊙Λ = Σ X⊙Λ + Σ NX⊙Λ and Σ N⊙(−½ΛXᵀ) = −½ Σ NX⊙Λ sum up to Σ X⊙(I + ½N)ᵀΛ = Σ X⊙G.
5. CP-LRP holds N constant, as any first operand of a matrix product. With a constant A, in every method, X = A⁻¹B is a
   linear map of B: Λ = A⁻ᵀG, its plain gradient, as Eq. 1 has it for ε → 0.

An upper triangular A is solved from the last row on, and XA = B is AᵀXᵀ = Bᵀ.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from faithcheck.explainers.lrp.operation_call import OperationCall
from faithcheck.explainers.lrp.operations import declare


def triangular_system_rule(call: OperationCall) -> Callable[[], Tensor]:
    """X = A⁻¹B, or BA⁻¹, by substitution."""
    a, b = call.argument(0, "A"), call.argument(1, "B")
    upper, left, unit = (call.kwargs.get(name, default) for name, default in ARGUMENTS.items())

    def steps() -> Tensor:
        if left:
            return substituted(a, b, upper, unit)
        return substituted(a.transpose(-2, -1), b.transpose(-2, -1), not upper, unit).transpose(-2, -1)

    return steps


ARGUMENTS = {"upper": False, "left": True, "unitriangular": False}
"""The keyword arguments of the operation, with their defaults; torch requires the first."""


def substituted(a: Tensor, b: Tensor, upper: bool, unit: bool) -> Tensor:
    """A⁻¹B for a triangular A, ``(…, n, n), (…, n, m) -> (…, n, m)``, one row at a time."""
    n = a.shape[-1]
    rows: list[Tensor] = []  # in the order of A's rows
    for i in reversed(range(n)) if upper else range(n):
        row = b[..., i : i + 1, :]
        if rows:
            others = a[..., i : i + 1, i + 1 :] if upper else a[..., i : i + 1, :i]
            row = row - torch.matmul(others, torch.cat(rows, -2))
        row = row if unit else row / a[..., i : i + 1, i : i + 1]
        rows = [row, *rows] if upper else [*rows, row]
    return torch.cat(rows, -2)


declare("linalg_solve_triangular", rule=triangular_system_rule)
