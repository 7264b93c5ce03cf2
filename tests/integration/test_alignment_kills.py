"""Two hundred alignments that are killed at random moments: each resumes to the bytes of an undisturbed run."""

import random
import signal
import time
from collections import Counter

import pytest

from faithcheck.tests.helpers.killed_runs import Runs

KILLS = 200


@pytest.mark.kills
def test_two_hundred_killed_runs_resume_to_the_same_bytes(tmp_path, monkeypatch):
    """``make kills``. The seed is printed; the moment is uniform over the time that a run takes here."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    runs, seed = Runs(tmp_path), time.time_ns()
    print(f"\nseed of the moments: {seed}", flush=True)
    moments = random.Random(seed)
    undisturbed = runs.finish("undisturbed", "undisturbed")  # the first run starts the process that forks
    begun = time.monotonic()
    assert runs.finish("again", "again") == undisturbed
    duration = time.monotonic() - begun
    stored, ended, kills = runs.stored("undisturbed"), 0, Counter()
    while kills.total() < KILLS:
        name = f"run {kills.total() + ended}"
        process = runs.start(name, name)
        process.join(duration * moments.random())
        process.kill()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            ended += 1  # it was faster than the kill
            continue
        assert not runs.document(name).exists() or runs.document(name).read_bytes() == undisturbed
        left = runs.stored(name)  # every batch that is there is whole
        assert all(row in stored[file] for file, rows in left.items() for row in rows)
        kills[sum(map(len, left.values()))] += 1
        print(end=".", flush=True)
        assert runs.finish(name, name) == undisturbed
        assert runs.stored(name) == stored
    batches = sum(map(len, stored.values()))
    print(f"\n{kills.total()} kills, {kills.total()} resumes to the same bytes; {ended} runs ended before their kill")
    print(f"batches of {batches} on the disk at the kill: {dict(sorted(kills.items()))}", flush=True)
