"""``align --ray`` and ``check --ray`` on one cluster of this machine; what is refused before anything long begins."""

import json
import os
import sys
from contextlib import nullcontext

import pytest
import torch
from msgspec import structs

from faithcheck.alignment.measurement import measure
from faithcheck.alignment.remote_batch import AlignmentReadiness, RemoteModel
from faithcheck.alignment.run_key import fingerprint
from faithcheck.alignment.settings import AlignmentSettings, AlignRequest
from faithcheck.cli.main import main
from faithcheck.executors.ray import cluster, on_ray
from faithcheck.executors.ray.worker import Worker, versions
from faithcheck.explainers.loo.removal import make_removal
from faithcheck.models.pretrained.loading import load
from faithcheck.options import OptionError
from faithcheck.reports.documents.document import to_json
from faithcheck.request import Place
from faithcheck.tests.helpers.documents import without_run
from faithcheck.tests.helpers.killed_runs import Runs
from faithcheck.tests.helpers.ray_in_process import logging_restored

SETUP = AlignmentSettings(make_removal("attention_mask"))
ONCE = """
import os
from pathlib import Path
from faithcheck.explainers.gradients import GradientTimesInput


class Once:
    '''It ends the first process that runs it on more than eight tokens.'''

    name = "once"

    def attribute(self, model, case):
        if case.shape[1] > 8 and first():
            os.kill(os.getpid(), 9)
        return GradientTimesInput().attribute(model, case)


def first():
    '''Whether no process asked before; of two that ask at once, one is the first.'''
    try:
        Path(__file__).with_name("ended").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
"""


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def started():
    """A cluster of this machine, started once for all tests: that takes as long as they do."""
    pytest.importorskip("ray")
    with cluster.connected(Place(cluster=cluster.LOCAL, workers=2)) as there:
        yield there


@pytest.fixture
def of_two(started, monkeypatch):
    """With --ray, that cluster is used; it has room for two workers."""

    def there(place):
        return nullcontext(cluster.Cluster(place.workers, started.dashboard))

    monkeypatch.setattr(on_ray, "connected", there)


@pytest.mark.slow
def test_two_workers_one_of_which_dies_give_the_document_of_one_process(one_thread, of_two, tmp_path, monkeypatch):
    runs = Runs(tmp_path)
    (tmp_path / "ended").touch()
    (tmp_path / "endsonce.py").write_text(ONCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = dict(model=str(runs.model), data=str(runs.texts), max_tokens=150)
    options["explainer"] = ("gradient_x_input", "endsonce:Once")
    alone = measure(AlignRequest(**options, cache=tmp_path / "alone"))
    (tmp_path / "ended").unlink()
    states = []
    request = AlignRequest(**options, cache=tmp_path / "shared", place=Place(cluster="local", workers=2))
    shared = measure(request, watch=states.append)
    assert to_json(structs.replace(shared, run=None)) == to_json(alone)
    # The worker that is left may finish the texts before a new one takes any, so one or two of them did the work.
    assert shared.run.workers in (1, 2)
    assert (shared.run.retried, shared.run.left_out) == (1, 0)
    assert states[-1].retried == 1
    assert runs.stored("shared") == runs.stored("alone")
    # What is stored needs no worker, and is read by either.
    resumed = measure(AlignRequest(**options, cache=tmp_path / "alone", place=Place(cluster="local")))
    assert resumed.run.tasks == 0
    assert to_json(structs.replace(resumed, run=None)) == to_json(alone)


@pytest.mark.slow
def test_a_worker_gives_the_records_of_one_process(one_thread, of_two, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    check = ["check", "gradient_x_input", "attention_rollout", "--pairs", "attention.*_bert", "--axiom", "invariance"]
    for name, cluster_options in {
        "alone": (),
        "shared": ("--ray", "--workers", "1", "--explainer-timeout", "60"),
    }.items():
        assert main([*check, *cluster_options, "--json", str(tmp_path / f"{name}.json")]) == 0
    alone, shared = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("alone", "shared"))
    assert without_run(shared) == without_run(alone)
    assert (shared["run"]["workers"], shared["run"]["tasks"]) == (1, len(alone["records"]))


COMMANDS = (["align", "--limit", "1"], ["check", "loo", "--pairs", "product.*"])


@pytest.mark.parametrize("command", COMMANDS)
def test_without_ray_one_line_says_what_to_install(command, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*command, "--ray"]) == 2
    assert capsys.readouterr().err == 'faithcheck: --ray needs Ray: pip install "faithcheck[ray]"\n'


