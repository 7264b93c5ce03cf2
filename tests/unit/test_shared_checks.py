"""``faithcheck check --ray`` without a cluster: its tasks, its store, and what becomes of a check that ends workers."""

import json
from dataclasses import replace
from fnmatch import fnmatch

import pytest
import torch

from faithcheck.check_job import CheckJob
from faithcheck.cli.main import main
from faithcheck.models.pair import registered_pairs
from faithcheck.reports.documents import results
from faithcheck.reports.pages import report
from faithcheck.tests.helpers.documents import without_run
from faithcheck.tests.helpers.ray_in_process import RayInProcess, logging_restored

FIRST = "gradient_x_input"
PAIRS = [name for name in registered_pairs() if fnmatch(name, "attention.*_bert")]
CHECK = ["check", FIRST, "attention_rollout", "--pairs", "attention.*_bert", "--axiom", "invariance"]


def content(path):
    return without_run(json.loads(path.read_text()))


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the checks, in this process or on a cluster; ``ends`` says which check ends its worker."""
    pytest.importorskip("ray")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*options, ends=lambda check: False, name="shared.json"):
        RayInProcess(ends).use(monkeypatch)
        threads = str(torch.get_num_threads())
        cluster = ["--ray", "--cpus-per-worker", threads] if "--ray" in options else []
        with logging_restored():
            code = main([*CHECK, *cluster, "--json", str(tmp_path / name)])
        return code, tmp_path / name

    return run


def test_shared_checks_give_the_document_of_one_process(run, tmp_path):
    code, alone = run(name="alone.json")
    assert code == 0
    code, shared = run("--ray")
    assert code == 0
    assert content(shared) == content(alone)
    assert json.loads(shared.read_text())["run"]["tasks"] == len(content(alone)["records"])


def test_a_check_that_ends_three_workers_is_red_and_its_neighbours_are_measured(run, capsys):
    _, alone = run(name="alone.json")
    code, shared = run("--ray", ends=lambda check: (check.spec, check.pair) == (FIRST, PAIRS[1]))
    assert code == 1
    line = "2 started again as their worker ended"
    assert line in " ".join(capsys.readouterr().out.split())
    assert line in report.to_html(results.load(shared))
    expected = {record["id"]: record for record in content(alone)["records"]}
    others = [record for record in content(shared)["records"] if record == expected[record["id"]]]
    (red,) = (record for record in content(shared)["records"] if record not in others)
    assert len(others) == len(expected) - 1
    assert (red["status"], red["detail"]["error"]) == ("error", "it ended 3 workers: The actor died.")


def test_ctrl_c_keeps_the_records_that_are_there(run):
    def pressed(check):
        if check.pair != PAIRS[0]:
            raise KeyboardInterrupt
        return False

    code, shared = run("--ray", ends=pressed)
    assert code == 130
    statuses = [record["status"] for record in content(shared)["records"]]
    assert statuses.count("not run") == len(statuses) / 2


def test_a_worker_without_the_module_of_a_pair_says_so_in_one_line(monkeypatch, run, capsys):
    remote = CheckJob.remote
    monkeypatch.setattr(CheckJob, "remote", lambda job: replace(remote(job), modules=("not_there",)))
    code, _ = run("--ray")
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("faithcheck: --ray: the worker on ")
    assert "not_there" in line
