"""Products of data, against the same products by other operations.

1. Eqs. 3–4 of arXiv 2510.18810 give each operand half of a product's relevance, in whatever operation it is computed:
   z = Σ ab passes ½·ab·R/z to a and to b.
2. CP-LRP holds the first operand of a matrix product constant, and halves an element-wise product. So between the two
   the first operand has 0 and ½, and the second 1 and ½, of its gradient × input.
3. A quotient a/b is the product of a and 1/b, and 1/b leaves relevance unchanged: half to a, half to b.
4. A triangular system is solved by forward substitution, entry by entry: AttnLRP halves each product N_ij x_j, CP-LRP
   holds N constant, in the operation and in the substitution by `einsum` alike.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case
from faithcheck.models.closed_forms import gradient_times_input
from faithcheck.models.expectation import expect, expect_lrp
from faithcheck.models.networks.operation_by_operation import Written, operation_pair

EQS = "Eqs. 3–4 of arXiv 2510.18810"


def matrices(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:, :4].view(-1, 2, 2), x[:, 4:].view(-1, 2, 2)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:, :4], x[:, 4:]


def matrix_product(x: Tensor) -> Tensor:
    a, b = matrices(x)
    return (a.unsqueeze(3) * b.unsqueeze(1)).sum(2)


def inner_product(x: Tensor) -> Tensor:
    a, b = halves(x)
    return (a * b).sum(1, keepdim=True)


def outer_product(x: Tensor) -> Tensor:
    a, b = halves(x)
    return a.unsqueeze(2) * b.unsqueeze(1)


def each_example(product: Callable[[Tensor, Tensor], Tensor], operands: tuple[Tensor, Tensor]) -> Tensor:
    """A product that takes the operands of one example, of each example."""
    return torch.stack([product(a, b) for a, b in zip(*map(torch.unbind, operands), strict=True)])


def half_moved(f: nn.Module, g: nn.Module, case: Case) -> Tensor:
    """−½ of gradient × input at the first operand and +½ at the second: ``(batch, 8)``."""
    return gradient_times_input(g, case) * torch.tensor([-0.5] * 4 + [0.5] * 4).to(case.inputs)


operation_pair(
    "matrix_products",
    {
        "matmul": Written(lambda x: torch.matmul(*matrices(x)), matrix_product),
        "bmm": Written(lambda x: torch.bmm(*matrices(x)), matrix_product),
        "einsum": Written(lambda x: torch.einsum("bij,bjk->bik", *matrices(x)), matrix_product),
        "mm": Written(lambda x: each_example(torch.mm, matrices(x)), matrix_product),
        "mv": Written(
            lambda x: each_example(lambda a, b: torch.mv(a, b[:, 0]), matrices(x)), lambda x: matrix_product(x)[:, :, 0]
        ),
        "dot": Written(lambda x: each_example(torch.dot, halves(x)), inner_product),
        "inner": Written(lambda x: each_example(torch.inner, halves(x)), inner_product),
        "outer": Written(lambda x: each_example(torch.outer, halves(x)), outer_product),
    },
    "sums of products, entry by entry",
    expect_lrp("half of each product to each operand, whatever computes it", cite=EQS, of="attnlrp blockwise_lrp"),
    expect_lrp(
        "the first operand of a matrix product is constant, that of an element-wise product is not",
        predict=half_moved,
        of="cplrp",
    ),
    expect("conservation", "attnlrp blockwise_lrp cplrp", "two halves, or all to the second operand"),
    axioms=("invariance", "conservation"),
)


def second_positive(x: Tensor) -> Tensor:
    """Features 5 to 8 as exp(tanh x): a denominator that is not 0."""
    return torch.cat([x[:, :4], torch.exp(torch.tanh(x[:, 4:]))], 1)


operation_pair(
    "products_and_quotients",
    {
        "mul": Written(lambda x: x[:, :4] * x[:, 4:], lambda x: x[:, :4] / torch.reciprocal(x[:, 4:])),
        "div": Written(lambda x: x[:, :4] / x[:, 4:], lambda x: x[:, :4] * torch.reciprocal(x[:, 4:])),
    },
    "ab = a/(1/b), and a/b = a·(1/b)",
    expect_lrp("half to a and half to b, and a reciprocal leaves its half unchanged", cite=EQS),
    expect("conservation", "attnlrp cplrp", "two halves"),
    prepare=second_positive,
    axioms=("invariance", "conservation"),
)


ROWS, COLUMNS = torch.tril_indices(3, 3, -1)


def system(x: Tensor) -> tuple[Tensor, Tensor]:
    """A triangular matrix with ones on its diagonal, ``(batch, 3, 3)``, and two right-hand sides, ``(batch, 3, 2)``."""
    matrix = torch.eye(3, dtype=x.dtype, device=x.device).repeat(len(x), 1, 1)
    matrix[:, ROWS, COLUMNS] = x[:, :3] / 4
    return matrix, torch.stack([x[:, 3:6], x[:, 5:8]], 2)


def in_one_operation(x: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(*system(x), upper=False, unitriangular=True)


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
    expect_lrp("each product of the substitution by the rule for products"),
    expect("conservation", "attnlrp", "halves of each product, and a sum: substitution loses nothing"),
    axioms=("invariance", "conservation"),
)
