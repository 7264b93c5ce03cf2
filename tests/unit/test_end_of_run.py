"""The end of a run: what is said while it measures, and a last screen that a person can take in."""

import re
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from faithcheck.executors.executor import Executor
from faithcheck.progress import LINES_EVERY, measured
from faithcheck.reports.pages import terminal
from faithcheck.tests.helpers.documents import document, record

AXIOMS = "balance batching completeness determinism dummy invariance linearity loo precision scale shift trace".split()


def red(number, axiom="completeness", explainer="mine", gap=0.5):
    name = f"family.pair_{number}"
    return record(
        "broken claim", id=f"{axiom}/{explainer}-{name}", axiom=axiom, explainer=explainer, subject=name, gap=gap
    )


def run_of(explainers, reds=81):
    """A document of a run in which much is red, much is skipped and much does not apply."""
    records = [red(i, gap=0.001 * i) for i in range(reds)]
    records += [record("error", id=f"e{i}", axiom=axiom, explainer="mine") for i, axiom in enumerate(AXIOMS)]
    records += [record("holds", id=f"h{i}", axiom=axiom, explainer="mine") for i, axiom in enumerate(AXIOMS)]
    reasons = [f"{name}: matmul in layer_{i}: no rule for this operation" for name in explainers for i in range(5)]
    settings = {
        "explainers": explainers,
        "not_applicable": [
            {"axiom": axiom, "explainer": name, "reason": "it has no ledger"}
            for axiom in ("balance", "conservation")
            for name in explainers
        ],
        "origins": {name: f"their_module:{name}; called as function(model, inputs, target)" for name in explainers},
    }
    skips = [{"reason": reason, "count": 7, "ids": []} for reason in reasons]
    return document(records, settings, tables=[], skips=skips)


@pytest.mark.parametrize(("width", "most"), [(80, 48), (100, 40), (120, 40)])
def test_the_end_of_a_run_fits_a_screen(width, most):
    for explainers in (["mine"], [f"explainer_{i}" for i in range(14)]):
        lines = terminal.render_screen(run_of(explainers), width).splitlines()
        assert len(lines) <= most, "\n".join(lines)
        assert max(map(len, lines)) <= width
    green = terminal.render_screen(document([record("holds")], tables=[]), width).splitlines()
    assert len(green) <= 8


def test_the_end_of_a_run_says_the_verdict_the_worst_and_the_causes():
    said = terminal.render_screen(run_of(["mine"]), 120)
    places = [said.index(text) for text in ("93 red", "the worst of 93", "13 causes", "skipped, or")]
    assert places == sorted(places)
    assert "again: faithcheck check mine --axiom" in said
    assert "81 × completeness: mine: expected to hold" in said
    assert "and 10 more causes of 10 red checks" in said
    assert "mine: 35 skipped: no rule for this operation; balance, conservation do not apply: it has no ledger" in said


def test_of_many_explainers_the_last_line_counts_those_left_out():
    said = terminal.render_screen(run_of([f"explainer_{i}" for i in range(14)]), 100)
    assert said.count(" 35 skipped") == terminal.EXPLAINERS
    assert f"and {14 - terminal.EXPLAINERS} more: see the report" in said


def test_what_is_cut_ends_in_an_ellipsis():
    said = terminal.render_screen(document([replace(red(1), subject="long " * 200)], tables=[]), 100)
    assert [line for line in said.splitlines() if line.startswith("long long") and line.endswith(" …")]


def test_of_a_long_word_as_much_is_shown_as_fits():
    said = terminal.render_screen(document([replace(red(1), subject="x" * 900)], tables=[]), 100)
    assert [line for line in said.splitlines() if re.fullmatch("x{98} …", line)]


def test_hostile_text_is_shown_and_not_run():
    said = terminal.render_screen(document([red(1, explainer="a\x1b[2J[bold]")], tables=[]), 100)
    assert "\x1b" not in said
    assert r"a\x1b[2J[bold]" in said


class Checked:
    """The job of a check whose record is already known."""

    check = SimpleNamespace(axiom="completeness", subject="family.pair")

    def __init__(self, status, number=0):
        self.record = replace(red(number), status=status)

    def run(self):
        return self.record


def test_the_first_red_check_is_said_at_once_and_the_counts_now_and_then(capsys):
    jobs = [Checked(status, i) for i, status in enumerate(["holds", "broken claim", "broken claim", "holds"])]
    seconds = iter([0.0, 1.0, 2.0, LINES_EVERY, LINES_EVERY, LINES_EVERY + 1])
    said = [capsys.readouterr().err for _ in measured(jobs, Executor(), lines=True, clock=lambda: next(seconds))]
    assert said[0] == said[3] == ""
    assert said[1].startswith("faithcheck: the first red check: completeness: mine on family.pair_1: expected to hold")
    assert said[2] == "faithcheck: 3 of 4 checks, 2 red\n"


def test_from_python_no_lines_are_printed(capsys):
    assert len(list(measured([Checked("broken claim")], Executor()))) == 1
    assert capsys.readouterr().err == ""
