"""The pytest plugin, mostly as a user runs it: in a project whose packages have the names of those of faithcheck."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from faithcheck import plugin
from faithcheck.explainers import builtin_explainers
from faithcheck.pytest_plugin.collection import _no_check
from faithcheck.pytest_plugin.markers import marker_names
from faithcheck.tests.helpers.processes import run

THEIRS = """
import models
import torch
from faithcheck.explainers import Unsupported

THING = 7

class Good:
    name = "good"
    def attribute(self, model, case):
        return models.scale * case.inputs

class Raises:
    name = "raises"
    def attribute(self, model, case):
        raise RuntimeError("their own bug")

class Zeros:
    name = "zeros"
    def attribute(self, model, case):
        return 0 * case.inputs

class Refusing(Zeros):
    name = "refusing"
    claims = {"completeness"}
    def attribute(self, model, case):
        raise Unsupported("no rule for anything")

class Wrong:
    name = "wrong"
    claims = {"invariance"}
    def attribute(self, model, case):
        return case.inputs[:, :1]
"""

PAIR = """
import torch
from faithcheck.models import equivalent_pair
from faithcheck.models.pair import random_points

@equivalent_pair("theirs.no_pair", case=random_points(3, 1), why="they look alike")
def no_pair(seed, dtype, device):
    return torch.nn.Tanh().eval(), torch.nn.Sigmoid().eval()
"""

SUITE = """
import pytest

@pytest.mark.axiom("invariance")
def test_invariance(check, settings, report):
    report(check.run(settings))

@pytest.mark.invariance
def test_table(table):
    table({"title": "T", "note": "", "columns": ["a"], "rows": [[float("nan")]]})

@pytest.mark.invariance
def test_figure(figure):
    line = {"label": "a", "x": (1, 2), "y": [float("nan"), 0.5]}
    figure({"title": "F", "note": "", "panels": [{"title": "p", "x": "k", "y": "r", "lines": [line]}]})
    with pytest.raises(ValueError, match="has no panel"):
        figure({"title": "empty", "note": "", "panels": []})

@pytest.fixture
def broken():
    raise RuntimeError("setup broke")

@pytest.mark.invariance
def test_setup(broken):
    pass

@pytest.mark.skip(reason="not today")
@pytest.mark.invariance
def test_skipped():
    pass

def test_other():
    pass
"""

STALE = """
[[expectation]]
axiom = "invariance"
explainer = "attnlrp"
subject = "product.x1x2x9"
verdict = "HOLDS"
reason = "a typo"
"""

FOREIGN = """
import sys
import models
import pytest

@pytest.mark.invariance
def test_theirs():
    assert models.scale == 2.0
    assert not [name for name in sys.modules if name.startswith("models.")]
