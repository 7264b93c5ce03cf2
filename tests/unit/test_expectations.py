"""Expectations from a file: how they change a verdict, when they are stale, and which files are refused."""

import sys
import time

import pytest
import torch

from faithcheck import Settings, check_explainer
from faithcheck.explainers import AttnLRP, GradientTimesInput
from faithcheck.models import registered_pairs
from faithcheck.options import OptionError
from faithcheck.options.computing import choose_timeout
from faithcheck.options.expectations import load, refuse_stale
from faithcheck.plan import plan
from faithcheck.reports.pages import wording

CONTROL, PRODUCT = (registered_pairs()[name] for name in ("control.mlp", "product.x1x2x3"))

ENTRY = {
    "axiom": "invariance",
    "explainer": "mine",
    "subject": "product.*",
    "verdict": "VIOLATES",
    "floor": 0.1,
    "reason": "known",
}


def toml(path, *entries):
    lines = []
    for entry in entries:
        lines += ["[[expectation]]", *(f"{key} = {value!r}" for key, value in entry.items())]
    path.write_text("\n".join(lines))
    return path


def entry(**changes):
    return {key: value for key, value in {**ENTRY, **changes}.items() if value is not None}


class Raises:
    name = "raises"

    def attribute(self, model, case):
        raise RuntimeError("a tensor of three axes, not two")


class Satisfies:
    """Satisfies invariance and raises nothing."""

    def __init__(self, name):
        self.name = name

    def attribute(self, model, case):
        return GradientTimesInput().attribute(model, case)


def run(explainer, supplied, axiom="invariance", pair=PRODUCT):
    (record,) = plan(axiom, [explainer], [pair], supplied)[:1]
    return record.run(Settings())


class Halved:
    """AttnLRP under another name: it claims invariance and violates it on x₁x₂x₃."""

    name = "mine"
    claims = frozenset({"invariance"})

    def attribute(self, model, case):
        return AttnLRP().attribute(model, case)


def test_an_expected_violation_is_green(tmp_path):
    assert run(Halved(), []).status == "broken claim"
    record = run(Halved(), load(toml(tmp_path / "e.toml", entry(cite="Eq. 3"))))
    assert (record.status, record.why, record.cite, record.floor) == ("predicted violation", "known", "Eq. 3", 0.1)
    assert run(Halved(), load(toml(tmp_path / "e.toml", entry(floor=1.5)))).status == "inconclusive"
    assert run(Halved(), load(toml(tmp_path / "e.toml", entry(ceiling=0.9)))).status == "predicted violation"
    assert run(Halved(), load(toml(tmp_path / "e.toml", entry(ceiling=0.2)))).status == "inconclusive"


def test_an_axiom_can_be_expected_to_hold_up_to_a_ceiling(tmp_path):
    def holding(ceiling):
        return load(toml(tmp_path / "e.toml", entry(verdict="HOLDS", floor=None, ceiling=ceiling)))

    assert run(Halved(), holding(0.9)).status == "holds"
    record = run(Halved(), holding(1e-3))
    assert record.status == "broken claim"
    assert "expected to hold up to a gap of 0.001, but the gap is" in wording.sentence(record)


def test_an_expected_violation_that_vanished_is_red(tmp_path):
    record = run(Satisfies("mine"), load(toml(tmp_path / "e.toml", entry())))
    assert record.status == "violation vanished"
    assert not record.passed


def test_an_explainer_without_claims_can_be_expected_to_hold(tmp_path):
    class Silent(Halved):
        claims = frozenset()

    assert run(Silent(), []).status == "recorded"
    holds = load(toml(tmp_path / "e.toml", entry(verdict="HOLDS", floor=None)))
    assert run(Silent(), holds).status == "broken claim"


def test_an_expected_error_is_green_and_red_if_it_vanished_or_differs(tmp_path):
    def expecting(error):
        changed = entry(explainer="rais*", verdict="ERROR", floor=None, error=error)
        return load(toml(tmp_path / "e.toml", changed))

    assert run(Raises(), []).status == "error"
    assert run(Raises(), expecting("RuntimeError: a tensor of three axes")).status == "expected error"
    assert run(Raises(), expecting("out of memory")).status == "error"

    record = run(Satisfies("raises"), expecting("three axes"))
    assert record.status == "violation vanished"
    assert "an error is expected and there was none" in wording.sentence(record)


