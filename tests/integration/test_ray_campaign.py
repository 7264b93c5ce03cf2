"""``make ray``: alignments and checks on clusters that are killed at random, how well workers share, what a task costs.

Each part runs alone: make ray ARGS="-k kills", "-k four", "-k time_of_one", "-k beyond" or "-k plan".
"""

import json
import os
import random
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from faithcheck.alignment import alignment_plan
from faithcheck.alignment.measurement import measure
from faithcheck.alignment.run_key import plain_json
from faithcheck.alignment.settings import AlignRequest
from faithcheck.executors.ray.on_ray import MOST_ENDED
from faithcheck.models.data.texts import OWN
from faithcheck.request import Place
from faithcheck.tests.helpers import documents, small_models
from faithcheck.tests.helpers.killed_runs import Runs, run

pytestmark = pytest.mark.ray
KILLS = 7  # of each kind of victim
TEXTS = 200
WORKER = re.compile(rb"ray::(Alignment|Check)Worker")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def many_texts(runs, number=TEXTS):
    """Texts of 3 to 28 words, from a fixed seed."""
    draw, words = random.Random(0), runs.texts.read_text().split()
    lines = [" ".join(draw.choice(words) for _ in range(draw.randint(3, 28))) for _ in range(number)]
    runs.texts.write_text("".join(f"{line}\t{i % 2}\n" for i, line in enumerate(lines)))


def joined_texts(folder, number, texts=80):
    """A file of texts, each of so many of the project's own sentences."""
    file = folder / "joined.tsv"
    sentences = 2 * [line.rpartition("\t")[0] for line in OWN.read_text().splitlines()]
    file.write_text("".join(f"{' '.join(sentences[i : i + number])}\t0\n" for i in range(texts)))
    return str(file)