@pytest.mark.parametrize("command", COMMANDS)
def test_an_address_where_nothing_answers_is_one_line(command, capsys):
    pytest.importorskip("ray")
    assert main([*command, "--ray=127.0.0.1:1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("faithcheck: --ray=127.0.0.1:1: nothing answers there")
    assert main([*command, "--ray=nowhere"]) == 2
    assert "expected MACHINE:PORT, auto" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_of_workers_needs_a_cluster(command, capsys):
    assert main([*command, "--workers", "2"]) == 2
    assert "faithcheck: --workers: it is of --ray, which is not given" in capsys.readouterr().err
    assert main([*command, "--ray", "--isolate"]) == 2
    assert "faithcheck: --isolate: leave it out with --ray" in capsys.readouterr().err


def test_a_bad_row_of_the_data_is_one_line_before_a_cluster_starts(monkeypatch, capsys, tmp_path):
    pytest.importorskip("ray")
    (tmp_path / "texts.jsonl").write_text('{"text": "good"}\n{"label": 1}\n')
    monkeypatch.setattr(on_ray, "connected", None)
    assert main(["align", "--ray", "--data", str(tmp_path / "texts.jsonl")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "texts.jsonl, line 2: expected" in line


def test_a_cluster_without_room_is_refused():
    with pytest.raises(OptionError, match="the cluster has 2 processors and 0 GPUs, too few for 1 workers"):
        cluster.room({"CPU": 2.0}, Place(gpus_per_worker=0.5))
    assert cluster.room({"CPU": 16.0, "GPU": 4.0}, Place(gpus_per_worker=0.5)) == 8
    assert cluster.room({"CPU": 16.0, "GPU": 4.0}, Place(gpus_per_worker=2)) == 2
    assert cluster.room({"CPU": 16.0}, Place(cpus_per_worker=3)) == 5


@pytest.fixture
def worker(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path.parent)
    runs, threads = Runs(tmp_path), torch.get_num_threads()

    def ready(here=None, fingerprint="", states=None, model=runs.model):
        remote = RemoteModel(AlignRequest(model=str(model)), "cpu", SETUP, (0, 1))
        with logging_restored():
            readiness = AlignmentReadiness(remote, {"loo": "loo"}, fingerprint, states or {})
            return Worker(str(tmp_path), threads).ready(here or {}, readiness)

    return ready


@pytest.mark.parametrize(("name", "other"), [("torch", "1.0"), ("python", "3.8.1"), ("faithcheck", "0.1.0 (code 0)")])
def test_a_worker_of_another_version_says_so_in_one_line(worker, name, other):
    here, node = versions(), os.uname().nodename
    said = worker({**here, name: other})
    assert said == f"--ray: the worker on {node} has {name} {here[name]} in place of {other}: install the same there"


def test_a_worker_without_the_files_of_the_model_or_with_others_says_so_in_one_line(worker, tmp_path):
    node = os.uname().nodename
    missing = worker(model=tmp_path / "nowhere")
    assert missing.startswith(f"--ray: the worker on {node}: {tmp_path / 'nowhere'}")
    assert "\n" not in missing
    other = worker(fingerprint="of other weights", model="bert")
    assert other == f"--ray: the worker on {node}: it has another model at bert: give it the same files"
    code = worker(fingerprint=fingerprint(load(tmp_path / "bert")), states={"loo": "of other code"})
    assert code == f"--ray: the worker on {node}: it has other code or settings of loo: install the same there"
