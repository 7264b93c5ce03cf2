"""The dispatcher against a Ray without processes: starts, deaths, refusals, and what it says of itself."""

import sys
from contextlib import nullcontext
from itertools import count
from types import SimpleNamespace

import pytest

from faithcheck.alignment.schedule import MOST_ENDED, Task
from faithcheck.executors.ray import dispatch
from faithcheck.executors.ray.cluster import Cluster, Workers, connected
from faithcheck.executors.ray.dispatch import Recipe, distribute
from faithcheck.executors.ray.worker import versions
from faithcheck.options import OptionError

TASKS = [Task("a", number) for number in range(3)]
ANSWER = {"messages": [], "seconds": 1.0, "gpu_memory": {}}
DIES = object()


class Reference:
    """To what will be there."""

    def __init__(self, there):
        self.there = there


class Actor:
    """A worker that starts and answers as a script says; ``DIES`` ends it."""

    def __init__(self, ray):
        self.ready = SimpleNamespace(remote=lambda expected: Reference(ray.starts.pop(0) if ray.starts else ""))
        self.answer = SimpleNamespace(remote=lambda task: Reference(ray.answer(task)))


class Ray:
    """What `dispatch` uses of Ray. The first of several references is there first."""

    class RayActorError(Exception):
        pass

    def __init__(self, starts=(), answer=lambda task: {**ANSWER, "content": task}, versions=versions):
        self.starts, self.answer, self.started, self.versions = [*starts], answer, 0, versions
        self.exceptions = SimpleNamespace(RayActorError=self.RayActorError, RayError=self.RayActorError)

    def remote(self, worker_or_function):
        return self if worker_or_function is object else SimpleNamespace(remote=lambda: Reference(self.versions()))

    def options(self, num_cpus, num_gpus):
        def start(*arguments):
            self.started += 1
            return Actor(self)

        return SimpleNamespace(remote=start)

    def wait(self, references, num_returns, timeout):
        return references[:1], references[1:]

    def get(self, reference):
        if reference.there is DIES:
            raise self.RayActorError("The actor died. The worker of it, too.")
        return reference.there


class Job:
    """Keeps what comes."""

    def __init__(self):
        self.kept, self.left_out = [], []

    def arguments(self, task):
        return (task,)

    def keep(self, task, content):
        self.kept.append(content)
        return True

    def parts(self, task):
        return {}

    def leave_out(self, task, why):
        self.left_out.append((task, why))


@pytest.fixture
def shared(monkeypatch):
    """Shares `TASKS` between two workers of this Ray. Returns the job, the record of the run, and all states."""
    pytest.importorskip("ray")

    def shared(ray):
        there = nullcontext(Cluster(2, "127.0.0.1:8265"))
        monkeypatch.setattr(dispatch, "connected", lambda address, wanted: there)
        monkeypatch.setattr(dispatch, "time", SimpleNamespace(monotonic=count().__next__))
        monkeypatch.setitem(sys.modules, "ray", ray)
        job, states = Job(), []
        record = distribute(job, dict.fromkeys(TASKS, 1.0), "local", Recipe(Workers(2), object, ()), states.append)
        return job, record, states

    return shared


def test_each_task_is_kept_once(shared):
    job, record, states = shared(Ray(answer=lambda task: {**ANSWER, "content": task, "gpu_memory": {"one": (3, 80)}}))
    assert sorted(job.kept) == TASKS
    assert (record["tasks"], record["busy"], record["retried"]) == (3, 3.0, 0)
    last = states[-1]
    assert (last.workers, last.gpu_memory, last.dashboard) == (2, (3, 80), "127.0.0.1:8265")


def test_a_task_in_which_an_explainer_refuses_is_not_counted(shared, monkeypatch):
    monkeypatch.setattr(Job, "keep", lambda job, task, content: content != TASKS[-1])
    _, record, _ = shared(Ray(answer=lambda task: {**ANSWER, "content": task}))
    assert record["tasks"] == len(TASKS) - 1


def test_workers_that_end_while_they_start_end_the_run_if_none_starts_in_between(shared):
    with pytest.raises(OptionError, match=r"^--ray: 3 workers in turn ended while they started: The actor died"):
        shared(Ray(starts=[DIES] * MOST_ENDED))
    job, _, _ = shared(Ray(starts=[DIES, DIES, "", DIES, DIES, ""]))
    assert sorted(job.kept) == TASKS


def test_a_worker_of_other_code_that_ends_while_it_starts_is_told_from_others(shared):
    ray = Ray(starts=[DIES], versions=lambda: {**versions(), "torch": "1.0"})
    with pytest.raises(OptionError, match=r"^--ray: the worker on the cluster has torch 1\.0 in place of .*: install"):
        shared(ray)


def test_a_worker_that_differs_ends_the_run(shared):
    with pytest.raises(OptionError, match=r"^it has another torch$"):
        shared(Ray(starts=["it has another torch"]))


def test_a_task_that_ends_three_workers_is_left_out(shared):
    ray = Ray(answer=lambda task: DIES if task == TASKS[1] else {**ANSWER, "content": task})
    job, record, states = shared(ray)
    assert sorted(job.kept) == [TASKS[0], TASKS[2]]
    assert job.left_out == [(TASKS[1], "it ended 3 workers: The actor died.")]
    assert (record["retried"], record["left_out"]) == (MOST_ENDED - 1, 1)
    assert (states[-1].retried, states[-1].left_out) == (MOST_ENDED - 1, 1)
    assert ray.started < 2 + MOST_ENDED, "no worker is started for which there is no task"


def test_a_cluster_that_refuses_is_one_line_and_says_what_a_token_needs(monkeypatch):
    ray = pytest.importorskip("ray")
    error = ConnectionError("Failed to connect\nin many lines")

    def refuse(*_, **__):
        raise error

    def refusal(address):
        with pytest.raises(OptionError) as refused:
            connected(address, Workers()).__enter__()
        return str(refused.value)

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        monkeypatch.setenv(name, "0")  # afterwards they are as before
    monkeypatch.setattr(ray, "init", refuse)
    hint = "if the cluster asks for a token, as ray start says, set RAY_AUTH_MODE=token here, with the same token"
    assert refusal("10.0.0.5:6379") == f"--ray=10.0.0.5:6379: Failed to connect; {hint}"
    assert refusal("auto") == "--ray=auto: Failed to connect"
    error = ray.exceptions.AuthenticationError("no token was found")
    assert refusal("10.0.0.5:6379").startswith("--ray=10.0.0.5:6379: no token was found")
