"""Differences that round-off explains: the gradient's sum over a token is 0 before a LayerNorm, up to round-off."""

import pytest
import torch

from faithcheck import Settings
from faithcheck.axioms.invariance import invariance
from faithcheck.axioms.measure.measurement import gap_beyond_roundoff, relative_gap
from faithcheck.axioms.measure.roundoff import roundoff_of_sums
from faithcheck.explainers import AttnLRP, from_function
from faithcheck.explainers.protocol import input_gradient, per_feature
from faithcheck.models import Case, registered_pairs
from faithcheck.plan import plan

PAIRS = registered_pairs()
CANCELLING = ["attention.fused_bert", "basis.query_key_gpt2", "folding.norm_bert", "rescaling.key_bias_roberta"]
WHERE = 0, torch.float64, torch.device("cpu")
CLAIMS = frozenset("invariance linearity shift batching".split())


def gradient(model, inputs, target):
    """∂f/∂x; the adapter sums it over the coordinates of a token."""
    point = inputs.clone().requires_grad_()
    return torch.autograd.grad(model(point).gather(1, target[:, None]).sum(), point)[0]


PLAIN = from_function(gradient, name="plain_gradient", claims=CLAIMS)


class Faulty:
    """The plain gradient; on g a little of input × gradient is added, and the whole has another unit."""

    name, claims = "faulty", CLAIMS

    def __init__(self, part, unit=1.0):
        self.part, self.unit, self.calls = part, unit, 0

    def attribute(self, model, case):
        self.calls += 1
        slope = input_gradient(model, case)
        part = self.part if self.calls % 2 == 0 else 0.0
        return self.unit * per_feature(slope + part * case.inputs * slope)


def records(explainer, axiom, names):
    return [check.run(Settings()) for check in plan(axiom, [explainer], [PAIRS[name] for name in names])]


def test_a_gradient_that_cancels_in_the_sum_over_a_token_is_invariant():
    for record in records(PLAIN, "invariance", CANCELLING):
        assert (record.status, record.gap) == ("holds", 0)


@pytest.mark.parametrize(("part", "counted"), [(0.5, 2), (2, 0)])
def test_differences_within_round_off_are_counted_and_larger_ones_keep_their_gap(part, counted):
    """The differences are made here: those of a model's two forms may be 0 with another processor's instructions."""
    pair = PAIRS["attention.fused_bert"]
    (f, g), case = pair.build(*WHERE), pair.case(*WHERE)
    difference = torch.zeros(case.shape, dtype=torch.float64)
    difference[:2, 0] = part * roundoff_of_sums(case, f, g)[:2]
    gap, detail = gap_beyond_roundoff(difference, difference, case, f, g)
    assert (gap, detail) == ((0, {"examples that differ by round-off": counted}) if counted else (1, {}))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_plain_gradient_is_invariant_on_every_pair(seed):
    checks = plan("invariance", [PLAIN], PAIRS.values())
    settled = [check.run(Settings(seed=seed)) for check in checks]
    assert len(settled) >= 159
    assert [record.id for record in settled if record.status != "holds"] == []


@pytest.mark.parametrize(("part", "unit"), [(1e-2, 1.0), (1e-9, 1.0), (1e-2, 1e-9)])
def test_a_fault_is_red_with_its_own_relative_gap_even_if_the_rest_cancels(part, unit):
    f, g = PAIRS["attention.fused_bert"].build(*WHERE)
    measured = invariance(Faulty(part, unit), f, g, PAIRS["attention.fused_bert"].case(*WHERE))
    assert measured.gap > measured.tol
    assert measured.gap == relative_gap(measured.values, measured.scale) == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("name", ["product.x1x2x3", "linear_attention.assoc"])
def test_the_gap_of_a_violation_is_unchanged(name):
    pair = PAIRS[name]
    measured = invariance(AttnLRP(), *pair.build(*WHERE), pair.case(*WHERE))
    assert measured.gap == relative_gap(measured.values, measured.scale) > 0.1
    assert not measured.detail


class Root(torch.nn.Module):
    """√x₁ + √x₂: the derivative at 0 is infinite."""

    def forward(self, inputs):
        return inputs.sqrt().sum(1, keepdim=True)


def test_an_infinite_gradient_hides_no_difference():
    inputs = torch.tensor([[0.0, 1.0], [4.0, 1.0]], dtype=torch.float64)
    case = Case(inputs, torch.zeros(2, dtype=torch.int64), torch.zeros_like(inputs))
    roundoff = roundoff_of_sums(case, Root())
    assert roundoff[0] == 0 < roundoff[1]
    gap, detail = gap_beyond_roundoff(torch.full((2, 2), 1.0), torch.ones(2, 2), case, Root())
    assert (gap, detail) == (1, {})


def test_round_off_is_a_small_part_of_what_is_summed():
    pair = PAIRS["attention.fused_bert"]
    (f, g), case = pair.build(*WHERE), pair.case(*WHERE)
    summed = input_gradient(f, case).abs().sum(2).amax(1)
    assert (roundoff_of_sums(case, f, g) < 1e-12 * summed).all()
    assert (roundoff_of_sums(case, f, g) > 1e-15 * summed).all()
