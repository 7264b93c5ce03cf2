"""The live view of a long run: bars and a line on the workers in a terminal, a line now and then elsewhere."""

import re
from itertools import count

import pytest
from rich.console import Console

from faithcheck import progress as module
from faithcheck.executors.ray.on_ray import State
from faithcheck.progress import MINUTE, ProgressByExplainer, in_one_line

BUSY = State(2, 3, 1, (3 * 2**30, 80 * 2**30), "127.0.0.1:8265")


def test_one_line_says_how_the_cluster_is_getting_on():
    assert in_one_line(State(1)) == "1 worker"
    assert in_one_line(BUSY) == (
        "2 workers, 3 tasks retried, 1 task left out, GPU memory 3 GiB of 80 GiB, dashboard http://127.0.0.1:8265"
    )


def test_without_a_terminal_a_line_says_now_and_then_how_far_the_run_is(capsys):
    seconds = iter([0.0, 1.0, MINUTE, MINUTE + 1, 2 * MINUTE])
    with ProgressByExplainer("checks", clock=lambda: next(seconds)) as progress:
        progress.advance("loo", 3, 10)
        progress.advance("[red]mine\x1b", 117, 200)
        progress.watch(BUSY)
        progress.advance("", 1, 1)
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"faithcheck: loo 3 of 10 checks, \[red\]mine\S+ 117 of 200 checks, 2 checks a second", first)
    assert "pairs 1 of 1 checks" in second
    assert second.endswith(in_one_line(BUSY))
    assert "\x1b" not in first + second


@pytest.fixture
def screen(monkeypatch):
    """A terminal that is recorded."""
    recorded = Console(force_terminal=True, width=160, record=True, stderr=True)
    made = module.progress_bar

    def progress_bar(unit):
        progress = made(unit=unit)
        progress.live.console, progress.disable = recorded, False
        progress.get_time = count().__next__
        return progress

    monkeypatch.setattr(module, "progress_bar", progress_bar)
    return recorded


def test_in_a_terminal_each_explainer_has_a_bar_and_the_workers_a_line(screen):
    with ProgressByExplainer("examples") as progress:
        progress.advance("loo", 2, 10)
        progress.advance("[red]mine", 2, 10)
        progress.advance("loo", 1, 10)
        progress.watch(BUSY)
        screen.print(progress.shown)
    shown = screen.export_text()
    assert re.search(r"loo +\S+ +3/10 +0\.\d+ examples/s", shown)
    assert re.search(r"\[red\]mine +\S+ +2/10", shown)
    assert in_one_line(BUSY) in shown
