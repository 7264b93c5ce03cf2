"""The benchmark document: turns until a ratio is precise, CUDA replaced by a record of its calls, pages, comparison."""

import copy
import itertools
import json

import numpy as np
import pytest
import torch
from msgspec import structs

from faithcheck.cli.main import main
from faithcheck.explainers import AttnLRP, GradientTimesInput, LeaveOneOut
from faithcheck.explainers.protocol import Unsupported, input_gradient
from faithcheck.reports import comparison
from faithcheck.reports.causes import Change
from faithcheck.reports.documents import benchmark
from faithcheck.reports.documents.document import DocumentError, load
from faithcheck.reports.pages import benchmark as pages
from faithcheck.tests.helpers import cost, documents, timing
from faithcheck.tests.helpers.kept_document import KeptDocument
from faithcheck.tests.helpers.timing import Limits, until_precise

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 1)

# --- intervals, exponents and the front -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turns", "low", "high"), [(1, None, None), (5, None, None), (6, 1, 6), (9, 2, 8), (30, 10, 21)]
)
def test_the_interval_is_between_two_order_statistics(turns, low, high):
    """The ranks of Conover's Table A3 for the median at 95 %: the largest r with 2 · P(B(n, ½) < r) ≤ 5 %."""
    values = np.random.default_rng(0).permutation(turns) + 1.0
    assert benchmark.interval(values) == benchmark.Ratio(median=(turns + 1) / 2, low=low, high=high)


@pytest.mark.parametrize("power", [-0.5, 1.0, 2.3])
def test_the_exponent_of_a_power_law_is_its_power(power):
    sizes = [16, 32, 64, 128]
    np.testing.assert_allclose(benchmark.exponent(sizes, [3 * n**power for n in sizes]), power, atol=1e-12)
    assert benchmark.exponent(sizes[:2], [1.0, 2.0]) is None


def test_the_exponents_interval_is_that_of_the_regression_line():
    """By hand: log₂ cost is 0, 1, 1 at log₂ size 0, 1, 2, so slope ½, residuals ∓1/6, ±1/3, standard error 1/√12."""
    slope, low, high = benchmark.exponent([1, 2, 4], [1.0, 2.0, 2.0])
    assert slope == pytest.approx(0.5, abs=1e-12)
    assert (high - slope, slope - low) == pytest.approx((12.706204736 / 12**0.5,) * 2, rel=1e-9)


def test_the_front_is_what_nothing_beats():
    random = np.random.default_rng(1)
    costs = random.integers(1, 20, 60)  # with ties, and higher agreement only at a higher cost
    found = [(float(cost), float(random.integers(0, cost))) for cost in costs]

    def beaten(cost, r):
        return any(other != (cost, r) and other[0] <= cost and other[1] >= r for other in found)

    def row(name, cost, r):
        return documents.cost_row(name, cost, r={"mean": r, "low": None, "high": None, "n": 1})

    content = documents.benchmark()
    content["agreements"][0]["rows"] = [*(row("x", *one) for one in found), row("none", None, 9.0)]
    front = documents.typed(content).agreements[0].pareto_front
    assert [(one.cost.median, one.r.mean) for one in front] == sorted({one for one in found if not beaten(*one)})
    assert len(front) > 3


# --- turns ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clockwork(monkeypatch):
    """The time of a call is what it returns."""
    monkeypatch.setattr(timing, "milliseconds", lambda function, device: function())


def drawn(*values):
    endless = itertools.cycle(values)
    return lambda: next(endless)


NOISY = (drawn(1.0, 1.2), drawn(1.0))


def test_turns_end_when_the_ratio_is_precise_however_the_machine_slows(clockwork):
    calls = {"slowing": (drawn(2.0, 20.0, 60.0), drawn(1.0, 10.0, 30.0), drawn(7.0)), "noisy": NOISY}
    times = until_precise(calls, CPU, Limits(turns=40), 0)
    assert {name: of.shape for name, of in times.items()} == {"slowing": (timing.FEWEST, 3), "noisy": (40, 2)}
    np.testing.assert_array_equal(times["slowing"][:, 0] / times["slowing"][:, 1], 2.0)
    assert (times["slowing"][:, 2] == 7.0).all()
    assert benchmark.interval(times["noisy"][:, 0] / times["noisy"][:, 1]).half_width > 0.05


