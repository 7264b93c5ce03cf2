"""Explainers in processes of their own: what ends such a process costs one check, and the records are otherwise equal.

All tests share one server, which takes as long to start as faithcheck takes to import.
"""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from faithcheck import check_explainer
from faithcheck.alignment.measurement import measure
from faithcheck.alignment.settings import AlignRequest
from faithcheck.axioms.measure.error_text import LIMIT
from faithcheck.check import Check
from faithcheck.check_job import CheckJob
from faithcheck.cli.main import main
from faithcheck.executors import own_processes
from faithcheck.executors.own_processes import LocalChecks
from faithcheck.executors.process import JobFailed
from faithcheck.executors.supervisor import Limits
from faithcheck.explainers import builtin_explainers
from faithcheck.models.pair import Pair, registered_pairs
from faithcheck.options import OptionError
from faithcheck.options.explainers import isolate
from faithcheck.reports.documents import results
from faithcheck.request import Place, Settings
from faithcheck.tests.helpers import processes, small_models
from faithcheck.tests.helpers.process_saboteurs import ENDING

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes of their own need a POSIX system")

PAIR = "product.x1x2x3"
ENDED = {
    "exits_with_0": "it ended its process with exit code 0",
    "aborts": "ended by the signal SIGABRT",
    "segmentation_fault": "ended by the signal SIGSEGV",
    "kills_its_session": "ended by the signal SIGKILL",
    "kills_its_parent": "its process ended, nothing says why",
    "leaves_an_orphan": "it ended its process with exit code 3",
    "hangs_in_c": "still running after 0.5 s: its process was killed",
    "writes_to_every_file": "it sent a message that is no JSON, or above the limit of 67,108,864 bytes",
}


def spec(name):
    return f"faithcheck.tests.helpers.process_saboteurs:ENDING.{name}"


@pytest.fixture
def isolated(tmp_path, monkeypatch):
    """Isolates the named explainers, with files in a temporary folder; their processes end with the test."""
    monkeypatch.setenv("SABOTEUR_FOLDER", str(tmp_path))
    monkeypatch.setenv("SABOTEUR_PARENT", str(os.getpid()))
    with ExitStack() as opened:

        def executor_of(*specs, **limits):
            executor = opened.enter_context(LocalChecks(Limits(**limits)))
            for one in specs:
                executor.isolate(one)
            return executor

        yield executor_of


def run(executor, name, pair=PAIR, timeout=None):
    check = Check("invariance", getattr(ENDING, name), registered_pairs()[pair])
    ((_, record),) = executor.run([CheckJob(check, Settings(timeout=timeout), spec(name))])
    return record


@pytest.mark.parametrize("name", ENDED)
def test_what_ends_a_process_is_one_red_record_that_says_how(isolated, monkeypatch, name):
    timeout = None
    if name == "hangs_in_c":
        timeout = 0.2
        monkeypatch.setattr(own_processes, "BEYOND_LIMIT", 0.1)
    record = run(isolated(spec(name)), name, timeout=timeout)
    assert record.status == "error"
    assert ENDED[name] in record.detail["error"]
    assert len(record.traceback or "") <= LIMIT
    if name == "segmentation_fault":
        assert "process_saboteurs.py" in record.traceback, "where it happened"


def test_the_processes_that_an_explainer_has_started_end_with_its_own(isolated, tmp_path):
    run(isolated(spec("leaves_an_orphan")), "leaves_an_orphan")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "orphan").read_text()), 0)


def test_an_end_costs_one_check_and_no_other_explainer_notices(isolated):
    executor = isolated(spec("exits_on_three_features"), spec("prints_much"))
    statuses = [
        run(executor, name, pair).status
        for pair in ("product.x1x2x3", "product.n4_depths_2222", "product.n4_depths_2222")
        for name in ("exits_on_three_features", "prints_much")
    ]
    assert statuses == ["error", "holds", "holds", "holds", "holds", "holds"]


@pytest.mark.slow
def test_after_three_ends_the_other_checks_are_not_run_and_red(isolated):
    executor = isolated(spec("exits_with_0"))
    records = [run(executor, "exits_with_0") for _ in range(5)]
    assert [record.status for record in records] == ["error"] * 3 + ["not run"] * 2
    assert records[-1].detail["reason"] == "exits_with_0 has ended 3 processes before this check"
    assert not any(record.passed for record in records)


@pytest.mark.parametrize("name", ["attnlrp", "loo"])
def test_the_records_are_those_of_a_plain_run(name):
    arguments = name, ["invariance", "trace"], [PAIR, "linear_attention.assoc"], Settings(seed=3)
    assert check_explainer(*arguments, isolate=True) == check_explainer(*arguments)


@pytest.mark.slow
def test_an_explainer_that_is_held_to_a_built_in_one_is_so_in_its_process():
    name, pairs = "faithcheck.tests.helpers.process_saboteurs:ENDING.prints_much", [PAIR]
    plain = check_explainer(ENDING.prints_much, ["invariance"], pairs, like="attnlrp")
    assert check_explainer(name, ["invariance"], pairs, like="attnlrp", isolate=True) == plain
    assert [record.expected for record in plain] == ["VIOLATES"]


