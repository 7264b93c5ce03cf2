"""What the parent of an isolated process makes of its answers: records, limits, figures and ends, without a process."""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from faithcheck.check import Check
from faithcheck.check_job import CheckJob
from faithcheck.executors import own_processes
from faithcheck.executors.own_processes import OwnProcesses, killed_after
from faithcheck.executors.process import in_words
from faithcheck.executors.supervisor import Report
from faithcheck.explainers import GradientTimesInput
from faithcheck.models.pair import registered_pairs
from faithcheck.reports.documents.document import to_json
from faithcheck.request import Settings

CHECK = Check("scale", GradientTimesInput(), registered_pairs()["control.mlp"], "f")


# One id comes before the check's own in the alphabet, one after it.
@pytest.mark.parametrize("other", ["another/gradient_x_input-control.mlp.f", "symmetry/gradient_x_input-control.mlp.f"])
def test_the_record_of_another_check_is_refused(monkeypatch, other):
    record = CHECK.run(Settings())
    answers = [to_json(replace(record, id=other)), to_json(record)]
    process = SimpleNamespace(closed=False, run=lambda *_: answers.pop(0), close=lambda: None)
    monkeypatch.setattr(own_processes, "Process", lambda limits: process)
    executor = OwnProcesses()
    (_, refused), (_, taken) = executor.run([CheckJob(CHECK, Settings(), "gradient_x_input")] * 2)
    assert refused.status == "error"
    assert f"its process measured {other} in place of this check" in str(refused.detail)
    assert taken == record


def test_a_process_has_twice_the_users_limit_and_some_seconds():
    assert killed_after(None) == own_processes.WITHOUT_LIMIT
    assert killed_after(3) == 6 + own_processes.BEYOND_LIMIT


def test_the_end_of_a_process_is_put_in_words():
    for report, words in (
        (Report(reason="no answer in 3 s"), "no answer in 3 s: its process was killed"),
        (Report(status=-11), "by the signal SIGSEGV"),
        (Report(status=-99), "by the signal 99"),
        (Report(status=3), "exit code 3"),
        (Report(), "nothing says why"),
    ):
        assert words in in_words(report)
