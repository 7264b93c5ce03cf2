"""``--kept-results``: results of an earlier run are used again only where nothing that they depend on has changed."""

import json
import sys
from dataclasses import replace
from importlib.metadata import distributions
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from faithcheck import kept_results as module
from faithcheck.check import Settings
from faithcheck.kept_results import digests, kept_results, loaded_files
from faithcheck.models.data import handwritten_digits
from faithcheck.reports.pages import terminal, wording
from faithcheck.reports.pages.report import to_html, to_markdown
from faithcheck.tests.helpers.documents import document, record
from faithcheck.tests.helpers.processes import run

SETTINGS = Settings()
HOLDS, BROKEN, REFUSED = (record(status) for status in ("holds", "broken claim", "unsupported"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with everything that is read from disk: a file of faithcheck, a user's module, weights and data."""
    for name in ("own.py", "their_explainer.py", "weights.safetensors", "kept.json"):
        (tmp_path / name).write_text(f"# {name}")
    (tmp_path / "kept.json").unlink()
    monkeypatch.setattr(module, "_own_files", lambda: tuple(tmp_path.glob("own*")))
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(module, "STARTED", sys.float_info.max)  # all files are older than this run
    (tmp_path / "data/mnist").mkdir(parents=True)
    for name, count in (("train", 20), ("dev", 10)):
        arrays = {"images": np.zeros((count, 28, 28), np.uint8), "labels": np.arange(count) % 10}
        np.savez(tmp_path / f"data/mnist/{name}.npz", **arrays)
    monkeypatch.setattr(handwritten_digits, "_folder", tmp_path / "data")
    return tmp_path


@pytest.fixture
def kept(folder):
    """The file that a run of three checks has left."""
    file = folder / "kept.json"
    assert keep(file, [HOLDS, BROKEN, REFUSED], "2026-01-01") == ""
    return file


def opened(file, settings=SETTINGS, loaded=()):
    """The kept results of a run that has loaded a user's module, and these files."""
    return kept_results(file, settings, [file.parent / "their_explainer.py", *loaded])


def keep(file, records, measured, of_workers=()):
    """Keep the records of such a run, as of this time."""
    return opened(file).keep(records, measured, [file.parent / "their_explainer.py"], dict(of_workers))


def test_without_a_change_all_that_is_not_red_is_used_again_and_says_when_it_was_measured(kept):
    again = opened(kept)
    assert again.why_not == ""
    assert again.records.keys() == {HOLDS["id"], REFUSED["id"]}
    assert again.records[HOLDS["id"]] == {**HOLDS, "measured": "2026-01-01", "seconds": None, "reused": False}


def test_a_later_run_adds_its_results_and_the_others_stay_those_of_the_first(kept):
    again, more = opened(kept), record("holds", id="invariance/another")
    assert keep(kept, [again.records[HOLDS["id"]], more], "2026-01-02") == ""
    third = opened(kept)
    assert {name: one["measured"] for name, one in third.records.items()} == {
        HOLDS["id"]: "2026-01-01",
        REFUSED["id"]: "2026-01-01",
        more["id"]: "2026-01-02",
    }


@pytest.mark.parametrize("name", ["own.py", "their_explainer.py", "weights.safetensors", "data/mnist/dev.npz"])
def test_after_a_change_of_a_file_everything_is_measured_anew(kept, name):
    file = kept.parent / name
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert opened(kept).why_not == f"none is used again: {file} changed"
    assert not opened(kept).records
    file.write_bytes(content)
    assert len(opened(kept).records) == 2, "the content counts, not the time"
    file.unlink()
    assert not opened(kept).records


def test_a_new_file_of_faithcheck_or_a_module_that_was_not_loaded_before_counts_as_a_change(kept):
    assert kept_results(kept, SETTINGS, []).records, "a module that is not loaded yet may be loaded later"
    assert opened(kept, loaded=[kept.parent / "conftest.py"]).why_not.endswith("conftest.py is new")
    (kept.parent / "own_too.json").touch()
    assert opened(kept).why_not.endswith("own_too.json is new")


def test_loaded_files_are_those_of_modules_and_of_the_plugins_of_pytest(tmp_path, monkeypatch):
    user, conftest, library = (tmp_path / name for name in ("user.py", "conftest.py", "library.so"))
    for name, file in (("user", user), ("library", library)):
        file.touch()
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__file__=str(file)))
    conftest.touch()
    files = loaded_files([SimpleNamespace(__file__=str(conftest)), object()])
    assert {user, conftest} <= {*files}
    assert library not in files
    assert __file__ in map(str, files)


def a_version(patch):
    patch.setattr(module, "distributions", lambda: [*distributions(), SimpleNamespace(name="torch", version="0.1")])


def a_variable(patch):
    patch.setenv("ATEN_CPU_CAPABILITY", "avx0")


def the_data(patch):
    patch.setattr(handwritten_digits, "_folder", None)


