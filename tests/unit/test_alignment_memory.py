"""Batches of an alignment that do not fit the memory are measured in smaller parts, with the same results."""

import logging

import pytest
import torch

from faithcheck.alignment import evaluate
from faithcheck.alignment.settings import AlignmentSettings, table_2
from faithcheck.cli.main import main
from faithcheck.explainers import GradientTimesInput
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.removal import AttentionMask
from faithcheck.memory import memory_limit
from faithcheck.memory.memory_limit import available_memory, is_out_of_memory, with_half_the_rows
from faithcheck.models.pretrained.loading import load
from faithcheck.reports.memory_units import in_bytes, in_words
from faithcheck.tests.helpers import small_models

TEXTS = [*small_models.TEXTS, "a fox", "the lazy fox", "a dog runs"]
SETTINGS = AlignmentSettings(AttentionMask(), max_tokens=256)
ROUND_OFF = 1e-12
"""Other batches add up in another order."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_models.save("bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def model(folder):
    return load(folder, dtype=torch.float64)


def align(model, folder, explainers, settings=SETTINGS):
    results = evaluate.align(model, model.encode(TEXTS), explainers, settings, folder)
    return {result.name: result for result in results}


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """The results without a limit."""
    return align(model, tmp_path_factory.mktemp("whole"), [table_2(SETTINGS)[0], GradientTimesInput()])


def assert_same(result, expected):
    assert result.records.keys() == expected.records.keys()
    for i, record in result.records.items():
        assert record.target == expected.records[i].target
        for key in ("map", "morf", "lerf"):
            assert getattr(record, key) == pytest.approx(getattr(expected.records[i], key), abs=ROUND_OFF)


class RunsOutOfMemory(GradientTimesInput):
    """As on a small machine: no more than one example fits."""

    def __init__(self, error):
        super().__init__(name="runs_out")
        object.__setattr__(self, "error", error)

    def attribute(self, model, case):
        if len(case.inputs) > 1:
            raise self.error
        return super().attribute(model, case)


def cpu_error():
    """The error of torch's own allocator."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    return caught.value


@pytest.mark.parametrize(
    "error", [cpu_error(), torch.OutOfMemoryError("CUDA out of memory."), MemoryError()], ids=["CPU", "CUDA", "Python"]
)
def test_where_memory_runs_out_the_batch_is_halved_and_the_results_are_the_same(model, tmp_path, whole, error, caplog):
    with caplog.at_level(logging.WARNING):
        result = align(model, tmp_path, [RunsOutOfMemory(error)])["runs_out"]
    assert_same(result, whole["gradient_x_input"])
    assert "memory ran out" in result.smaller
    said = [record.message for record in caplog.records if "smaller parts" in record.message]
    assert len(said) == 1, "it is said once"


def test_where_memory_runs_out_for_one_example_it_is_an_error_with_a_way_out(model, tmp_path):
    class Never(GradientTimesInput):
        def attribute(self, model, case):
            raise MemoryError

    result = align(model, tmp_path, [Never(name="never")])["never"]
    assert result.failed
    assert "does not fit the memory" in result.refused
    assert "--max-length" in result.refused


def test_a_batch_that_is_predicted_not_to_fit_is_never_run(model, tmp_path, whole):
    peak = whole["gradient_x_input"].memory.predicted
    seen = []

    class Observed(GradientTimesInput):
        def attribute(self, model, case):
            seen.append(case.shape)
            return super().attribute(model, case)

    settings = AlignmentSettings(AttentionMask(), max_tokens=256, max_memory=peak - 1)
    result = align(model, tmp_path, [Observed(name="observed")], settings)["observed"]
    assert_same(result, whole["gradient_x_input"])
    assert "predicted" in result.smaller
    assert result.memory.predicted < peak


