"""The policy of an alignment on many workers, on recorded task times and simulated workers."""

import json
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from faithcheck.alignment.schedule import MOST_ENDED, Schedule, Task
from faithcheck.alignment.work import work_of
from faithcheck.tests.helpers.simulated_workers import SimulatedWorker, bound, simulate

RECORDED = json.loads((Path(__file__).parents[1] / "helpers" / "recorded_tasks.json").read_text())
"""Of each explainer of Table 2 on the project's BERT: the lengths of the examples of each batch, and its seconds."""
WITHIN = 1.15


def tasks(copies=1):
    """Costs and seconds of the recorded tasks; with several copies a data set so many times as large."""
    costs, seconds = {}, {}
    for explainer, rows in RECORDED.items():
        for i, (lengths, took) in enumerate(rows * copies):
            costs[Task(explainer, i)] = work_of(lengths, explainer, 1).tokens
            seconds[Task(explainer, i)] = took
    return costs, seconds


def check(costs, seconds, workers, deadly=frozenset()):
    schedule, result = simulate(costs, seconds, workers, deadly)
    left_out = set(schedule.left_out)
    assert deadly <= left_out <= {task for task, number in result.ended.items() if number >= MOST_ENDED}
    assert result.first_answers == dict.fromkeys(set(costs) - left_out, 1), "lost, or counted twice"
    return schedule, result


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 16, 64, 250, 1000])
def test_equal_workers_come_within_the_bound(workers):
    costs, seconds = tasks(copies=max(1, 10 * workers // len(tasks()[0]) + 1))
    there = [SimulatedWorker()] * workers
    _, result = check(costs, seconds, there)
    assert result.makespan <= WITHIN * bound(seconds, there, 0.0)


@settings(max_examples=40, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.sampled_from([1, 2, 3, 5, 8, 20, 60]), st.randoms(use_true_random=False))
def test_with_stragglers_and_failures_nothing_is_lost_and_the_bound_is_kept(number, draw):
    costs, seconds = tasks(copies=max(1, 30 * number // len(tasks()[0]) + 1))
    ends = sum(seconds.values()) / number
    there = [
        SimulatedWorker(draw.choice([1.0, 1.0, draw.uniform(1, 30)]), draw.choice([None, draw.uniform(0, ends)]))
        for _ in range(number)
    ]
    _, result = check(costs, seconds, there)
    assert result.makespan <= WITHIN * bound(seconds, there, result.lost)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    times=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=40),
    wrong=st.lists(st.floats(0.1, 10.0), min_size=40, max_size=40),
    workers=st.lists(st.tuples(st.floats(1.0, 30.0), st.none() | st.floats(0.0, 200.0)), min_size=1, max_size=60),
    dead=st.sets(st.integers(0, 39), max_size=4),
)
def test_any_tasks_on_any_workers_are_done_once(times, wrong, workers, dead):
    seconds = {Task(f"explainer {i % 3}", i): took for i, took in enumerate(times)}
    costs = {task: took * factor for (task, took), factor in zip(seconds.items(), wrong, strict=False)}
    deadly = frozenset(task for task in seconds if task.number in dead)
    check(costs, seconds, [SimulatedWorker(*one) for one in workers], deadly)


def test_a_straggler_is_overtaken_and_its_answer_does_not_count():
    schedule = Schedule({Task("a", 0): 2.0, Task("a", 1): 1.0, Task("a", 2): 1.0})
    schedule.joined("slow")
    schedule.joined("fast")
    assert schedule.assign(0) == {"slow": Task("a", 0), "fast": Task("a", 1)}
    assert schedule.answered("fast", 1)
    assert schedule.assign(1) == {"fast": Task("a", 2)}
    assert schedule.answered("fast", 2)
    assert schedule.assign(2.5) == {"fast": Task("a", 0)}, "as long again as it has run, against two seconds"
    assert schedule.run_twice == 1
    assert schedule.answered("fast", 4.5)
    assert schedule.finished
    assert not schedule.answered("slow", 9)


def test_a_task_that_ends_three_workers_is_left_out():
    task = Task("a", 0)
    schedule = Schedule({task: 1.0})
    for number in range(MOST_ENDED):
        schedule.joined(number)
        assert schedule.assign(0) == {number: task}
        assert schedule.ended(number) == (task if number == MOST_ENDED - 1 else None)
    assert schedule.finished
    assert (schedule.left_out, schedule.retried) == ([task], MOST_ENDED - 1)


def test_the_batches_after_a_refusal_need_no_answer():
    schedule = Schedule({Task("a", i): 10.0 - i for i in range(4)} | {Task("b", 0): 1.0})
    schedule.joined("one")
    schedule.joined("other")
    assert schedule.assign(0) == {"one": Task("a", 0), "other": Task("b", 0)}
    schedule.drop("a", after=1)
    assert schedule.answered("one", 1)
    assert schedule.assign(1) == {"one": Task("a", 1)}
    assert schedule.answered("one", 2)
    assert schedule.answered("other", 3)
    assert schedule.finished
    assert not schedule.assign(3)


def test_what_runs_beyond_a_refusal_needs_no_answer_either():
    schedule = Schedule({Task("a", i): 1.0 for i in range(3)})
    schedule.joined("one")
    schedule.joined("other")
    assert schedule.assign(0) == {"one": Task("a", 0), "other": Task("a", 1)}
    assert schedule.answered("one", 1)
    schedule.drop("a", after=0)
    assert schedule.finished
    assert not schedule.answered("other", 2)


def test_parts_come_last_in_place_of_a_task_and_each_may_end_workers_itself():
    whole, parts = Task("a", 0), {Task("a", 0): 1.0, Task("a", 1): 1.0}
    schedule = Schedule({whole: 2.0, Task("a", 9): 1.0})
    schedule.joined("first")
    assert schedule.assign(0) == {"first": whole}
    assert not schedule.is_pending(whole)
    assert schedule.ended("first") is None
    assert schedule.is_pending(whole)
    schedule.split(whole, parts)
    assert schedule.open == 3
    schedule.joined("second")
    assert schedule.assign(0) == {"second": Task("a", 9)}
    assert schedule.answered("second", 1)
    for number in range(MOST_ENDED):
        schedule.joined(number)
        assert schedule.ended("second" if number == 0 else number - 1) is None
        assert schedule.assign(1) == {number: Task("a", 0)}
    assert schedule.ended(MOST_ENDED - 1) == Task("a", 0)
    schedule.joined("last")
    assert schedule.assign(1) == {"last": Task("a", 1)}
    assert schedule.answered("last", 2)
    assert schedule.finished


def test_the_time_that_is_left_follows_from_the_answers():
    schedule = Schedule({Task("a", i): 1.0 for i in range(4)})
    assert schedule.seconds_left(0) is None
    schedule.joined("one")
    schedule.joined("other")
    schedule.assign(0)
    schedule.answered("one", 2)
    assert schedule.seconds_left(2) == pytest.approx((2 * 2 + 2) / 2), "two are pending, one has run two seconds"
    schedule.assign(2)
    assert schedule.seconds_left(3) == pytest.approx((1 * 2 + 1 + 3) / 2)