def test_the_file_takes_precedence_over_pair_and_explainer_on_its_subject_alone(tmp_path):
    supplied = load(toml(tmp_path / "e.toml", entry(explainer="attnlrp", verdict="HOLDS", floor=None)))
    assert run(AttnLRP(), []).status == "predicted violation"
    assert run(AttnLRP(), supplied).status == "broken claim"
    assert run(AttnLRP(), supplied, pair=CONTROL).status == "holds"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "expected tables"),
        ([entry(reason=None)], "expectation 1: needs a text for reason"),
        ([entry(reason=" ")], "needs a text for reason"),
        ([entry(), entry(axiom=7)], "expectation 2: needs a text for axiom"),
        ([entry(verdict="UNCLAIMED")], "verdict is one of HOLDS, VIOLATES, ERROR, got 'UNCLAIMED'"),
        ([entry(floor=None)], "VIOLATES needs a floor"),
        ([entry(floor=-1.0)], "above 0 and finite"),
        ([entry(ceiling=0.01)], "or of VIOLATES above its floor"),
        ([entry(ceiling="much")], "ceiling cannot be 'much'"),
        ([entry(floor="much")], "floor cannot be 'much'"),
        ([entry(verdict="HOLDS")], "other verdicts neither"),
        ([entry(verdict="ERROR", floor=None)], "ERROR takes error="),
        ([entry(flor=0.1)], "unknown flor; known: axiom"),
    ],
)
def test_a_malformed_file_of_expectations_is_refused(tmp_path, entries, message):
    with pytest.raises(OptionError, match=message):
        load(toml(tmp_path / "e.toml", *entries))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axiom": "invarianse"}, "unknown axiom 'invarianse': did you mean invariance"),
        ({"explainer": "mime"}, "unknown explainer 'mime'"),
        ({"subject": "prodct.*"}, "unknown subject 'prodct"),
        ({"subject": "product.x1x2x3.f"}, "unknown subject"),
    ],
)
def test_a_stale_entry_is_refused_before_the_run(tmp_path, change, message):
    with pytest.raises(OptionError, match=message):
        refuse_stale([Halved()], [PRODUCT], load(toml(tmp_path / "e.toml", entry(**change))))


class Hangs:
    name = "hangs"

    def attribute(self, model, case):
        for swallowed in range(2):
            try:
                while True:
                    time.sleep(0.01)
            except:  # noqa: E722
                if swallowed:
                    raise


class Leaves:
    name = "leaves"

    def attribute(self, model, case):
        sys.exit(0)


def test_an_explainer_that_calls_exit_is_an_error_and_the_run_continues():
    (record,) = check_explainer(Leaves(), ["invariance"], [PRODUCT])
    assert (record.status, record.detail["error"]) == ("error", "SystemExit: 0")


def test_two_entries_of_one_check_are_refused(tmp_path):
    supplied = load(toml(tmp_path / "e.toml", entry(), entry(subject="product.x1x2x3", verdict="HOLDS", floor=None)))
    with pytest.raises(OptionError, match=r"two expectations of mine-product.x1x2x3 .* \(mine on product.\* and"):
        refuse_stale([Halved()], [PRODUCT], supplied)


def test_an_explainer_that_hangs_is_stopped():
    (record,) = check_explainer(Hangs(), ["invariance"], [PRODUCT], Settings(timeout=0.1))
    assert record.status == "error"
    assert "TimedOut: still running after 0.1 s" in record.detail["error"]
    assert "time.sleep(0.01)" in record.traceback
    (after,) = check_explainer(GradientTimesInput(), ["invariance"], [PRODUCT], Settings(timeout=60))
    assert after.status == "holds"


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_time_limit_is_refused(seconds):
    with pytest.raises(OptionError, match="--explainer-timeout: the seconds are above 0 and finite"):
        choose_timeout(seconds)


class NeedsAGPU:
    name = "needs_a_gpu"

    def attribute(self, model, case):
        return GradientTimesInput().attribute(model.cuda(), case)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_the_error_of_an_explainer_that_needs_a_gpu_says_so():
    (record,) = check_explainer(NeedsAGPU(), ["invariance"], [CONTROL])
    assert record.status == "error"
    assert record.detail["error"].startswith(
        "it needs a GPU and there is none here (AssertionError: Torch not compiled"
    )
    assert "--device=cuda" in record.detail["error"]
