"""What is measured on the f of several pairs is measured once, and only where it would be repeated."""

import copy
import random
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from faithcheck import Settings
from faithcheck.axioms.fast import measured_once
from faithcheck.axioms.measure.record import Record
from faithcheck.explainers import GradientTimesInput, Unsupported, builtin_explainers
from faithcheck.explainers.gradients import CompletenessWarning
from faithcheck.explainers.lrp.rules_met import record_rules, recording_rules
from faithcheck.models import case as case_module
from faithcheck.models import registered_pairs
from faithcheck.plan import plan

NAMES = ("permutation.heads_bert", "rescaling.key_bias_bert", "folding.norm_bert")
PAIRS = [registered_pairs()[name] for name in NAMES]
AGAIN = Settings(reuse=True)


@pytest.fixture(autouse=True)
def nothing_kept():
    measured_once.forget()
    yield
    measured_once.forget()


class Counts:
    """Gradient × input that notes the class of each model that it explains."""

    name = "counts"

    def __init__(self):
        self.seen = []

    def attribute(self, model, case):
        self.seen.append(type(model).__name__)
        return GradientTimesInput().attribute(model, case)


class Draws:
    """An attribution of random numbers of all generators."""

    name = "draws"

    def attribute(self, model, case):
        return torch.rand_like(case.inputs[:, :, 0]) + random.random() + float(np.random.rand())


def records(explainer, settings, pairs=PAIRS, axiom="invariance") -> list[Record]:
    explainers = [explainer] if explainer else []
    return [check.run(settings) for check in plan(axiom, explainers, pairs)]


@pytest.mark.parametrize(
    "name", ["gradient_x_input", "loo", "attnlrp", "attention_rollout", "readout_gate", "deeplift_rescale"]
)
def test_records_are_the_same_as_if_all_was_measured(name):
    anew, again = (records(builtin_explainers()[name], settings) for settings in (Settings(), AGAIN))
    assert again == anew
    assert not any(record.reused for record in anew)
    measured = [record for record in again if record.status != "unsupported"]
    assert [record.reused for record in measured] == [False, True, True][: len(measured)]


def test_equivalence_measures_f_once_for_all_pairs():
    anew, again = (records(None, settings, axiom="equivalence") for settings in (Settings(), AGAIN))
    assert again == anew
    assert [record.reused for record in again] == [False, True, True]


def test_random_numbers_are_those_that_a_measurement_would_have_left():
    anew, again = (records(Draws(), settings) for settings in (Settings(), AGAIN))
    assert [record.gap for record in again] == [record.gap for record in anew]
    assert all(record.gap > 0.1 for record in again)
    assert again[1].reused


def test_an_explainer_is_asked_once_about_f():
    explainer = Counts()
    records(explainer, AGAIN)
    assert len(explainer.seen) == 1 + len(PAIRS)


def test_warnings_come_with_what_is_used_again():
    class Warns(GradientTimesInput):
        def attribute(self, model, case):
            warnings.warn("too coarse", CompletenessWarning, stacklevel=1)
            return super().attribute(model, case)

    again = records(Warns(name="warns"), AGAIN)
    assert [record.detail["warning"] for record in again] == ["too coarse; too coarse"] * 3


def test_a_refusal_is_not_kept():
    class Refuses(Counts):
        def attribute(self, model, case):
            super().attribute(model, case)
            raise Unsupported("no rule")

    explainer = Refuses()
    assert {record.status for record in records(explainer, AGAIN)} == {"unsupported"}
    assert len(explainer.seen) == 3


def attribute_changed(explainer, monkeypatch):
    explainer.weight = 2


def function_replaced(explainer, monkeypatch):
    monkeypatch.setattr(case_module, "select_target", lambda *arguments: original(*arguments))


original = case_module.select_target


@pytest.mark.parametrize("change", [attribute_changed, function_replaced])
def test_nothing_is_used_again_after_a_change(change, monkeypatch):
    explainer = Counts()
    records(explainer, AGAIN, PAIRS[:1])
    assert records(explainer, AGAIN, PAIRS[1:2])[0].reused
    change(explainer, monkeypatch)
    assert not records(explainer, AGAIN, PAIRS[2:])[0].reused


def test_another_case_is_measured():
    explainer = Counts()
    records(explainer, AGAIN, PAIRS[:1])
    other = replace(PAIRS[1], case=lambda *how: replace(PAIRS[1].case(*how), inputs=PAIRS[1].case(*how).inputs + 1))
    assert not records(explainer, AGAIN, [other])[0].reused


def test_nothing_is_used_again_after_a_trace():
    class Leaves(Counts):
        def attribute(self, model, case):
            model.train()
            return super().attribute(model, case)

    assert not any(record.reused for record in records(Leaves(), AGAIN))


def test_a_pair_with_another_build_is_not_taken_for_that_of_the_base():
    pair = PAIRS[0]

    def build(seed, dtype, device):
        f, _ = pair.build(seed, dtype, device)
        with torch.no_grad():
            f.model.classifier.weight.mul_(2)
        return f, copy.deepcopy(f)

    explainer = Counts()
    records(explainer, AGAIN, [pair])
    assert not records(explainer, AGAIN, [replace(pair, build=build)])[0].reused


def asked_twice(measure, between=lambda: None):
    """The results of one question about a shared model, asked twice, and the rules that the second one met."""
    pair = PAIRS[0]
    model, case = pair.build(0, torch.float64, torch.device("cpu"))[0], pair.case(0, torch.float64, torch.device("cpu"))
    measured_once.share(model)
    once = measured_once.measured_once(lambda model, case: measure())
    with measured_once.reusing():
        torch.manual_seed(0)
        first = once(model, case)
        torch.manual_seed(0)
        between()
        with recording_rules() as rules:
            return first, once(model, case), rules


def test_other_random_states_are_measured():
    first, again, _ = asked_twice(lambda: float(torch.rand(1)))
    assert again == first
    first, other, _ = asked_twice(lambda: float(torch.rand(1)), between=lambda: torch.manual_seed(1))
    assert other != first


def test_the_rules_that_a_measurement_met_count_again():
    answers = iter([1, 2])

    def measure():
        record_rules(["softmax"])
        return next(answers)

    assert asked_twice(measure) == (1, 1, {"softmax"})


def test_the_plain_switch_measures_anew(monkeypatch):
    answers = iter([1, 2])
    monkeypatch.setenv("FAITHCHECK_PLAIN", "1")
    assert asked_twice(lambda: next(answers))[:2] == (1, 2)


def test_other_arguments_are_measured():
    pair, measured = PAIRS[0], []
    model, case = pair.build(0, torch.float64, torch.device("cpu"))[0], pair.case(0, torch.float64, torch.device("cpu"))
    measured_once.share(model)
    once = measured_once.measured_once(lambda model, case, argument: measured.append(argument))
    with measured_once.reusing():
        for argument in ("a", "b", "a"):
            once(model, case, argument)
    assert measured == ["a", "b"]


def test_what_an_explainer_writes_to_its_map_later_is_not_used():
    class Rewrites(GradientTimesInput):
        def attribute(self, model, case):
            held.append(super().attribute(model, case))
            for earlier in held[:-1]:
                earlier.zero_()
            return held[-1]

    held = []
    anew = records(GradientTimesInput(), Settings())
    assert [record.gap for record in records(Rewrites(name="rewrites"), AGAIN)] == [record.gap for record in anew]