def children():
    """The children of each process, with their command lines."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                found.setdefault(parent, []).append((int(folder.name), (folder / "cmdline").read_bytes()))
            except OSError:
                continue
    return found


def workers_of(driver):
    """The processes of the workers of a driver, children of its raylet, and whether each is at work."""
    of = children()
    lines = {pid: line for child, _ in of.get(driver, []) for pid, line in of.get(child, []) if WORKER.match(line)}
    return {pid: line.partition(b"\0")[0].endswith(b".answer") for pid, line in lines.items()}


class Align:
    """An alignment of many short texts, whose stores say what was kept."""

    def __init__(self, runs):
        self.runs = runs
        many_texts(runs)

    def start(self, name, *options):
        return self.runs.start(name, name, options=options)

    def content(self, name):
        document = json.loads(self.runs.document(name).read_bytes())
        document.pop("run", None)
        return plain_json(document), self.runs.stored(name)

    def is_right_so_far(self, name, undisturbed):
        stored = self.runs.stored(name)
        return all(row in undisturbed[1][file] for file, rows in stored.items() for row in rows)


class Check:
    """The checks of two explainers, of which nothing is stored at the end."""

    def __init__(self, runs):
        self.runs = runs

    def start(self, name, *options):
        where = ["--axiom", "invariance", "--axiom", "completeness", "--json", str(self.runs.document(name))]
        check = ["check", "gradient_x_input", "attention_rollout", *where, *options]
        return self.runs.start_command(run_in_cache, check, str(self.runs.folder / name))

    def content(self, name):
        stored = [*(self.runs.folder / name).rglob("*.sqlite")]
        return plain_json(documents.without_run(json.loads(self.runs.document(name).read_bytes()))), stored

    def is_right_so_far(self, name, undisturbed):
        return True


def run_in_cache(arguments, folder):
    """What a process does: the command, with this folder for what it keeps."""
    os.environ["XDG_CACHE_HOME"] = folder
    run(arguments)


@pytest.fixture(params=[Align, Check], ids=["align", "check"])
def job(request, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return request.param(Runs(tmp_path))


def finished(job, name, *options):
    """Run to the end, and what came of it."""
    process = job.start(name, *options)
    process.join()
    assert process.exitcode == 0
    return job.content(name)


def test_two_workers_and_four_give_the_document_of_one_process(job):
    alone = finished(job, "alone")
    for workers in ("2", "4"):
        assert finished(job, workers, "--ray", "--workers", workers) == alone


@pytest.mark.parametrize("victim", ["worker", "driver", "both"])
def test_after_random_kills_the_document_is_that_of_one_process(job, victim):
    seed = time.time_ns()
    print(f"\nseed of the kills: {seed}", flush=True)
    draw = random.Random(seed)
    undisturbed = finished(job, "undisturbed")
    kills = runs = 0
    while kills < KILLS or runs == 0:
        name, ended = f"run {runs}", False
        while not ended:
            process = job.start(name, "--ray", "--workers", "2")
            kills += killed(process, victim, min(KILLS - kills, MOST_ENDED - 1), draw)
            process.join()
            ended = process.exitcode == 0
            assert ended or process.exitcode == -signal.SIGKILL
            assert job.is_right_so_far(name, undisturbed)
        assert job.content(name) == undisturbed
        runs += 1
    print(f"{kills} kills of {victim}; {runs} documents, each that of one process", flush=True)


def killed(process, victim, most, draw):
    """Kill workers of a run, at most so many, or its driver, at random moments. Returns how often.

    One more could hit one task each time, which would then be left out.
    """
    kills = 0
    while kills < most:
        while process.is_alive() and not any(workers_of(process.pid).values()):
            time.sleep(0.02)
        process.join(draw.uniform(0, 3))
        workers = workers_of(process.pid)
        if not process.is_alive() or not workers:
            return kills
        for pid in {"worker": [], "driver": [process.pid], "both": [process.pid]}[victim]:
            os.kill(pid, signal.SIGKILL)
        if victim != "driver":
            os.kill(draw.choice([*workers]), signal.SIGKILL)
        kills += 1
        if victim != "worker":
            return kills
    return kills


def test_two_workers_take_little_more_than_half_of_the_time_of_one(tmp_path):
    """Each worker has one thread, the one that is alone too. Run it on a machine that does nothing else."""
    texts, took = joined_texts(tmp_path, 2), {}
    for workers in (1, 2):
        options = dict(data=texts, max_tokens=1024, place=Place(cluster="local", workers=workers))
        run = measure(AlignRequest(**options, cache=tmp_path / str(workers)))["run"]
        took[workers] = run["seconds"]
        print(workers, run, flush=True)
    print(f"one worker takes {took[1] / took[2]:.2f} times as long as two")
    assert took[1] >= 60
    assert took[1] / took[2] >= 1.7


def test_a_task_costs_less_than_20_ms_beyond_its_work(tmp_path):
    runs = Runs(tmp_path)
    many_texts(runs)
    options = dict(model=str(runs.model), data=str(runs.texts), max_tokens=150, place=Place(cluster="local", workers=1))
    run = measure(AlignRequest(**options, cache=tmp_path / "cache", explainer=("gradient_x_input",)))["run"]
    overhead = (run["ended"] - run["started"] - run["busy"]) / run["tasks"]
    print(f"{run}: {1000 * overhead:.1f} ms a task")
    assert overhead < 0.02


JOBS = {
    "short texts on a BERT of 12 layers by every explainer": lambda folder: dict(limit=48, max_tokens=1024),
    "long texts by IG": lambda folder: dict(data=joined_texts(folder, 8, 8), explainer=("ig_zero",)),
    "images": lambda folder: dict(model=str(small_models.save("vit", folder / "vit")), data=random_images(folder)),
}


def random_images(folder, count=5000):
    """A file of 5,000 random images of 8 × 8 pixels: the bundled digits are too few for a job of a minute."""
    draw, path = np.random.default_rng(0), folder / "images.npz"
    images = draw.integers(0, 256, (count, 8, 8), dtype=np.uint8)
    np.savez(path, images=images, labels=draw.integers(0, 10, count))
    return str(path)


@pytest.mark.parametrize("job", JOBS.values(), ids=[name.replace(" ", "_") for name in JOBS])
def test_a_plan_is_right_within_a_quarter(job, tmp_path, monkeypatch):
    """The probe is a tenth of a job."""
    monkeypatch.setattr(alignment_plan, "PROBE", 8.0)
    request = AlignRequest(**job(tmp_path), cache=tmp_path)
    plan = alignment_plan.plan(request)
    run = measure(request)["run"]
    ratio = run["estimated"] / run["seconds"]
    print(f"probe {plan['probe']:.1f} s, {run}: estimated / taken {ratio:.2f}", flush=True)
    assert 0.75 <= ratio <= 1.25
