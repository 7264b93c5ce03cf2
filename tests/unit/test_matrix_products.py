"""The arithmetic of a call, against products that are counted by hand."""

import pytest
import torch
from torch.nn.functional import conv1d, linear, scaled_dot_product_attention

from faithcheck.alignment.matrix_products import MatrixProducts

A, B = torch.ones(3, 4), torch.ones(4, 5)
HEADS = torch.ones(2, 3, 7, 4)  # batch, heads, tokens, width


@pytest.mark.parametrize(
    ("call", "operations"),
    [
        (lambda: A @ B, 2 * 3 * 4 * 5),
        (lambda: linear(A.expand(2, 3, 4), B.T.contiguous(), torch.ones(5)), 2 * 6 * 4 * 5),
        (lambda: torch.ops.mkldnn._linear_pointwise(A, B.T.contiguous(), None, "none", [], ""), 2 * 3 * 4 * 5),
        (lambda: scaled_dot_product_attention(HEADS, HEADS, HEADS), 2 * (2 * 2 * 3 * 7 * 7 * 4)),
        (lambda: conv1d(torch.ones(1, 2, 6), torch.ones(3, 2, 2)), 2 * (3 * 5) * (2 * 2)),
        (lambda: A + 1, 0),
    ],
)
def test_the_operations_of_products(call, operations):
    with MatrixProducts() as products:
        call()
    assert products.operations == operations


def test_the_backward_pass_counts():
    weights = B.clone().requires_grad_()
    with MatrixProducts() as products:
        (A @ weights).sum().backward()
    assert products.operations == 2 * (2 * 3 * 4 * 5)
