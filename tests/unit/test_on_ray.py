"""The executor on a Ray without processes: starts, ends, refusals, and what it says of itself."""

import pytest

from faithcheck.executors.ray.cluster import connected
from faithcheck.executors.ray.on_ray import MOST_ENDED, OnRay
from faithcheck.executors.ray.worker import versions
from faithcheck.options import OptionError
from faithcheck.request import Place
from faithcheck.tests.helpers.ray_in_process import DIES, RayInProcess, logging_restored


class Number:
    """A job, on both sides: its result is its number."""

    explainer, timeout = "a", None

    def __init__(self, number):
        self.number = number

    def remote(self):
        return self

    def prepare(self):
        pass

    def run(self):
        if self.number == "raises":
            raise RuntimeError("boom")
        return {"number": self.number}

    def result(self, content):
        return content["number"]

    def failed(self, why, printed=None):
        return f"failed: {why}"

    def left_out(self, why):
        return f"left out: {why}"


class Ready:
    def confirm(self):
        pass


@pytest.fixture
def shared(monkeypatch):
    """Runs jobs of these numbers on two workers of this Ray. Returns the results, the executor, and all states."""
    pytest.importorskip("ray")

    def shared(ray, numbers=(0, 1, 2)):
        ray.use(monkeypatch, workers=2)
        states = []
        executor = OnRay(Place(cluster="local", workers=2), Ready(), states.append)
        with logging_restored():
            results = [result for _, result in executor.run(Number(number) for number in numbers)]
        return results, executor.record, states

    return shared


def test_each_job_has_one_result(shared):
    results, record, states = shared(RayInProcess(), range(30))
    assert sorted(results) == [*range(30)]
    assert (record.workers, record.tasks, record.retried, record.left_out) == (2, 30, 0, 0)
    assert (states[-1].workers, states[-1].dashboard) == (2, "127.0.0.1:8265")


def test_without_jobs_no_worker_starts(shared):
    ray = RayInProcess()
    results, record, _ = shared(ray, ())
    assert (results, record.tasks, ray.started) == ([], 0, 0)


def test_a_job_that_raises_has_failed(shared):
    results, record, _ = shared(RayInProcess(), ("raises", 1))
    assert sorted(map(str, results)) == ["1", "failed: RuntimeError: boom"]
    assert record.tasks == 2


def test_a_job_whose_worker_ends_is_done_by_another(shared):
    ends = [True, True, False, False, False]
    results, record, _ = shared(RayInProcess(ends=lambda remote: ends.pop(0)))
    assert sorted(results) == [0, 1, 2]
    assert record.retried == 2


def test_a_job_that_ends_three_workers_is_left_out(shared):
    ray = RayInProcess(ends=lambda remote: remote.number == 1)
    results, record, states = shared(ray)
    assert sorted(map(str, results)) == ["0", "2", "left out: it ended 3 workers: The actor died."]
    assert (record.tasks, record.retried, record.left_out) == (2, MOST_ENDED - 1, 1)
    assert (states[-1].retried, states[-1].left_out) == (MOST_ENDED - 1, 1)
    assert ray.started <= 2 + MOST_ENDED


def test_workers_that_end_while_they_start_end_the_run_if_none_starts_in_between(shared):
    with pytest.raises(OptionError, match=r"^--ray: 3 workers in turn ended while they started: The actor died"):
        shared(RayInProcess(starts=(DIES,) * MOST_ENDED))
    results, _, _ = shared(RayInProcess(starts=(DIES, DIES, "", DIES, DIES, "")))
    assert sorted(results) == [0, 1, 2]


def test_a_worker_of_other_code_that_ends_while_it_starts_is_told_from_others(shared):
    ray = RayInProcess(starts=(DIES,), there=lambda: {**versions(), "torch": "1.0"})
    with pytest.raises(OptionError, match=r"^--ray: the worker on the cluster has torch 1\.0 in place of .*: install"):
        shared(ray)


def test_a_worker_that_differs_ends_the_run(shared):
    with pytest.raises(OptionError, match=r"^it has another torch$"):
        shared(RayInProcess(starts=("it has another torch",)))


def test_a_cluster_that_refuses_is_one_line_and_says_what_a_token_needs(monkeypatch):
    ray = pytest.importorskip("ray")
    error = ConnectionError("Failed to connect\nin many lines")

    def refuse(*_, **__):
        raise error

    def refusal(address):
        with pytest.raises(OptionError) as refused:
            connected(Place(cluster=address)).__enter__()
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