def test_the_seconds_stop_it_too_but_not_before_there_is_an_interval(clockwork):
    for seconds, turns in ((0, timing.FEWEST), (10, 11), (1e9, 400)):  # the clock goes on by a second at each turn
        times = until_precise({"noisy": NOISY}, CPU, Limits(seconds=seconds), 0, itertools.count(1).__next__)
        assert len(times["noisy"]) == turns, seconds


def test_everyone_gets_the_same_time_and_the_cheap_ones_more_turns(clockwork):
    calls = {name: (drawn(cost, 2 * cost), drawn(1.0)) for name, cost in (("cheap", 1.0), ("dear", 100.0))}
    clock = itertools.count().__next__
    times = until_precise(calls, CPU, Limits(seconds=900, turns=10**6), 0, clock)
    spent = {name: of.sum() for name, of in times.items()}
    assert abs(spent["cheap"] - spent["dear"]) <= 201, "one turn of the dear one"


def test_the_calls_of_a_turn_have_no_fixed_order(clockwork):
    called = []
    calls = {"x": [lambda name=name: called.append(name) or 1.0 for name in "abc"]}
    until_precise(calls, CPU, Limits(turns=60, within=-1.0), 0)
    turns = ["".join(called[i : i + 3]) for i in range(0, 180, 3)]
    assert set(turns) == set(map("".join, itertools.permutations("abc")))


def test_on_cuda_a_call_is_timed_by_events_around_synchronised_work(monkeypatch):
    done = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            done.append("record")

        def elapsed_time(self, end):
            done.append("read")
            return 7.5

    class OnDevice:
        def __init__(self, device):
            done.append(device)

        def __enter__(self):
            pass

        def __exit__(self, *_):
            done.append("left")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", OnDevice)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("synchronise"))
    assert timing.milliseconds(lambda: done.append("call"), CUDA) == 7.5
    assert done == [CUDA, "synchronise", "record", "call", "record", "synchronise", "left", "read"]


def test_the_gpu_is_described(monkeypatch):
    properties = type("Properties", (), {"total_memory": 80 * 2**30})
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU X")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert cost.about_device(CUDA) == benchmark.Device(name="GPU X", memory_bytes=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "clock_rate", lambda device: 1980)
    monkeypatch.setattr(torch.cuda, "power_draw", lambda device: 350_500)
    assert cost.state_of_device(CUDA) == benchmark.State(clock_mhz=1980, power_watts=350.5, unknown="")

    def no_pynvml(device):
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

    monkeypatch.setattr(torch.cuda, "power_draw", no_pynvml)
    state = cost.state_of_device(CUDA)
    assert state.clock_mhz is state.power_watts is None
    assert state.unknown == "Clock and power are unknown: nvidia-ml-py does not seem to be installed"
    assert cost.about_device(CPU).memory_bytes is None


# --- one point --------------------------------------------------------------------------------------------------------

TINY = cost.Size(length=8, batch=2, depth=2, width=16)


@pytest.mark.parametrize("shape", cost.SHAPES)
def test_every_shape_has_the_size_that_it_is_asked_for(shape):
    model, case = cost.build(shape, TINY, 0, CPU)
    assert case.shape == (TINY.batch, TINY.length)
    assert input_gradient(model, case).abs().sum((1, 2)).min() > 0
    config = model.model.config
    assert (config.num_hidden_layers, config.hidden_size) == (TINY.depth, TINY.width)


def test_the_plain_pass_of_rows_has_the_rows_of_leave_one_out():
    model, case = cost.build("bert", TINY, 0, CPU)
    passes = []
    model.register_forward_pre_hook(lambda module, arguments: passes.append(arguments[0].shape[:2]))
    cost.forward_of_rows(model, case, at_once=50)
    assert passes == [(6, 8), (6, 8), (6, 8)]


def test_a_size_is_the_middle_with_one_dimension_multiplied():
    assert cost.size_of(TINY, "middle", 1) == TINY
    assert cost.size_of(TINY, "depth", 0.5) == cost.Size(length=8, batch=2, depth=1, width=16)


class Refusing:
    name = "refusing"

    def attribute(self, model, case):
        raise Unsupported("no rule for softmax")


