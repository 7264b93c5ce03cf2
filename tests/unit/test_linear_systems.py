"""The rule for triangular systems, against its closed form and against substitution entry by entry."""

import pytest
import torch

from faithcheck.explainers import CPLRP, AttnLRP, EpsilonLRP, Unsupported
from faithcheck.explainers.lrp.ledger import conservation_ledger
from faithcheck.models import Case
from faithcheck.tests.helpers import oracles
from faithcheck.tests.helpers.fixtures import double as double  # for every test here
from faithcheck.tests.helpers.relevance_of_operands import CLOSE, both_forms, relevance_of

N, SIDES = 4, 3


def triangle(upper=False):
    matrix = torch.randn(N, N)
    return (matrix.triu(1) if upper else matrix.tril(-1)) + torch.eye(N)


def solved(upper=False, left=True, unit=True):
    return lambda a, b: torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit)


@pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
@pytest.mark.parametrize("left", [True, False], ids=["AX = B", "XA = B"])
def test_attnlrp_against_the_closed_form(upper, left):
    """Λ = (I + ½N)⁻ᵀG for AX = B; the transposed equations for XA = B."""
    a, b, relevance = triangle(upper), torch.randn(N, SIDES), torch.randn(N, SIDES)
    if not left:
        b, relevance = b.T, relevance.T
    to_a, to_b = relevance_of(solved(upper, left), a, b, relevance=relevance)
    x = torch.linalg.inv(a) @ b if left else b @ torch.linalg.inv(a)
    n, halved = a - torch.eye(N), (a + torch.eye(N)) / 2
    adjoint = torch.linalg.inv(halved).T
    at_b = adjoint @ (relevance / x) if left else (relevance / x) @ adjoint
    torch.testing.assert_close(to_b, b * at_b, **CLOSE)
    torch.testing.assert_close(to_a, n * -(at_b @ x.T if left else x.T @ at_b) / 2, **CLOSE)
    torch.testing.assert_close(to_a.sum() + to_b.sum(), relevance.sum(), **CLOSE)


def test_cplrp_holds_the_matrix_constant():
    a, b, relevance = triangle(), torch.randn(N, SIDES), torch.randn(N, SIDES)
    to_a, to_b = relevance_of(solved(), a, b, relevance=relevance, rules=CPLRP().rules)
    inverse = torch.linalg.inv(a)
    torch.testing.assert_close(to_b, b * (inverse.T @ (relevance / (inverse @ b))), **CLOSE)
    assert not to_a.any()


@pytest.mark.parametrize("method", [AttnLRP, CPLRP, EpsilonLRP])
def test_a_constant_matrix_is_a_linear_map(method):
    a, b, relevance = triangle(), torch.randn(N, 1), torch.randn(N, 1)
    (actual,) = relevance_of(lambda b: solved()(a, b), b, relevance=relevance, rules=method().rules)
    expected = oracles.linear_map(b[:, 0], torch.linalg.inv(a).T, torch.zeros(N), relevance[:, 0], 0.0)
    torch.testing.assert_close(actual[:, 0], expected, **CLOSE)


@both_forms
def test_substitution_by_single_operations(epsilon):
    """Also for a diagonal of data: a quotient, half of it to the number on the diagonal."""
    a, b, relevance = triangle() + torch.randn(N).abs().diag(), torch.randn(N, 1), torch.randn(N, 1)

    def row_by_row(a, b):
        x = []
        for i in range(N):
            known = [torch.stack([a[i, j] for j in range(i)]) @ torch.cat(x)] if i else []
            x.append((b[i] - known[0] if i else b[i]) / a[i, i])
        return torch.stack(x)

    actual = relevance_of(solved(unit=False), a, b, relevance=relevance, epsilon=epsilon)
    expected = relevance_of(row_by_row, a, b, relevance=relevance, epsilon=epsilon)
    for got, same in zip(actual, expected, strict=True):
        torch.testing.assert_close(got, same, **CLOSE)


class System(torch.nn.Module):
    """The last entry of A⁻¹b, with A and b of the inputs."""

    def forward(self, x):
        a = torch.eye(3).repeat(len(x), 1, 1)
        a[:, 1:, 0] = x[:, :2]
        return solved()(a, x[:, 2:, None])[:, 2]


def test_the_ledger_balances():
    x = torch.randn(2, 5)
    case = Case(x, torch.zeros(2, dtype=torch.int64), torch.zeros_like(x))
    ledger = conservation_ledger(AttnLRP(), System(), case)
    assert ledger.gap < 1e-12
    assert ledger.by_cause() == {}


def test_epsilon_lrp_refuses_a_matrix_of_data():
    x = torch.randn(2, 5)
    with pytest.raises(Unsupported, match="both carry relevance"):
        EpsilonLRP().attribute(System(), Case(x, torch.zeros(2, dtype=torch.int64), torch.zeros_like(x)))
