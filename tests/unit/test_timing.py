"""What `make bench` measures with: turns until a ratio is precise, with a clock of the tests; CUDA's calls recorded."""

import itertools

import numpy as np
import pytest
import torch

from faithcheck.explainers import AttnLRP, GradientTimesInput, LeaveOneOut
from faithcheck.explainers.protocol import Unsupported, input_gradient
from faithcheck.tests.helpers import cost, timing
from faithcheck.tests.helpers.timing import Limits, until_precise

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 1)

# --- intervals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turns", "low", "high"), [(1, None, None), (5, None, None), (6, 1, 6), (9, 2, 8), (30, 10, 21)]
)
def test_the_interval_is_between_two_order_statistics(turns, low, high):
    """The ranks of Conover's Table A3 for the median at 95 %: the largest r with 2 · P(B(n, ½) < r) ≤ 5 %."""
    values = np.random.default_rng(0).permutation(turns) + 1.0
    assert timing.interval(values) == timing.Ratio((turns + 1) / 2, low, high)


# --- turns ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clockwork(monkeypatch):
    """The time of a call is what it returns."""
    monkeypatch.setattr(timing, "milliseconds", lambda function, device: function())


def drawn(*values):
    endless = itertools.cycle(values)
    return lambda: next(endless)


NOISY = (drawn(1.0, 1.2), drawn(1.0))


def test_turns_end_when_the_ratio_is_precise_however_the_machine_slows(clockwork):
    calls = {"slowing": (drawn(2.0, 20.0, 60.0), drawn(1.0, 10.0, 30.0), drawn(7.0)), "noisy": NOISY}
    times = until_precise(calls, CPU, Limits(turns=40), 0)
    assert {name: of.shape for name, of in times.items()} == {"slowing": (timing.FEWEST, 3), "noisy": (40, 2)}
    np.testing.assert_array_equal(times["slowing"][:, 0] / times["slowing"][:, 1], 2.0)
    assert (times["slowing"][:, 2] == 7.0).all()
    assert timing.interval(times["noisy"][:, 0] / times["noisy"][:, 1]).half_width > 0.05


def test_the_seconds_stop_it_too_but_not_before_there_is_an_interval(clockwork):
    for seconds, turns in ((0, timing.FEWEST), (10, 11), (1e9, 400)):  # the clock goes on by a second at each turn
        times = until_precise({"noisy": NOISY}, CPU, Limits(seconds=seconds), 0, itertools.count(1).__next__)
        assert len(times["noisy"]) == turns, seconds


def test_everyone_gets_the_same_time_and_the_cheap_ones_more_turns(clockwork):
    calls = {name: (drawn(cost, 2 * cost), drawn(1.0)) for name, cost in (("cheap", 1.0), ("dear", 100.0))}
    clock = itertools.count().__next__
    times = until_precise(calls, CPU, Limits(seconds=900, turns=10**6), 0, clock)
    spent = {name: of.sum() for name, of in times.items()}
    assert abs(spent["cheap"] - spent["dear"]) <= 201, "one turn of the dear one"


def test_the_calls_of_a_turn_have_no_fixed_order(clockwork):
    called = []
    calls = {"x": [lambda name=name: called.append(name) or 1.0 for name in "abc"]}
    until_precise(calls, CPU, Limits(turns=60, within=-1.0), 0)
    turns = ["".join(called[i : i + 3]) for i in range(0, 180, 3)]
    assert set(turns) == set(map("".join, itertools.permutations("abc")))


def test_on_cuda_a_call_is_timed_by_events_around_synchronised_work(monkeypatch):
    done = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            done.append("record")

        def elapsed_time(self, end):
            done.append("read")
            return 7.5

    class OnDevice:
        def __init__(self, device):
            done.append(device)

        def __enter__(self):
            pass

        def __exit__(self, *_):
            done.append("left")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", OnDevice)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("synchronise"))
    assert timing.milliseconds(lambda: done.append("call"), CUDA) == 7.5
    assert done == [CUDA, "synchronise", "record", "call", "record", "synchronise", "left", "read"]


# --- one point --------------------------------------------------------------------------------------------------------

TINY = cost.Size(length=8, batch=2, depth=2, width=16)


@pytest.mark.parametrize("shape", cost.SHAPES)
def test_every_shape_has_the_size_that_it_is_asked_for(shape):
    model, case = cost.build(shape, TINY, 0, CPU)
    assert case.shape == (TINY.batch, TINY.length)
    assert input_gradient(model, case).abs().sum((1, 2)).min() > 0
    config = model.model.config
    assert (config.num_hidden_layers, config.hidden_size) == (TINY.depth, TINY.width)


def test_the_plain_pass_of_rows_has_the_rows_of_leave_one_out():
    model, case = cost.build("bert", TINY, 0, CPU)
    passes = []
    model.register_forward_pre_hook(lambda module, arguments: passes.append(arguments[0].shape[:2]))
    cost.forward_of_rows(model, case, at_once=50)
    assert passes == [(6, 8), (6, 8), (6, 8)]


def test_a_size_is_the_middle_with_one_dimension_multiplied():
    assert cost.size_of(TINY, "middle", 1) == TINY
    assert cost.size_of(TINY, "depth", 0.5) == cost.Size(length=8, batch=2, depth=1, width=16)


class Refusing:
    name = "refusing"

    def attribute(self, model, case):
        raise Unsupported("no rule for softmax")


class Broken:
    name = "broken"
    origin = "library 1.0"

    def attribute(self, model, case):
        raise KeyError("weights")


def test_a_point_has_a_row_for_each_plain_pass_and_explainer(monkeypatch):
    """A call takes 6 ms, its unit 2 and the reference 3."""
    monkeypatch.setattr(cost, "until_precise", lambda calls, *_: {name: np.array([[6.0, 2, 3]] * 6) for name in calls})
    model, case = cost.build("bert", TINY, 0, CPU)
    chosen = {one.name: one for one in (AttnLRP(), GradientTimesInput(), LeaveOneOut(), Refusing(), Broken())}
    rows = cost.measured_rows(model, case, chosen, lambda: input_gradient(model, case), Limits(), 0)
    assert list(rows) == [cost.GRADIENT, cost.ROWS, *chosen]
    assert {len(row) for row in rows.values()} == {len(cost.COLUMNS)}
    assert [rows[name][1] for name in ("attnlrp", "loo")] == [cost.GRADIENT, cost.ROWS]
    assert rows["attnlrp"][2:8] == ["3", "3 – 3", "2", "2 – 2", "6", "6"]
    assert rows[cost.ROWS][8] == rows[cost.GRADIENT][8] == "1"
    assert rows["refusing"][2] == "not measured: no rule for softmax"
    assert rows["broken"][2] == "not measured: KeyError: 'weights'"
