"""Intervals and tests over examples with known answers; undefined figures are counted and never NaN."""

import math

import numpy as np
import pytest
from scipy import stats

from faithcheck.axioms.loo_correlation import correlations
from faithcheck.axioms.measure import statistics
from faithcheck.axioms.measure.statistics import interval, paired, undefined

VALUES = np.random.default_rng(7).standard_normal(200) + 0.3


def test_the_interval_is_the_normal_one_for_many_values():
    found = interval(VALUES.tolist(), seed=1)
    half = stats.norm.ppf(0.975) * VALUES.std() / math.sqrt(len(VALUES))
    assert found["mean"] == pytest.approx(VALUES.mean(), abs=1e-15)
    # 9,999 resamples place a 2.5 % point to about 0.026 standard errors; their mean is near normal.
    assert found["low"] == pytest.approx(VALUES.mean() - half, abs=0.1 * half)
    assert found["high"] == pytest.approx(VALUES.mean() + half, abs=0.1 * half)
    assert (found["n"], found["undefined"]) == (200, 0)


def correlations_of(random, count):
    """Correlations like those of AttnLRP with LOO on short texts: most near 0.85, few far below."""
    return np.tanh(random.normal(1.2, 0.5, count))


MEANS = {"exponential": 1.0, "correlations": float(correlations_of(np.random.default_rng(1), 10**7).mean())}
DRAWN = {"exponential": lambda random, count: random.exponential(size=count), "correlations": correlations_of}
SIMULATED = 600
TWO_STANDARD_ERRORS = 0.02  # of a coverage of 94 %, as found in that many samples


@pytest.mark.parametrize("count", [10, 40, 150])
@pytest.mark.parametrize("kind", DRAWN)
def test_the_interval_covers_the_mean_as_often_as_it_says(kind, count, monkeypatch):
    """Percentiles of the resampled means cover it in 87 % at 10 values, and Student's t in 90 %."""
    monkeypatch.setattr(statistics, "RESAMPLES", 999)  # 10 times faster
    random = np.random.default_rng(3)
    found = [interval(DRAWN[kind](random, count), seed=i) for i in range(SIMULATED)]
    covered = np.mean([one["low"] <= MEANS[kind] <= one["high"] for one in found])
    assert abs(covered - 0.945) <= TWO_STANDARD_ERRORS + 0.01


def test_the_mean_of_correlations_has_an_interval_within_their_limits():
    values = [0.99, 0.98, 0.2]
    assert interval(values)["high"] > 1
    assert interval(values, limits=(-1, 1))["high"] == 1


def test_p_is_corrected_for_the_number_of_tests():
    """Benjamini & Hochberg 1995: p times tests over its rank, and no larger than that of the next."""
    assert statistics.corrected([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.04, 0.04])
    assert statistics.corrected([None]) == [None]


def test_the_seed_fixes_the_interval():
    assert interval(VALUES.tolist(), 5) == interval(VALUES.tolist(), 5)
    assert interval(VALUES.tolist(), 5) != interval(VALUES.tolist(), 6)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], (None, None, None, 0, 0)),
        ([None, None], (None, None, None, 0, 2)),
        ([0.5], (0.5, None, None, 1, 0)),
        ([None, 0.5, None], (0.5, None, None, 1, 2)),
        ([0.5, None, 0.5], (0.5, 0.5, 0.5, 2, 1)),
        ([0.0, 1.0], pytest.approx((0.5, 0.5 - 12.7062 * 0.5, 0.5 + 12.7062 * 0.5, 2, 0), abs=1e-4)),  # Student's t
    ],
)
def test_few_values(values, expected):
    assert tuple(interval(values).values()) == expected


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_is_refused_and_never_averaged(bad):
    with pytest.raises(ValueError, match="1 of 3 values are NaN or infinite"):
        interval([0.1, bad, 0.2, None])
    with pytest.raises(ValueError, match="1 of 2 values"):
        paired([0.1, bad], [0.1, 0.2])


def test_a_shift_is_significant_and_noise_is_not():
    noise = np.random.default_rng(11).standard_normal(60)
    other = VALUES[:60]
    shifted = paired((other + 0.5 + 0.1 * noise).tolist(), other.tolist(), seed=2)
    assert shifted["difference"] == pytest.approx(0.5 + 0.1 * noise.mean(), abs=1e-14)
    assert 0.45 < shifted["low"] < shifted["high"] < 0.55
    assert shifted["p"] < 1e-9
    opposite = paired(other.tolist(), (other + 0.5 + 0.1 * noise).tolist(), seed=2)
    assert opposite["difference"] == pytest.approx(-shifted["difference"], abs=1e-14)
    assert opposite["p"] == shifted["p"]
    alike = paired((other + noise - noise.mean()).tolist(), other.tolist())
    assert alike["low"] < 0 < alike["high"]
    assert alike["p"] > 0.05


def test_small_samples_have_exact_p():
    """All five differences positive: p = 2 · 2⁻⁵."""
    assert paired([1.0, 2.1, 3.2, 4.3, 5.4], [0.0] * 5)["p"] == pytest.approx(2 / 32)
    assert paired([1.0, 2.1], [0.0] * 2)["p"] == pytest.approx(2 / 4)
    assert paired([1.0], [0.0])["p"] is None


def test_pairs_with_an_undefined_side_are_left_out_and_counted():
    found = paired([1.0, None, 3.0, None, 5.0], [0.5, 1.0, None, None, 4.0])
    assert (found["difference"], found["n"], found["undefined"]) == (0.75, 2, 3)
    assert paired([None], [1.0]) == {"difference": None, "low": None, "high": None, "p": None, "n": 0, "undefined": 1}


def test_p_is_undefined_if_no_pair_differs():
    found = paired([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (found["difference"], found["low"], found["high"], found["p"]) == (0, 0, 0, None)
    with pytest.raises(ValueError, match="1 values cannot be paired with 2"):
        paired([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("attribution", "loo", "reason"),
    [
        ([], [], "fewer than two features"),
        ([1.0], [2.0], "fewer than two features"),
        ([1.0, 2.0], [3.0, 3.0], "constant LOO"),
        ([1.0, 2.0], [0.0, 0.0], "constant LOO"),
        ([1.0, 1.0], [1.0, 2.0], "constant attribution"),
        ([1.0, 1.0], [2.0, 2.0], "constant LOO"),
        ([0.1 + 0.2, 0.3], [1.0, 2.0], "constant attribution"),
        ([1.0, 1.001], [1.0, 2.0], None),
    ],
)
def test_the_reason_why_a_correlation_is_undefined(attribution, loo, reason):
    maps = np.array(attribution), np.array(loo)
    assert undefined(*maps) == reason
    found = correlations(*maps)
    assert (found is None) is (reason in ("fewer than two features", "constant LOO"))
    if reason == "constant attribution":
        assert set(found.values()) == {0.0}, "a map that tells no features apart would be left out of a mean"
