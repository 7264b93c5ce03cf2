"""Whatever an explainer raises, ``align`` and ``explain`` say so, measure the others, and do not exit with 0."""

import json
import re

import pytest

from faithcheck.axioms.measure.error_text import LIMIT
from faithcheck.cli.main import main
from faithcheck.tests.helpers import small_models

EXPLAINERS = """
import signal
from faithcheck.alignment.run_key import StoreError
from faithcheck.explainers import GradientTimesInput

class Own(BaseException):
    pass

class WithoutText(Exception):
    def __str__(self):
        raise SystemExit(0)

class Raises:
    def __init__(self, name, error):
        self.name, self.error = name, error

    def attribute(self, model, case):
        raise self.error

class Described(GradientTimesInput):
    @property
    def settings(self):
        raise SystemExit(0)

class Pressed:
    '''Ctrl-C at the second batch, after two short runs and the first one; the explainer catches it.'''

    name, calls = "pressed", 0

    def attribute(self, model, case):
        Pressed.calls += 1
        if Pressed.calls == 4:
            try:
                signal.raise_signal(signal.SIGINT)
            except BaseException:
                raise SystemExit(0)
        return GradientTimesInput().attribute(model, case)

class Leaves(GradientTimesInput):
    label = ""

    def attribute(self, model, case):
        attribution = super().attribute(model, case)
        model.model.classifier.weight.data.mul_(2)
        return attribution

class Waits:
    name = "waits"

    def attribute(self, model, case):
        while True:
            pass

exits = Raises("exits", SystemExit(0))
own = Raises("own", Own("mine"))
generator = Raises("generator", GeneratorExit())
stop = Raises("stop", StopIteration(1))
interrupt = Raises("interrupt", KeyboardInterrupt())
without_text = Raises("without_text", WithoutText())
surrogate = Raises("surrogate", ValueError("a lone \\ud800 surrogate"))
long = Raises("long", ValueError("begin" + 1_000_000 * "x" + "end"))
disk = Raises("disk", OSError("no such device"))
store = Raises("store", StoreError("not the store's"))
described = Described(name="described")
pressed = Pressed()
leaves = Leaves(name="leaves")
"""
MESSAGES = {
    "exits": "it raised SystemExit: 0",
    "own": "it raised Own: mine",
    "generator": "it raised GeneratorExit",
    "stop": "it raised StopIteration: 1",
    "interrupt": "it raised KeyboardInterrupt",
    "without_text": "it raised WithoutText: (no message: reading it raised SystemExit)",
    "surrogate": "it raised ValueError: a lone \\ud800 surrogate",
    "long": "it raised ValueError: beginxxx",
    "disk": "it raised OSError: no such device",
    "store": "not the store's",
    "described": "it raised SystemExit: 0",
}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """A small model and two batches of texts."""
    folder = tmp_path_factory.mktemp("bert")
    (folder / "texts.tsv").write_text("a quick brown fox\t0\nthe dog runs over the lazy dog\t1\n")
    model = small_models.save("bert", folder / "bert")
    cache = str(folder / "cache")
    return ["align", "--model", str(model), "--data", str(folder / "texts.tsv"), "--cache", cache, "--max-tokens=30"]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module with these explainers, in the current folder."""
    name = "explainers_that_raise"
    (tmp_path / f"{name}.py").write_text(EXPLAINERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    return name


@pytest.mark.slow
def test_align_reports_every_explainer_that_raises_and_measures_the_others(arguments, module, tmp_path, capsys):
    named = [f"--explainer={module}:{name}" for name in MESSAGES]
    assert main([*arguments, *named, "--explainer=attnlrp", "--json=all.json", "--html", "--md"]) == 1
    rows = {row["name"]: row for row in json.loads((tmp_path / "all.json").read_text())["explainers"]}
    for name, message in MESSAGES.items():
        assert rows[name]["refused"].startswith(message)
        assert rows[name]["failed"]
        assert len(rows[name]["refused"]) < LIMIT + 100
    assert main([*arguments, "--explainer=attnlrp", "--json=alone.json"]) == 0
    alone = {row["name"]: row for row in json.loads((tmp_path / "alone.json").read_text())["explainers"]}
    assert {name: rows[name] for name in alone} == alone
    for page in ("all.html", "all.md"):
        assert "11 explainers failed" in (tmp_path / page).read_text()
    assert "own was not measured: it raised Own: mine" in capsys.readouterr().out


def test_a_batch_that_takes_longer_than_the_limit_is_an_error_of_its_explainer(arguments, module, tmp_path):
    limit = ["--explainer-timeout=3", "--json=limited.json"]  # LOO takes a hundredth of it
    assert main([*arguments, f"--explainer={module}:Waits", *limit]) == 1
    rows = {row["name"]: row for row in json.loads((tmp_path / "limited.json").read_text())["explainers"]}
    assert rows["waits"]["refused"] == "it raised TimedOut: still running after 3 s: stopped by the time limit"


def test_align_names_what_was_left_behind_also_from_the_cache(arguments, module, tmp_path, capsys):
    left = "leaves left something behind, which was undone: weights (model.classifier.weight)"
    for _ in range(2):
        assert main([*arguments, f"--explainer={module}:leaves", "--json=left.json", "--html", "--md"]) == 1
        assert left in " ".join(capsys.readouterr().out.split())
    (tmp_path / "left.html").read_text().index("leaves left something behind, which was undone")
    assert "1 left something behind" in (tmp_path / "left.md").read_text()
    assert main(["compare", "left.json", "left.json"]) == 0


def test_ctrl_c_stops_align_although_the_explainer_catches_it(arguments, module, tmp_path, capsys):
    command = [*arguments, f"--explainer={module}:pressed", "--json=pressed.json", "--html"]
    assert main(command) == 130
    assert "interrupted" in capsys.readouterr().err
    assert not (tmp_path / "pressed.json").exists()
    assert not (tmp_path / "pressed.html").exists()
    assert main(command) == 0, "the first batch was kept: a short run, and the second batch"
    pressed = __import__("sys").modules[module].Pressed
    assert pressed.calls == 4 + 2


@pytest.mark.parametrize("name", ["exits", "own", "interrupt", "without_text", "surrogate", "long", "described"])
def test_explain_says_what_an_explainer_raised(arguments, module, capsys, caplog, name):
    assert main(["explain", "the dog runs", "--model", arguments[2], "--explainer", f"{module}:{name}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"no map: {name} raised " in said
    assert re.sub("^it raised ", "", MESSAGES[name]).split(":")[0] in said
    assert f"{name} raised:\nTraceback" in caplog.text


def test_explain_undoes_and_names_what_was_left_behind(arguments, module, capsys):
    text = ["explain", "the dog runs", "--model", arguments[2], "--explainer"]
    assert main([*text, f"{module}:leaves"]) == 1
    disturbed = capsys.readouterr().out
    assert "leaves left something behind, which was undone: weights" in " ".join(disturbed.split())
    assert main([*text, "gradient_x_input"]) == 0
    change = re.compile(r"f\(x\) − f\(baseline\) +(\S+),")
    assert change.findall(disturbed) == change.findall(capsys.readouterr().out) != []
