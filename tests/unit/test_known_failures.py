"""The red checks of a run, recorded as expectations: the same run is green, and what is new or gone is red."""

import json

import pytest

from faithcheck.cli.main import main
from faithcheck.options.expectations import load
from faithcheck.reports.known_failures import to_toml
from faithcheck.tests.helpers.documents import document, explanation, record


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Check an explainer that gives the inputs times a factor; returns the exit code and the statuses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def check(factor, *options):
        name = f"inputs_times_{factor}".replace(".", "_")
        (tmp_path / f"{name}.py").write_text(
            "def mine(model, inputs, target):\n"
            f"    return {factor} * inputs if inputs.dim() == 2 else {factor} * inputs.sum(2)\n"
            'mine.claims = {"completeness"}\n'
        )
        chosen = ["--axiom", "completeness", "--pairs", "product.x1x2x3", "--json", "results.json"]
        code = main(["check", f"{name}:mine", *chosen, *options])
        return code, {one["status"] for one in json.loads((tmp_path / "results.json").read_text())["records"]}

    return check


def test_what_was_red_is_expected_and_what_changed_is_red(run):
    assert run(1) == (1, {"broken claim"})
    assert main(["report", "results.json", "--known-failures", "known.toml"]) == 0
    assert run(1, "--expectations", "known.toml") == (0, {"predicted violation"})
    assert run(100, "--expectations", "known.toml") == (1, {"inconclusive"}), "the violation has another size"


def test_what_no_entry_can_expect_is_a_comment(tmp_path):
    reds = [
        record("broken claim", explainer="mine", subject="a.b", gap=0.25),
        record("error", explainer="mine", subject="a.c", detail={"error": 'ValueError: "no"\nmore'}),
        record("left behind", explainer="mine", subject="a.d"),
        record("broken claim", explainer=None, subject="a.e"),
        record("broken claim", explainer="mine", subject="a.f", gap="inf"),
        record("holds", explainer="mine", subject="a.g"),
    ]
    (tmp_path / "known.toml").write_text(to_toml(document(reds)), encoding="utf-8")
    violation, error = load(tmp_path / "known.toml")
    assert (violation.subject, violation.expectation.floor, violation.expectation.ceiling) == ("a.b", 0.225, 0.275)
    assert (error.subject, error.expectation.error) == ("a.c", 'ValueError: "no"\nmore')
    assert to_toml(document(reds)).count("which no entry can expect") == 3


def test_only_results_have_known_failures(tmp_path, capsys):
    (tmp_path / "explanation.json").write_text(json.dumps(explanation()))
    assert main(["report", str(tmp_path / "explanation.json"), "--known-failures", str(tmp_path / "known.toml")]) == 2
    assert "only the results" in capsys.readouterr().err
