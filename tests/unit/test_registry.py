"""The registry of pairs: enough pairs and families, pairs on every architecture, an expectation for every explainer."""

import inspect
import re
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from faithcheck.axioms.equivalence_tests.circumstances import Consistency, from_package, has_code_from_elsewhere
from faithcheck.axioms.equivalence_tests.forward_and_gradient import forward_and_gradient
from faithcheck.axioms.equivalence_tests.input_scale import Scale
from faithcheck.axioms.equivalence_tests.large_batch import large_batch
from faithcheck.axioms.measure.roundoff import tolerance
from faithcheck.models.architectures.base_models import ARCHITECTURES
from faithcheck.models.case import Case
from faithcheck.models.expectation import INVARIANT_BY_DEFINITION, expect_lrp
from faithcheck.models.pair import NotAPair, Pair, registered_pairs
from faithcheck.models.transform import registered_transforms

PAIRS = registered_pairs()
COUNTED = {name: pair for name, pair in PAIRS.items() if "invariance" in pair.axioms and not pair.control}
TRANSFORMS = registered_transforms()
EXPLAINERS = ("loo", "integrated_gradients", "gradient_x_input", "attnlrp", "cplrp")
LINES, WORDS = 25, 4


def test_there_are_enough_pairs_in_enough_families():
    assert not [name for name in COUNTED if name.startswith(("control.", "probe."))]  # models beside their copies
    families = Counter(name.partition(".")[0] for name in COUNTED)
    assert len(COUNTED) >= 40, families
    assert len(families) >= 8, families


def test_the_five_architectures_of_the_papers_are_found():
    assert {"bert", "roberta", "gpt2", "llama", "vit"} <= ARCHITECTURES.keys()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_architecture_has_pairs_of_several_families(architecture):
    by_name = {name: pair for name, pair in COUNTED.items() if name.endswith(f"_{architecture}")}
    assert len({name.partition(".")[0] for name in by_name}) >= 4, sorted(by_name)
    for name, pair in by_name.items():
        models = pair.build(0, torch.float64, torch.device("cpu"))
        base_models = [m for model in models for m in model.modules() if isinstance(m, PreTrainedModel)]
        # The model is unmodified: its class is one of transformers' own.
        assert {type(m).__module__.split(".")[2] for m in base_models} == {architecture}, name


def without_expectation(pair):
    """The explainers of which a pair expects nothing under invariance, or gives too short a reason."""
    expectations = {explainer: pair.expected.get(("invariance", explainer)) for explainer in EXPLAINERS}
    return [
        explainer
        for explainer, expectation in expectations.items()
        if expectation is None or expectation.verdict == "UNCLAIMED" or len(expectation.why.split()) < WORDS
    ]


def test_every_pair_has_an_expectation_for_every_explainer():
    missing = {name: explainers for name, pair in COUNTED.items() if (explainers := without_expectation(pair))}
    assert not missing


def source(function):
    """The lines of a pair's or transform's function from ``def`` on: the decorator's arguments are data."""
    while isinstance(function, partial):
        function = function.func
    lines = inspect.getsource(function if inspect.isroutine(function) else type(function)).splitlines()
    return lines[next(i for i, line in enumerate(lines) if re.match(r" *(def|class) ", line)) :]


def test_every_pair_is_a_short_function():
    functions = {name: pair.build for name, pair in PAIRS.items()}
    functions |= {name: transform.change for name, transform in TRANSFORMS.items()}
    long = {name: len(lines) for name, function in functions.items() if len(lines := source(function)) >= LINES}
    assert not long


def test_every_name_is_family_and_member():
    assert not [name for name in (*PAIRS, *TRANSFORMS) if not re.fullmatch(r"[a-z0-9_]+\.[a-z0-9_]+", name)]


def test_every_transform_makes_a_pair_on_each_of_its_base_models():
    expected = {
        f"{transform.name}_{base_model}" for transform in TRANSFORMS.values() for base_model in transform.base_models
    }
    assert expected <= set(COUNTED)


def test_a_missing_expectation_is_found():
    pair = Pair("a.b", lambda *how: None, lambda *how: None, "because", expected=INVARIANT_BY_DEFINITION)
    assert without_expectation(pair) == ["attnlrp", "cplrp"]
    short = replace(pair, expected={**INVARIANT_BY_DEFINITION, **expect_lrp("halves")})
    assert without_expectation(short) == ["attnlrp", "cplrp"]
    complete = {**INVARIANT_BY_DEFINITION, **expect_lrp("each product of data halves relevance", floor=0.1)}
    assert without_expectation(replace(pair, expected=complete)) == []


def call_often(model, case):
    """Refuse a model that depends on how often, and on what, it was called before."""
    computed = forward_and_gradient("the model", model, case)
    batch = large_batch(case, computed.outputs.shape[1])
    of_batch = forward_and_gradient("the model", model, batch)
    scale = Scale.of(of_batch, batch.target, case.inputs.dtype, tolerance(case.inputs))
    Consistency("the model", model, case, computed, scale).when_called_often(batch)


@pytest.mark.slow
def test_no_model_of_the_registry_depends_on_how_often_it_was_called():
    """Equivalence calls models with code from elsewhere often: those of the registry are called here.

    The models of torch and transformers are trusted, so that one with each set of other classes is enough.
    """
    where, called = (0, torch.float64, torch.device("cpu")), set[frozenset[type]]()
    for pair in PAIRS.values():
        for model in pair.build(*where):
            classes = frozenset(c for c in map(type, model.modules()) if not from_package(c, "torch", "transformers"))
            if classes not in called and not has_code_from_elsewhere(model):
                call_often(model, pair.case(*where))
                called.add(classes)
    assert len(called) > 30


class Counts(nn.Linear):
    """Another function from its 100th call on."""

    calls = 0

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs) * (1 + (self.calls > 99))


def test_a_model_that_counts_its_calls_is_refused():
    model, inputs = Counts(3, 2, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    assert has_code_from_elsewhere(model)
    with pytest.raises(NotAPair, match=r"in call \d+ of 150"):
        call_often(model, Case(inputs, torch.zeros(2, dtype=torch.int64), torch.zeros_like(inputs)))