"""


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stranger")
    files = {
        "their.py": THEIRS,
        "their_pairs.py": PAIR,
        "broken_module.py": "import os\n\nvalue = 1 / 0\n",
        "models/__init__.py": "scale = 2.0\n",
        "tests/__init__.py": "",
        "tests/test_theirs.py": FOREIGN,
        "test_suite.py": SUITE,
        "stale.toml": STALE,
        "test_syntax.py": "def (:\n",
        "test_stop.py": "def test_a(): pass\ndef test_b(): raise KeyboardInterrupt\ndef test_c(): pass\n",
        "pytest.ini": "[pytest]\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


PLUGINS = ["-p", "faithcheck.plugin", "-p", "no:cacheprovider"]
ARGUMENTS = ["-m", "invariance", "--continue-on-collection-errors"]
ARGUMENTS += [f"--explainer={name}" for name in ("their:Good", "their:Raises", "their:Wrong", "attnlrp")]
ARGUMENTS += ["--like", "their:Good=cplrp"]
ARGUMENTS += ["--pairs", "product.x1x2x3", "test_suite.py", "test_syntax.py", "tests"]


@pytest.fixture(scope="module")
def finished(stranger, driven):
    return driven["a whole run"], json.loads((stranger / "out.json").read_text())


def test_an_explainer_that_raises_is_red_and_the_others_run(finished):
    output, document = finished
    statuses = {record["explainer"]: record["status"] for record in document["records"]}
    assert statuses == {
        "good": "violation vanished",
        "raises": "error",
        "wrong": "error",
        "attnlrp": "predicted violation",
    }
    assert document["settings"]["origins"]["good"].endswith("held to the claims and expectations of cplrp")
    assert "exit code 1" in output
    assert "their own bug" in next(r for r in document["records"] if r["explainer"] == "raises")["traceback"]
    assert "expected shape (batch, features)" in output
    assert "results written to" in output


def test_the_document_counts_every_test(finished):
    _, document = finished
    counts = document["counts"]
    # Green: attnlrp, test_table, test_figure, test_theirs. Red: good, raises, wrong, test_setup, test_syntax.py.
    assert counts == {"planned": 10, "ran": 9, "passed": 4, "failed": 5, "skipped": 1, "deselected": 1}
    assert [failure["id"] for failure in document["failures"]] == ["test_suite.py::test_setup", "test_syntax.py"]
    assert "setup broke" in document["failures"][0]["message"]
    assert "SyntaxError" in document["failures"][1]["message"]
    assert document["skips"] == [{"reason": "not today", "count": 1, "ids": ["test_suite.py::test_skipped"]}]
    assert document["tables"] == [{"title": "T", "note": "", "columns": ["a"], "rows": [["nan"]]}]
    line = {"label": "a", "x": [1, 2], "y": ["nan", 0.5]}
    panel = {"title": "p", "x": "k", "y": "r", "lines": [line]}
    assert document["figures"] == [{"title": "F", "note": "", "panels": [panel]}]
    assert document["settings"]["arguments"] == [*PLUGINS, *ARGUMENTS, "--axioms-json=out.json"]
    assert document["environment"]["torch"]


@pytest.mark.slow
def test_xdist_workers_leave_the_same_report(stranger, finished):
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    run(stranger, "-m", "pytest", *PLUGINS, *ARGUMENTS, "-n", "2", "--axioms-json=workers.json")
    document = json.loads((stranger / "workers.json").read_text())
    assert all(document[key] == finished[1][key] for key in ("counts", "skips", "tables", "figures"))
    assert [failure["id"] for failure in document["failures"]] == [failure["id"] for failure in finished[1]["failures"]]
    assert [record["status"] for record in document["records"]] == [
        record["status"] for record in finished[1]["records"]
    ]


@pytest.mark.parametrize(
    ("processes", "worker", "environment", "threads"),
    [
        (2, {}, None, [4]),
        (None, {"workercount": 3}, None, [2]),
        (None, {"workercount": 9}, None, [1]),
        (None, {}, None, []),
        (2, {}, "8", []),
    ],
)
def test_the_workers_of_xdist_share_the_threads(monkeypatch, processes, worker, environment, threads):
    taken = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if environment:
        monkeypatch.setenv("OMP_NUM_THREADS", environment)
    plugin.share_cores(SimpleNamespace(getoption=lambda *name: processes, workerinput=worker))
    assert taken == threads


BAD = [
    (["--explainer=atnlrp"], "unknown explainer 'atnlrp': did you mean attnlrp"),
    (["--explainer=broken_module:value"], "value = 1 / 0"),
    (["--explainer=their:THING"], "their:THING is no explainer: expected `attribute(model, case)`"),
    (["--claim=completeness"], "--claim=completeness: this run names no explainer: add --explainer=SPEC"),
    (["--like=attnlrp"], "--like=attnlrp: this run has no explainer of your own"),
    (["--expectations=nowhere.toml"], "nowhere.toml cannot be read"),
    (["--expectations=stale.toml"], "unknown subject 'product.x1x2x9': did you mean product.x1x2x3"),
    (["--max-skips=-1"], "--max-skips=-1: a number of skips is 0 or more"),
    (["--pairs=product.x1x2x9"], "unknown pair 'product.x1x2x9': did you mean product.x1x2x3"),
    (["--pairs=their"], "the module registers no pair"),
    (["-m", "invariense"], "unknown marker 'invariense': did you mean invariance"),
    (["--axioms-json=no/such/out.json"], "does not exist"),
    (["--data-dir=nowhere"], "nowhere: give a folder that holds mnist/train.npz"),
    (["--device=cuda:99"], "--device=cuda:99 cannot be used"),
    (["--checkpoint=nowhere"], "ERROR: --checkpoint: nowhere: neither a local folder nor"),
]
COMPLETENESS = ["--pyargs", "faithcheck.tests.test_axioms", "-m", "completeness"]
ON_PRODUCT = [*COMPLETENESS, "--pairs", "product.x1x2x3"]
SKIPS = ["-m", "invariance", "-k", "deeplift_rescale", "--pairs=product.x1x2x3", "test_suite.py::test_invariance"]
RUNS = {
    "a whole run": [*ARGUMENTS, "--axioms-json=out.json"],
    **{" ".join(bad): [*bad, "test_stop.py"] for bad, _ in BAD},
    "stopped": ["test_stop.py", "--axioms-json=stopped.json"],
    "a claim that no check measured": [*ON_PRODUCT, "--explainer=their:Refusing"],
    "no claim": [*ON_PRODUCT, "--explainer=their:Zeros"],
    "a claim by option": [*ON_PRODUCT, "--explainer=their:Zeros", "--claim=completeness"],
    "a skip too many": [*SKIPS, "--max-skips=0"],
    "as many skips as allowed": [*SKIPS, "--max-skips=1"],
    "no pair": [*COMPLETENESS, "--explainer=integrated_gradients", "--pairs=their_pairs"],
}
# One process for all: importing torch takes longer than most of the runs.
DRIVER = """
import json, sys, pytest
for arguments in json.loads(sys.argv[1]):
    print("\\n=== next")
    code = pytest.main(arguments)
    print(f"\\nexit code {int(code)}", flush=True)
    print("=== error", file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def driven(stranger):
    """What each of the `RUNS` printed."""
    done = run(stranger, "-c", DRIVER, json.dumps([[*PLUGINS, *arguments] for arguments in RUNS.values()]))
    outputs, errors = done.stdout.split("=== next")[1:], done.stderr.split("=== error")
    return {name: output + error for name, output, error in zip(RUNS, outputs, errors, strict=False)}


@pytest.mark.parametrize(("bad", "message"), BAD, ids=[" ".join(bad) for bad, _ in BAD])
def test_bad_input_is_refused_before_the_run(bad, message, driven):
    output = driven[" ".join(bad)]
    assert message in output
    assert "exit code 4" in output
    assert "collected" not in output
    assert "Traceback" not in output


def test_a_module_that_does_not_import_shows_its_own_traceback_once(driven):
    output = driven["--explainer=broken_module:value"]
    assert output.count("ZeroDivisionError") == 1
    assert output.count("value = 1 / 0") == 1
    assert output.count("File ") == 1


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("a claim that no check measured", ["2 skipped", "claimed and not measured: completeness"]),
        ("no claim", ["no verdict: nothing is claimed, 2 recorded without a claim, 0 skipped"]),
        ("a claim by option", ["broken claim: completeness: zeros on product.x1x2x3.f"]),
        ("a skip too many", ["1 skipped, where --max-skips allows 0"]),
        ("no pair", ["equivalence: theirs.no_pair: not a pair: f and g differ in output 0 at the input"]),
    ],
)
def test_what_is_no_success_fails_the_run(name, messages, driven):
    output = " ".join(driven[name].split())
    assert all(message in output for message in messages)
    assert "exit code 1" in output


