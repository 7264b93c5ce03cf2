"""The registry reaches what it claims: so many pairs, on these architectures, an expectation stated in every cell."""

import inspect
import re
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import PreTrainedModel

from faithcheck.models.pair import INVARIANT_BY_DEFINITION, Pair, expect_lrp, registered_pairs
from faithcheck.models.transform import registered_transforms

PAIRS = registered_pairs()
COUNTED = {name: pair for name, pair in PAIRS.items() if "invariance" in pair.axioms and not pair.control}
TRANSFORMS = registered_transforms()
STATED = ("loo", "integrated_gradients", "gradient_x_input", "attnlrp", "cplrp")
ARCHITECTURES = ("bert", "roberta", "gpt2", "llama", "vit")
LINES, WORDS = 25, 4


def test_there_are_enough_pairs_in_enough_families():
    assert not [name for name in COUNTED if name.startswith(("control.", "probe."))]  # models beside their copies
    families = Counter(name.partition(".")[0] for name in COUNTED)
    assert len(COUNTED) >= 40, families
    assert len(families) >= 8, families


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_architecture_has_pairs_of_several_families(architecture):
    named = {name: pair for name, pair in COUNTED.items() if name.endswith(f"_{architecture}")}
    assert len({name.partition(".")[0] for name in named}) >= 4, sorted(named)
    for name, pair in named.items():
        models = pair.build(0, torch.float64, torch.device("cpu"))
        base_models = [m for model in models for m in model.modules() if isinstance(m, PreTrainedModel)]
        # Unmodified: the class is one of transformers' own.
        assert {type(m).__module__.split(".")[2] for m in base_models} == {architecture}, name


def unstated(pair):
    """The cells of invariance that a pair says nothing, or not enough, of."""
    cells = {explainer: pair.expected.get(("invariance", explainer)) for explainer in STATED}
    return [
        explainer
        for explainer, cell in cells.items()
        if cell is None or cell.verdict == "UNCLAIMED" or len(cell.why.split()) < WORDS
    ]


def test_every_cell_is_stated():
    missing = {name: cells for name, pair in COUNTED.items() if (cells := unstated(pair))}
    assert not missing


def source(function):
    """The lines that make a pair or a transform, from ``def`` on: what its decorator expects is data."""
    while isinstance(function, partial):
        function = function.func
    lines = inspect.getsource(function if inspect.isroutine(function) else type(function)).splitlines()
    return lines[next(i for i, line in enumerate(lines) if re.match(r" *(def|class) ", line)) :]


def test_every_pair_is_a_short_function():
    made = {**{name: pair.build for name, pair in PAIRS.items()}, **{name: g.change for name, g in TRANSFORMS.items()}}
    long = {name: len(lines) for name, function in made.items() if len(lines := source(function)) >= LINES}
    assert not long


def test_every_name_is_family_and_member():
    assert not [name for name in (*PAIRS, *TRANSFORMS) if not re.fullmatch(r"[a-z0-9_]+\.[a-z0-9_]+", name)]


def test_every_gauge_stands_on_its_hosts():
    expected = {
        f"{transform.name}_{base_model}" for transform in TRANSFORMS.values() for base_model in transform.base_models
    }
    assert expected <= set(COUNTED)


def test_what_is_not_stated_is_found():
    pair = Pair("a.b", lambda *how: None, lambda *how: None, "because", expected=INVARIANT_BY_DEFINITION)
    assert unstated(pair) == ["attnlrp", "cplrp"]
    assert unstated(replace(pair, expected={**INVARIANT_BY_DEFINITION, **expect_lrp("halves")})) == ["attnlrp", "cplrp"]
    stated = {**INVARIANT_BY_DEFINITION, **expect_lrp("each product of data halves relevance", floor=0.1)}
    assert unstated(replace(pair, expected=stated)) == []