@pytest.fixture
def ctrl_c():
    """Ctrl-C interrupts, also in a run that a shell started in the background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_the_process_and_the_next_check_starts_another(isolated):
    executor = isolated(spec("interrupts_the_parent"))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(executor, "interrupts_the_parent")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_pair_that_no_import_registers_is_refused_by_name(isolated):
    known = registered_pairs()[PAIR]
    unknown = Pair("nowhere.registered", known.build, known.case, "for the test")
    check = Check("invariance", builtin_explainers()["loo"], unknown)
    ((_, record),) = isolated("loo").run([CheckJob(check, Settings(), "loo")])
    assert record.status == "error"
    assert "nowhere.registered is not registered by importing faithcheck.models." in record.detail["error"]


@pytest.mark.slow
def test_check_explainer_isolates_what_another_process_can_load():
    (record,) = check_explainer(spec("aborts"), ["invariance"], [PAIR], isolate=True)
    assert "SIGABRT" in record.detail["error"]
    for nameless in (ENDING.aborts, lambda model, inputs, target: inputs):
        with pytest.raises(ValueError, match="loads the explainer by its name"):
            check_explainer(nameless, isolate=True)


def test_an_explainer_that_is_not_isolated_runs_in_this_process(isolated):
    check = Check("invariance", builtin_explainers()["loo"], registered_pairs()[PAIR])
    ((_, found),) = isolated("attnlrp").run([CheckJob(check, Settings(), "no spec that a process could load")])
    assert found == check.run(Settings())


MODULE = """
import os
from pathlib import Path

def dies(model, inputs, target):
    os._exit(0)

if Path("ends").exists():
    os._exit(0)
"""


def test_the_command_reports_every_planned_check(tmp_path, monkeypatch, capsys):
    (tmp_path / "their_ending_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    given = ["check", "their_ending_module:dies", "--isolate", "--axiom", "invariance", "--pairs", "product.*"]
    assert main([*given, "--json", "a.json", "--html"]) == 1
    document = results.load(Path("a.json"))
    planned = document.counts.planned
    assert len(document.records) == planned == len([pair for pair in registered_pairs() if "product." in pair])
    assert (results.not_run(document), document.counts.failed) == (planned - 3, 3)
    assert f"{planned - 3} not run" in capsys.readouterr().out
    assert "✓ <" not in Path("a.html").read_text()


def test_a_module_that_ends_the_process_that_loads_it_is_refused(tmp_path, monkeypatch):
    (tmp_path / "their_ending_module.py").write_text(MODULE)
    (tmp_path / "ends").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(OptionError, match="while it was loaded, it ended its process with exit code 0"):
        isolate(LocalChecks(), ["their_ending_module:dies"])


def test_an_explainer_that_its_process_cannot_load_does_not_run_in_this_one(monkeypatch):
    def fails(self, spec):
        raise JobFailed("ImportError: not here", "")

    monkeypatch.setattr(LocalChecks, "isolate", fails)
    with pytest.raises(OptionError, match="loo can be loaded here, and not in a process of its own: ImportError"):
        isolate(LocalChecks(), ["loo"])
    with pytest.raises(OptionError, match="no_such_module"):
        isolate(LocalChecks(), ["no_such_module:Mine"])


@pytest.mark.slow
def test_align_loses_the_explainer_that_ends_its_process_and_no_other(tmp_path):
    (tmp_path / "texts.tsv").write_text("".join(f"{' '.join(small_models.WORDS[5:9])}\t{i % 2}\n" for i in range(3)))
    model = small_models.save("bert", tmp_path / "bert")
    asked = {"model": str(model), "data": str(tmp_path / "texts.tsv"), "explainer": ["gradient_x_input"]}
    plain = measure(AlignRequest(**asked, cache=tmp_path / "plain"))
    ending = {**asked, "explainer": ["gradient_x_input", spec("aborts")], "place": Place(isolate=True)}
    document = measure(AlignRequest(**ending, cache=tmp_path / "isolated"))
    rows = {row.name: row for row in document.explainers}
    assert "ended by the signal SIGABRT" in rows.pop("aborts").refused
    assert rows == {row.name: row for row in plain.explainers}, "the same figures"


@pytest.mark.power
@pytest.mark.parametrize("option", ["--isolate", "--isolate -n2", "-n2"])
def test_pytest_reports_every_planned_check(tmp_path, option):
    explainers = [f"--explainer={spec(name)}" for name in ("exits_on_three_features", "prints_much")]
    pairs = ["--pairs=product.x1x2x3", "--pairs=product.n4_depths_2222", "--pairs=control.mlp"]
    command = ["-m", "pytest", "-q", "-p", "faithcheck.plugin", "--pyargs", "faithcheck.tests.test_axioms"]
    done = processes.run(
        tmp_path, *command, "-m", "invariance", *explainers, *pairs, *option.split(), "--axioms-json=a"
    )
    document = results.load(tmp_path / "a")
    assert len(document.records) == document.counts.planned == 3 * (2 + 1)  # two explainers, and the pair itself
    reds = [record.id for record in results.red_records(document)]
    assert reds == ["invariance/exits_on_three_features-product.x1x2x3"]
    assert (results.not_run(document), done.returncode) == (0, 1)


@pytest.mark.power
@pytest.mark.parametrize("name", ["fills_the_memory", "forks_without_end"])
def test_a_process_has_limits(isolated, name):
    record = run(isolated(spec(name), memory=2**31), name)
    assert record.status == "error"
    assert "it took more than 2 GiB of memory" in record.detail["error"] or "processes" in record.detail["error"]