class Broken:
    name = "broken"
    origin = "library 1.0"

    def attribute(self, model, case):
        raise KeyError("weights")


def test_a_point_has_a_row_for_each_plain_pass_and_explainer():
    model, case = cost.build("bert", TINY, 0, CPU)
    chosen = {one.name: one for one in (AttnLRP(), GradientTimesInput(), LeaveOneOut(), Refusing(), Broken())}
    rows = cost.measured_rows(model, case, chosen, lambda: input_gradient(model, case), Limits(turns=6), 0)
    by_name = {row.explainer: row for row in rows}
    assert list(by_name) == [cost.GRADIENT, cost.ROWS, *chosen]
    assert [by_name[name].unit for name in ("attnlrp", "loo")] == [cost.GRADIENT, cost.ROWS]
    assert by_name["refusing"].why == "no rule for softmax"
    assert by_name["broken"].why == "KeyError: 'weights'"
    for row in rows:
        measured = row.explainer not in ("refusing", "broken")
        assert row.turns == 6 * measured
        for figure in (row.ratio, row.cost):
            assert all((value is not None) == measured for value in (figure.median, figure.low, figure.high))
        assert (row.peak_bytes is not None) == measured
        assert row.milliseconds is None, "on a CPU, ratios only"
    assert by_name["loo"].unit_peak_bytes == by_name[cost.ROWS].peak_bytes > 0
    assert by_name["attnlrp"].unit_peak_bytes == by_name[cost.GRADIENT].peak_bytes > 0


def test_the_ratio_is_to_the_unit_and_the_cost_to_the_reference():
    times = np.array([[6.0, 2.0, 3.0]] * 6)
    figures = cost.figures(times, on_gpu=True)
    assert figures["ratio"] == benchmark.Ratio(median=3.0, low=3.0, high=3.0)
    assert figures["cost"] == benchmark.Ratio(median=2.0, low=2.0, high=2.0)
    assert (figures["milliseconds"], figures["turns"]) == (6.0, 6)
    assert cost.figures(times, on_gpu=False)["milliseconds"] is None


# --- the document -----------------------------------------------------------------------------------------------------


def kept(path, **settings):
    empty = documents.typed(documents.benchmark())
    changed = structs.replace(empty.settings, **settings)
    return KeptDocument(path, empty.faithcheck, empty.environment, changed, empty.device, "code")


def test_a_run_resumes_with_its_own_document(tmp_path):
    path, content = tmp_path / "bench" / "cost.json", documents.typed(documents.benchmark())
    point, agreement = content.points[1], content.agreements[0]
    size = content.settings.middle
    first = kept(path)
    assert not first.has_point("bert", size)
    first.add_point(point)
    second = kept(path)
    assert second.has_point("bert", size)
    assert not second.has_point("gpt2", size)
    assert not second.has_point("bert", structs.replace(size, batch=2))
    second.add_agreement(agreement)
    assert kept(path).document == structs.replace(first.document, agreements=[agreement])
    assert kept(path).has_agreement("60 texts")
    assert not kept(path).has_agreement("12 texts")
    assert [file.name for file in path.parent.iterdir()] == ["cost.json"]


def test_no_document_is_lost(tmp_path):
    path, point = tmp_path / "cost.json", documents.typed(documents.benchmark()).points[1]
    first = kept(path)
    first.add_point(point)
    other = kept(path, seed=1)
    assert other.document.points == [], "another seed, another run"
    assert not path.exists()
    other.add_point(point)
    assert kept(path).document == first.document
    path.write_text("{damaged")
    assert kept(path, seed=1).document == other.document
    assert (tmp_path / "cost.damaged.json").read_text() == "{damaged"


def test_a_document_of_another_version_is_refused_with_the_way_out(tmp_path):
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(documents.benchmark(schema_version=0)))
    with pytest.raises(
        DocumentError, match=r"benchmark schema version 0, this faithcheck reads 1: run make bench again"
    ):
        load(path, benchmark.Benchmark)