def test_leave_one_out_takes_fewer_rows_in_a_pass_where_one_example_does_not_fit(model, tmp_path, whole):
    loo = LeaveOneOut(AttentionMask(), max_tokens=256)
    quarter = whole["loo"].memory.predicted // 4
    settings = AlignmentSettings(AttentionMask(), max_tokens=256, max_memory=quarter)
    result = align(model, tmp_path, [loo], settings)["loo"]
    assert result.smaller
    assert_same(result, whole["loo"])
    assert result.memory.predicted <= quarter
    assert result.memory.measured == pytest.approx(result.memory.predicted, rel=0.2), "docs/results/cost.md"
    assert result.memory.measured < whole["loo"].memory.measured / 2


def test_an_example_that_cannot_fit_is_refused_before_anything_is_run(model, tmp_path):
    calls = []

    class Observed(GradientTimesInput):
        def attribute(self, model, case):
            calls.append(case.shape)
            return super().attribute(model, case)

    settings = AlignmentSettings(AttentionMask(), max_tokens=256, max_memory=1000)
    result = align(model, tmp_path, [Observed(name="observed")], settings)["observed"]
    assert not result.failed
    assert result.refused.startswith("example 2 has 12 features, and observed would take ")
    assert "1000" in result.refused or "KiB" in result.refused
    assert "--max-length" in result.refused
    assert all(batch == 1 for batch, _ in calls), "the short run alone"


@pytest.mark.slow
def test_peaks_are_predicted_and_measured_and_are_on_the_pages(folder, tmp_path, capsys):
    texts = tmp_path / "texts.tsv"
    texts.write_text("".join(f"{text}\t0\n" for text in TEXTS))
    page = tmp_path / "page.md"
    options = ["--json", str(tmp_path / "a.json"), "--md", str(page)]
    model = ["--model", str(folder), "--data", str(texts), "--explainer", "attnlrp"]
    assert main(["align", *model, *options, "--cache", str(tmp_path / "1"), "--max-memory", "1GiB"]) == 0
    assert "peak memory" in page.read_text()
    capsys.readouterr()
    for isolate in ([], ["--isolate"]):
        cache = ["--cache", str(tmp_path / "2")]
        assert main(["align", *model, *options, *cache, "--max-memory", "1KiB", *isolate]) == 2
        assert "more than the limit of 1 KiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("explainer", "limit", "code"), [("loo", "1GiB", 0), ("loo", "1KiB", 2), ("attnlrp", "1KiB", 2)]
)
def test_explain_takes_a_limit_too(folder, capsys, explainer, limit, code):
    text = "a quick brown fox jumps over the lazy dog"
    arguments = ["explain", text, "--model", str(folder), "--explainer", explainer, "--max-memory", limit]
    assert main(arguments) == code
    if code:
        assert "raise --max-memory" in capsys.readouterr().err


def test_bytes_in_words_and_back():
    assert in_bytes("2GiB") == 2 * 2**30
    assert in_bytes("1.5 MiB") == 1.5 * 2**20
    assert in_bytes("1000") == 1000
    assert in_words(1.5 * 2**30) == "1.5 GiB"
    assert in_words(1000) == "0.977 KiB"


def test_a_quarter_of_the_rows_in_two_steps():
    loo = LeaveOneOut(max_tokens=40)
    assert with_half_the_rows(loo, 10).max_tokens == 20
    assert with_half_the_rows(with_half_the_rows(loo, 10), 10).max_tokens == 10
    assert with_half_the_rows(LeaveOneOut(max_tokens=10), 10) is None
    assert with_half_the_rows(GradientTimesInput(), 10) is None


def test_an_error_that_memory_caused_is_one_of_memory():
    raised = ValueError("the explainer's own")
    raised.__cause__ = MemoryError()
    assert is_out_of_memory(raised)
    assert not is_out_of_memory(RuntimeError("another"))


def test_what_a_control_group_leaves_counts(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 600\ninactive_file 50\n")
    assert list(memory_limit._left_in_group(tmp_path)) == [350]
    (tmp_path / "memory.max").write_text("max\n")
    assert list(memory_limit._left_in_group(tmp_path)) == []
    assert 0 < available_memory(torch.device("cpu")) < 2**50