CHANGES = {
    "an installed version": a_version,
    "an environment variable": a_variable,
    "the data": the_data,
    "Python": lambda patch: patch.setattr(module.sys, "version", "2.7"),
    "the number of threads": lambda patch: patch.setattr(torch, "get_num_threads", lambda: 77),
    "the working folder": lambda patch: patch.chdir("/"),
    "the machine": lambda patch: patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX0"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_under_another_condition_everything_is_measured_anew(kept, monkeypatch, what):
    CHANGES[what](monkeypatch)
    assert opened(kept).why_not == f"none is used again: {what} changed"


@pytest.mark.parametrize(
    "changed",
    [{"seed": 1}, {"dtype": torch.float32}, {"timeout": 1.0}, {"reuse": True}, {"device": torch.device("meta")}],
)
def test_with_another_setting_everything_is_measured_anew(kept, changed):
    assert opened(kept, replace(SETTINGS, **changed)).why_not == "none is used again: a setting changed"


def test_a_worker_of_pytest_xdist_has_the_conditions_of_the_run(kept, monkeypatch):
    for name in ("COLUMNS", "LINES", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID"):
        monkeypatch.setenv(name, "7")
    assert opened(kept).records


def test_of_a_run_in_which_a_file_changed_nothing_is_kept(kept, monkeypatch):
    own = kept.parent / "own.py"
    monkeypatch.setattr(module, "STARTED", own.stat().st_ctime - 1)
    for file in (kept, kept.with_name("none.json")):
        assert "has changed since the run began" in keep(file, [HOLDS], "2026-01-02")
    assert not kept.with_name("none.json").exists()


def test_what_workers_loaded_is_watched_too_and_must_be_the_same_in_all_processes(kept):
    lazily = kept.parent / "lazily_imported.py"
    lazily.write_text("x = 1")
    assert keep(kept, [HOLDS], "2026-01-02", digests([lazily])) == ""
    assert opened(kept).records
    lazily.write_text("x = 2")
    assert opened(kept).why_not == f"none is used again: {lazily} changed"
    of_a_worker = {str(kept.parent / "own.py"): "another digest"}
    assert keep(kept, [HOLDS], "2026-01-03", of_a_worker) == "a file changed while the workers ran"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"conditions": [], "files": {}, "records": {}}', '{"x": 1}'])
def test_from_a_damaged_file_nothing_is_used(kept, content):
    kept.write_text(content)
    again = opened(kept)
    assert not again.records
    assert again.why_not.startswith("none is used again: ")


def test_the_headline_and_the_pages_say_how_many_results_are_of_which_run():
    earlier = [{**HOLDS, "measured": "2026-01-01T10:00"}, {**REFUSED, "measured": "2026-01-02T10:00"}]
    results = document([*earlier, record("broken claim")], tables=[], figures=[])
    results["settings"]["kept_key"] = "1a2b3c4d"
    said = "2 results are those of 2026-01-01T10:00 to 2026-01-02T10:00, kept, key 1a2b3c4d"
    assert wording.headline(results).endswith(f"; {said}")
    for page in (terminal.render(results, width=300), to_markdown(results), to_html(results)):
        assert said in page
    assert "kept" not in wording.headline(document([HOLDS], tables=[], figures=[]))


RUNS = """
import sys
import pytest
from pathlib import Path

ARGUMENTS = "-p faithcheck.plugin --pyargs faithcheck.tests.test_axioms -m invariance --kept-results=kept.json"

def run(name, *further):
    pytest.main([*ARGUMENTS.split(), f"--axioms-json={name}.json", "--pairs=product.x1x2x3", *further])

if sys.argv[1] == "1":
    run("first")
    run("mine", "--explainer=mine:explain")
else:
    run("second")
    Path("conftest.py").write_text("SCALE = 2")
    run("third")
"""


@pytest.mark.slow
def test_a_run_says_which_results_it_measured(tmp_path):
    (tmp_path / "conftest.py").write_text("SCALE = 1")
    (tmp_path / "mine.py").write_text("def explain(model, inputs, target):\n    return 0 * inputs")
    (tmp_path / "runs.py").write_text(RUNS)
    said = run(tmp_path, "runs.py", "1").stdout + run(tmp_path, "runs.py", "2").stdout
    names = ("first", "mine", "second", "third")
    first, mine, second, third = (json.loads((tmp_path / f"{name}.json").read_text()) for name in names)
    assert [sum("measured" in one for one in results["records"]) for results in (first, mine, third)] == [0, 0, 0]
    assert {one.pop("measured") for one in second["records"]} == {first["created"]}
    assert second["records"] == first["records"]
    assert all(first[key] == second[key] for key in ("counts", "skips", "rules"))
    assert len(first["records"]) == first["counts"]["planned"] > 10
    assert "kept results: none: only a run of built-in explainers and pairs has them" in said
    conftest = tmp_path / "conftest.py"
    assert f"no results are kept for a later run: {conftest} has changed since the run began" in said
