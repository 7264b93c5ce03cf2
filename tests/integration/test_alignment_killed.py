"""An alignment that is killed, again and again at every moment of writing, resumes to the same bytes."""

import signal
from itertools import cycle

import pytest

from faithcheck.tests.helpers.killed_runs import MOMENTS, Runs, run_to_third_batch


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield Runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def undisturbed(runs):
    return runs.finish("undisturbed", "undisturbed")


@pytest.mark.slow
def test_a_run_killed_again_and_again_writes_the_same_bytes(runs, undisturbed):
    kills = []
    for moment in cycle(MOMENTS):
        process = runs.start("killed", "killed", run_to_third_batch, moment)
        process.join()
        if process.exitcode != -signal.SIGKILL:
            break
        kills.append(moment)
    assert set(kills) == set(MOMENTS), "not killed at every moment"
    assert process.exitcode == 0
    assert runs.document("killed").read_bytes() == undisturbed
    assert runs.stored("killed") == runs.stored("undisturbed")


def test_two_runs_at_once_on_one_cache_write_the_same_bytes(runs, undisturbed):
    processes = [runs.start("shared", name) for name in ("one", "other")]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert [runs.document(name).read_bytes() for name in ("one", "other")] == [undisturbed, undisturbed]
    assert runs.stored("shared") == runs.stored("undisturbed"), "a batch is stored once"