@pytest.mark.parametrize("page", [pages.to_markdown, pages.to_html, lambda document: pages.to_terminal(document, 200)])
def test_the_pages_show_ratios_exponents_memory_front_and_what_is_missing(page):
    text = page(documents.typed(documents.benchmark()))
    for part in (
        "9 ratios to plain passes at 3 points, 6 of them within",
        "No GPU was measured",
        "4.1 [4.01, 4.18]",  # AttnLRP at length 64: 64² / 1000
        "stopped at the limit",
        "2.00 [2.00, 2.00]",  # the exponent of AttnLRP in the length
        "no rule",
    ):
        assert part in text.replace("\\", ""), part


def test_the_front_of_the_page_is_in_the_order_of_cost():
    document = documents.typed(documents.benchmark())
    (table,) = [table for table in pages._tables(document) if "agreement" in table.title]
    marked = [(row[0], row[-1]) for row in table.rows]
    assert marked == [("ROLLOUT", "on the front"), ("GATE", "on the front"), ("ATTNLRP", ""), ("LOO", "on the front")]


def test_the_figures_are_drawn_on_the_html_page():
    html = pages.to_html(documents.typed(documents.benchmark()))
    assert html.count("<svg") == 3  # cost against length, of other libraries too, and against agreement
    assert all(title in html for title in ("Cost against length: other libraries", "Pareto front"))


def test_a_document_of_a_gpu_shows_its_name_clock_power_and_milliseconds():
    document = documents.benchmark(device={"name": "GPU X", "memory_bytes": 80 * 2**30})
    for i, point in enumerate(document["points"]):
        point["state"] |= {"clock_mhz": 1900 + i, "power_watts": 300.5}
        point["rows"][1]["milliseconds"] = 12.25
    text = pages.to_markdown(documents.typed(document))
    assert "Measured on GPU X, 80 GiB, clock 1900 – 1902 MHz, power 300 – 300 W, by CUDA events." in text
    assert "| 12.2 |" in text
    assert "No GPU" not in text


def test_an_interval_of_no_width_is_precise():
    document = documents.benchmark()
    document["points"][0]["rows"][1]["ratio"] = documents.ratio(1.5, 0.0)
    assert "6 of them within" in pages.headline(documents.typed(document))


def test_an_empty_document_has_pages():
    empty = documents.typed(documents.benchmark(points=[], agreements=[]))
    for page in (pages.to_markdown, pages.to_html, pages.to_terminal):
        assert "0 ratios" in page(empty)


def test_the_commands_read_the_document(tmp_path, capsys):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(documents.benchmark()))
    assert main(["report", str(path), "--md", "--html", "--exit-code"]) == 0
    assert (tmp_path / "bench.html").is_file()
    assert main(["report", str(path)]) == 0
    assert "Exponent of the cost in the length" in capsys.readouterr().out


def test_compare_lists_ratios_that_changed_beyond_both_intervals(tmp_path, capsys):
    old = documents.benchmark()
    new = copy.deepcopy(old)
    attnlrp = [point["rows"][1] for point in new["points"]]
    attnlrp[0]["ratio"] = documents.ratio(attnlrp[0]["ratio"]["median"] * 1.05)  # beyond both intervals of ± 2 %
    attnlrp[1]["ratio"] = documents.ratio(attnlrp[1]["ratio"]["median"] * 1.03)  # not beyond
    attnlrp[2]["ratio"] = documents.ratio(attnlrp[2]["ratio"]["median"] * 0.9)
    new["points"][0]["rows"].pop()  # measured once only: not compared
    compared = comparison.compare(documents.typed(old), documents.typed(new))
    place = "ATTNLRP: bert, length {}, batch 1, depth 4, width 128"
    assert compared.listed("slower") == [Change("ratio", place.format(32), "1.02 [1, 1.04]", "1.08 [1.05, 1.1]")]
    assert [row.id for row in compared.listed("faster")] == [place.format(128)]
    assert compared.unchanged == 10
    paths = [str(tmp_path / name) for name in ("old.json", "new.json")]
    for path, document in zip(paths, (old, new), strict=True):
        (tmp_path / path).write_text(json.dumps(document))
    assert main(["compare", *paths]) == 0, "benchmarks inform"
    assert "no verdict: benchmarks inform\n1 slower, 1 faster, 10 unchanged" in capsys.readouterr().out
    with pytest.raises(DocumentError, match="one document is of make bench, the other of faithcheck align"):
        comparison.compare(documents.typed(old), documents.typed(documents.alignment(loo=(1.0, 1.0))))
