"""Perturbation curves of functions for which they are known exactly."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from faithcheck.alignment.perturbation_curves import aopc, curves, delta, mean_output
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.removal import AttentionMask, GaussianNoise, Replacement, Unsupported
from faithcheck.models import Case

ZERO = Replacement("zero")
WEIGHTED = [3.0, -2.0, 0.5, 4.0, -1.0]


class Sum(nn.Module):
    """f = Σ_i x_i over the features that remain: the attribution of feature i is x_i in every order of removal."""

    def forward(self, inputs, attention_mask=None):
        present = torch.ones_like(inputs) if attention_mask is None else attention_mask
        return (inputs * present).sum(1, keepdim=True)


def case_of(*rows, special=None, lengths=None):
    inputs = torch.tensor(rows, dtype=torch.float64)
    mask = {}
    if lengths is not None:
        mask = {"attention_mask": (torch.arange(inputs.shape[1]) < torch.tensor(lengths).unsqueeze(1)).long()}
    special = None if special is None else torch.tensor(special).expand(inputs.shape)
    return Case(inputs, torch.zeros(len(inputs), dtype=torch.int64), torch.zeros_like(inputs), special, mask)


def test_curves_of_a_sum_are_the_remaining_sums():
    case = case_of(WEIGHTED)
    morf, lerf = (curve[0].tolist() for curve in curves(Sum(), case, case.inputs, ZERO))
    assert morf == [4.5, 0.5, -2.5, -3.0, -2.0, 0.0]
    assert lerf == [4.5, 6.5, 7.5, 7.0, 4.0, 0.0]
    assert mean_output(morf) == pytest.approx(-2.5 / 6, abs=1e-15)
    assert mean_output(lerf) == pytest.approx(29.5 / 6, abs=1e-15)
    assert aopc(morf) == pytest.approx((0 + 4 + 7 + 7.5 + 6.5 + 4.5) / 6, abs=1e-15)
    assert delta(morf, lerf) == pytest.approx(32 / 6, abs=1e-15)
    assert delta(morf, lerf) == pytest.approx(aopc(morf) - aopc(lerf), abs=1e-15)


def test_loo_of_a_sum_is_the_best_order_and_its_opposite_the_worst():
    case = case_of(WEIGHTED)
    loo = LeaveOneOut(ZERO).attribute(Sum(), case)
    assert torch.equal(loo, case.inputs)
    best = delta_of(case, loo)
    every = [delta_of(case, torch.tensor([ranks], dtype=torch.float64)) for ranks in itertools.permutations(range(5))]
    assert best == max(every)
    assert delta_of(case, -loo) == min(every) == -best
    assert sum(every) == pytest.approx(0, abs=1e-12), "an order and its opposite cancel"


def delta_of(case, attribution, **how):
    morf, lerf = curves(Sum(), case, attribution, ZERO, **how)
    return delta(morf[0], lerf[0])


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=8),
    st.integers(1, 4),
    st.sampled_from([1, 6, 1000]),
)
def test_morf_of_the_opposite_is_lerf(relevance, chunk, max_tokens):
    """Ties included: of equally relevant features the first is removed first in both orders."""
    n = len(relevance)
    case = case_of([2.0**i for i in range(n)])  # all subsets have different sums
    attribution = torch.tensor([relevance], dtype=torch.float64)
    there = curves(Sum(), case, attribution, ZERO, chunk, max_tokens)
    opposite = curves(Sum(), case, -attribution, ZERO, chunk)
    assert torch.equal(there.morf[0], opposite.lerf[0])
    assert torch.equal(there.lerf[0], opposite.morf[0])
    assert len(there.morf[0]) == len(there.lerf[0]) == -(-n // chunk) + 1
    sizes = there.morf[0].diff().neg().long().tolist()  # the features removed at each step, as a number in binary
    assert sum(sizes) == 2**n - 1
    assert all(bin(size).count("1") <= chunk for size in sizes)


def test_ties_go_from_left_to_right():
    case = case_of([2.0**i for i in range(20)])  # so many that an unstable sort would reorder them
    morf, lerf = curves(Sum(), case, torch.zeros(1, 20, dtype=torch.float64), ZERO)
    assert morf[0].tolist() == lerf[0].tolist() == [2.0**20 - 2.0**k for k in range(21)]


def test_special_features_and_padding_are_never_removed():
    special = [True, False, False, False, False]
    case = case_of([100.0, 1.0, 2.0, 3.0, 7.0], [100.0, 3.0, 2.0, 7.0, 7.0], special=special, lengths=[5, 3])
    attribution = torch.where(case.unpadded, case.inputs, 0)
    morf, lerf = curves(Sum(), case, attribution, AttentionMask())
    assert [curve.tolist() for curve in morf] == [[113, 106, 103, 101, 100], [105, 102, 100]]
    assert [curve.tolist() for curve in lerf] == [[113, 112, 110, 107, 100], [105, 103, 100]]


def test_chunks_are_neighbours_and_their_relevance_is_summed():
    case = case_of([1.0, 2.0, 4.0, 8.0, 16.0])
    relevance = torch.tensor([[5.0, -5.0, 1.0, 1.0, 1.5]], dtype=torch.float64)  # 0, 2, 1.5: not the largest single
    morf, lerf = curves(Sum(), case, relevance, ZERO, chunk=2)
    assert morf[0].tolist() == [31, 19, 3, 0]
    assert lerf[0].tolist() == [31, 28, 12, 0]


def test_chunks_close_over_special_features():
    case = case_of([1.0, 2.0, 4.0, 8.0, 16.0], special=[False, True, False, False, True])
    morf, _ = curves(Sum(), case, case.inputs, ZERO, chunk=2)
    assert morf[0].tolist() == [31, 23, 18], "chunks {0, 2} and {3}"


@pytest.mark.parametrize("n", [0, 1])
def test_no_or_one_feature_has_equal_curves(n):
    case = case_of([5.0, 7.0], special=[True, n == 0])
    morf, lerf = curves(Sum(), case, case.inputs, ZERO)
    assert morf[0].tolist() == lerf[0].tolist() == [12.0, 5.0][: n + 1]
    assert delta(morf[0], lerf[0]) == 0


def test_the_curves_of_a_batch_are_those_of_its_examples():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 6, dtype=torch.float64, generator=generator).tolist()
    case = case_of(*inputs, special=[True] + [False] * 5, lengths=[6, 2, 4])
    attribution = torch.where(case.unpadded, torch.randn(3, 6, dtype=torch.float64, generator=generator), 0)
    for removal in (AttentionMask(), GaussianNoise(draws=2)):
        together = curves(Sum(), case, attribution, removal, 2, 12)
        for i in range(3):
            one = torch.tensor([i])
            alone = curves(Sum(), case.select(one), attribution[one], removal, 2)
            torch.testing.assert_close(together.morf[i], alone.morf[0], rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(together.lerf[i], alone.lerf[0], rtol=1e-12, atol=1e-12)


def test_impossible_arguments_are_refused():
    case = case_of(WEIGHTED, lengths=[5])
    with pytest.raises(Unsupported, match="special features stay"):
        curves(Sum(), case, case.inputs, AttentionMask())
    nan = case.inputs * float("nan")
    for wrong, how in ((nan, {}), (case.inputs[:, :2], {}), (case.inputs, {"chunk": 0})):
        with pytest.raises(ValueError, match=r"finite attribution|chunk must be at least 1"):
            curves(Sum(), case, wrong, ZERO, **how)
