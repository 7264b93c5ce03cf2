"""``faithcheck align --plan``: a part is measured, the rest is estimated, and later compared."""

import pytest
from msgspec import structs

from faithcheck.alignment import alignment_plan
from faithcheck.alignment.alignment_plan import PASSES, work_of
from faithcheck.alignment.measurement import measure
from faithcheck.alignment.settings import AlignRequest
from faithcheck.reports.pages import alignment
from faithcheck.reports.pages.alignment import in_time, plan_to_terminal
from faithcheck.tests.helpers.killed_runs import Runs


@pytest.fixture(scope="module")
def request_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    runs = Runs(folder)
    texts = [" ".join(["fox"] * words) for words in (3, 6, 4, 9, 8, 12, 20, 5)]
    runs.texts.write_text("".join(f"{text}\t0\n" for text in texts))
    options = dict(model=str(runs.model), data=str(runs.texts), max_tokens=150, explainer=("gradient_x_input",))
    return lambda cache: AlignRequest(**options, cache=folder / cache)


@pytest.fixture(scope="module")
def planned(request_of):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment_plan, "PROBE", 0.0)
        return alignment_plan.plan(request_of("planned"))


def test_a_probe_leaves_the_rest_and_counts_its_work(planned):
    loo, other = planned.explainers
    assert loo.probed == other.probed == alignment_plan.LEAST + 1
    assert loo.batches == other.batches >= 2
    assert planned.tasks == loo.batches + other.batches
    assert loo.rows > 0
    assert other.seconds > 0
    assert loo.peak > 2**10
    assert planned.seconds == pytest.approx(loo.seconds + other.seconds), "one worker"


def test_the_estimate_stands_beside_what_it_took(request_of, planned):
    document = measure(request_of("planned"))
    run = document.run
    assert (run.engine, run.tasks, run.estimated) == ("one process", planned.tasks, planned.seconds)
    assert "s were planned" in str(alignment.facts(document))
    assert measure(request_of("unplanned")) == structs.replace(document, run=None), (
        "what was measured in the probe is that of the alignment"
    )


def test_the_plan_is_shown_with_its_time(planned):
    shown = plan_to_terminal(planned, 100)
    assert "gradient_x_input" in shown
    assert "on 1 worker (" in shown
    assert [in_time(seconds) for seconds in (0.5, 90, 7200)] == ["0.5 s", "1.5 min", "2 h"]


def test_probed_batches_are_spread_over_all_lengths():
    assert [*alignment_plan._spread(range(8))] == [0, 4, 2, 6, 1, 5, 3, 7]
    assert sorted(alignment_plan._spread(range(5, 16))) == [*range(5, 16)]
    assert [*alignment_plan._spread([])] == []


def test_work_is_rows_times_tokens():
    assert work_of([10], "loo", 1).rows == 2 * 10 + 11
    assert work_of([10, 4], "attnlrp", 5).tokens == 10 * (2 * 2 + PASSES) + 4 * (2 + PASSES)