def test_as_many_skips_as_allowed_are_a_success(driven):
    assert "exit code 0" in driven["as many skips as allowed"]
    assert "--max-skips allows" not in driven["as many skips as allowed"]


def test_an_interrupted_run_leaves_its_report(stranger, driven):
    assert "exit code 2" in driven["stopped"]
    counts = json.loads((stranger / "stopped.json").read_text())["counts"]
    assert counts == {"planned": 3, "ran": 1, "passed": 1, "failed": 0, "skipped": 0, "deselected": 0}


def test_the_tests_of_faithcheck_have_their_real_names_and_rewritten_assertions():
    assert __name__ == "faithcheck.tests.integration.test_plugin"
    assert not {"tests", "models", "axioms", "reports", "explainers"} & sys.modules.keys()
    with pytest.raises(AssertionError, match="At index 0 diff"):
        assert [1] == [2]


@pytest.mark.parametrize(
    ("expression", "argument", "runs"),
    [
        ("", "tests", False),
        ("invariance", "tests", False),
        ("slow", "tests", True),
        ("bench", "tests", False),
        ("not slow", "tests", True),
        ("", __file__, True),
        ("", f"{__file__}::test_x", True),
    ],
)
def test_slow_tests_run_only_if_they_are_named(expression, argument, runs):
    slow = SimpleNamespace(path=Path(__file__), iter_markers=lambda: iter([pytest.mark.slow.mark]))
    fast = SimpleNamespace(path=Path(__file__), iter_markers=lambda: iter([]))
    theirs = SimpleNamespace(path=Path("/elsewhere/test_x.py"), iter_markers=lambda: iter([pytest.mark.slow.mark]))
    deselected: list[object] = []
    config = SimpleNamespace(
        option=SimpleNamespace(markexpr=expression, pyargs=False),
        args=[argument],
        invocation_params=SimpleNamespace(dir=Path.cwd()),
        hook=SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items)),
    )
    items = [slow, fast, theirs]
    plugin.pytest_collection_modifyitems(config, items)  # type: ignore[arg-type]
    assert items == ([slow, fast, theirs] if runs else [fast, theirs])
    assert deselected == ([] if runs else [slow])


def test_the_skip_of_an_axiom_that_does_not_apply_gives_the_reason():
    suite_run = SimpleNamespace(explainers=[builtin_explainers()["loo"]])
    assert _no_check("conservation", suite_run).startswith("conservation does not apply to loo: ")
    suite_run.explainers.append(builtin_explainers()["attnlrp"])
    assert _no_check("conservation", suite_run) == "conservation: no check on the pairs of this run"


def test_marker_names_are_found_without_arguments():
    assert marker_names("invariance and not (slow or bench)") == ["invariance", "slow", "bench"]
    assert marker_names("device(serial='abc')") == ["device"]
