"""What is red, by cause: how records are put together, and which likely cause a card names."""

import re
from pathlib import Path

import pytest

from faithcheck.axioms import AXIOMS
from faithcheck.axioms.measure.record import Evidence, Relation
from faithcheck.reports.causes import causes
from faithcheck.reports.documents.results import Failure
from faithcheck.reports.likely_causes import likely_cause
from faithcheck.tests.helpers.documents import document, record


def broken(subject, gap=0.31, **changed):
    """A broken claim of `mine` on this subject."""
    axiom = changed.setdefault("axiom", "invariance")
    name = f"{axiom}/mine-{subject}"
    return record("broken claim", id=name, explainer="mine", subject=subject, gap=gap, **changed)


def error(subject, message, **changed):
    """A check of `mine` on this subject that raised an error with this message."""
    return record("error", explainer="mine", subject=subject, detail={"error": message}, **changed)


def test_81_records_of_one_cause_are_one_card():
    found = causes(document([broken(f"family.pair{i}", gap=i / 100) for i in range(1, 82)]))
    assert [cause.count for cause in found] == [81]
    assert found[0].message == "expected to hold, but the gap … is above the tolerance 1e-9"
    assert [r.gap for r in found[0].records][:2] == [0.81, 0.8], "the worst first"


def test_what_is_the_same_in_all_messages_stays():
    (cause,) = causes(document([broken("a.b"), broken("c.d")]))
    assert cause.message == "expected to hold, but the gap 0.31 is above the tolerance 1e-9"


def test_other_axioms_explainers_and_statuses_are_other_causes():
    records = [
        broken("a.b"),
        broken("a.b", axiom="completeness"),
        record("broken claim", explainer="yours", subject="a.b"),
        record("inconclusive", explainer="mine", subject="a.b"),
    ]
    found = causes(document(records))
    assert [cause.count for cause in found] == [1, 1, 1, 1]
    assert len({cause.title for cause in found}) == 4, "each link of the page says another thing"


def test_one_error_in_checks_of_several_axioms_is_one_cause():
    message = "InvalidAttribution: expected the inputs' torch.float64, got float32 ({}, 6) on cpu"
    records = [error("a.b", message.format(i), axiom=axiom) for i, axiom in enumerate(["trace", "loo", "trace"])]
    (cause,) = causes(document(records))
    assert (cause.axiom, cause.count) == ("loo, trace", 3)
    assert "got float32 … on cpu" in cause.message
    assert cause.title == f"loo, trace: mine: {cause.message}"
    assert "wrong dtype" in cause.likely


def test_the_cause_with_the_most_records_comes_first():
    records = [broken("a.b", axiom="completeness"), broken("a.b"), broken("c.d")]
    assert [cause.axiom for cause in causes(document(records))] == ["invariance", "completeness"]


def test_failed_tests_without_a_record_are_causes_too():
    failures = [Failure(id=f"test_x.py::test[{i}]", message=f"RuntimeError: layer {i} is broken") for i in range(3)]
    (cause,) = causes(document([], failures=failures))
    assert (cause.axiom, cause.message, cause.count) == ("", "RuntimeError: layer … is broken", 3)
    assert cause.title == "failed test: RuntimeError: layer … is broken"
    assert cause.failures == tuple(failures)


def test_green_records_have_no_cause():
    assert causes(document([record("holds"), record("recorded"), record("unsupported"), record("not run")])) == []


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ("hooks (encoder.0 and 4 more)", "handle.remove()"),
        ("train mode (Model)", "another mode"),
        (".grad (weight), when the model failed", "torch.autograd.grad"),
        ("random state of torch", "Generator"),
    ],
)
def test_what_an_explainer_leaves_behind_is_named(left, words):
    (cause,) = causes(document([broken("a.b", axiom="trace", detail={"left behind": left})]))
    assert left.split(" (")[0] in cause.message
    assert words in cause.likely


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("InvalidAttribution: expected shape (batch, features) = (4, 6), got float64 (4, 6, 16) on cpu", "coordinate"),
        ("InvalidAttribution: expected shape (batch, features) = (4, 6), got float64 (4, 5) on cpu", "wrong shape"),
        ("InvalidAttribution: 3 of 24 values are NaN or infinite", "division by zero"),
        ("TypeError: attribute() got an unexpected keyword argument 'x'", "signature"),
        ("the explainer refused, although HOLDS is expected: matmul: no rule for this operation", "no rule"),
        ("ValueError: something new", "traceback"),
    ],
)
def test_an_error_is_explained_by_its_message(message, words):
    assert words in likely_cause([error("a.b", message)], {})


def test_where_the_records_do_not_tell_the_usual_cause_of_the_axiom_is_said():
    red = document([broken("a.b", axiom="dummy")], usual_causes={"dummy": "noise is added"})
    (cause,) = causes(red)
    assert cause.likely == "The records name no single cause. The usual one for dummy: noise is added."


def test_every_built_in_axiom_has_a_usual_cause():
    built_in = [axiom for axiom in AXIOMS.values() if axiom.measure.__module__.startswith("faithcheck.axioms.")]
    assert [axiom.name for axiom in built_in if not axiom.usual_cause] == []


def test_an_axiom_that_is_not_built_in_is_not_guessed_at():
    assert "name no single cause" in likely_cause([broken("a.b", axiom="my_axiom")], {})


def test_the_page_on_red_axioms_says_the_same_as_the_cards():
    page = (Path(__file__).resolve().parents[2] / "docs/reference/red_by_axiom.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, flags=re.DOTALL | re.MULTILINE))
    assert sections
    assert sections.keys() <= AXIOMS.keys()
    for axiom, section in sections.items():
        assert f"The usual cause: {AXIOMS[axiom].usual_cause}." in " ".join(section.split())


def test_the_families_of_a_usual_cause_are_named_where_others_are_green():
    held = [record("holds", explainer="mine", subject=subject) for subject in ("product.x", "gated.y", "control.z")]
    (cause,) = causes(document([broken("attention.a"), broken("attention.b"), *held]))
    assert cause.likely.endswith("Red on attention.* alone, not on 3 other families.")
    (cause,) = causes(document([broken("attention.a")]))
    assert "alone" not in cause.likely


def test_a_claim_that_was_not_measured_has_no_usual_cause():
    (cause,) = causes(document([record("not measured", explainer="mine", subject="*")]))
    assert "claim less" in cause.likely


def related(kind, value=None, **changed):
    """A broken claim with this relation of the map of f to that of g."""
    relation = Relation(kind=kind, first="the map of f", second="the map of g", value=value)
    return broken(evidence=Evidence(example=0, examples=2, features=3, maps=[], relation=relation), **changed)


def test_what_to_mend_first_comes_first():
    usual = [broken(f"a.b{i}", axiom="dummy") for i in range(3)]
    named = [related("order", subject=f"c.d{i}") for i in range(2)]
    of_the_batch = related("examples", subject="e.f", axiom="batching")
    found = causes(document([*usual, *named, of_the_batch, error("g.h", "ValueError: no", axiom="symmetry")]))
    assert [cause.axiom for cause in found] == ["symmetry", "batching", "invariance", "dummy"]
    (first, *_) = causes(document([*usual, error("g.h", "ValueError: no"), broken("i.j", axiom="determinism")]))
    assert "another map each time" in first.likely


def test_factors_that_differ_are_no_constant_factor():
    (same,) = causes(document([related("factor", 0.5, subject=f"a.b{i}") for i in range(2)]))
    (other,) = causes(document([related("factor", 0.5 / (i + 1), subject=f"a.b{i}") for i in range(2)]))
    assert "0.5 times the map of g on every example: a constant factor" in same.likely
    assert "differs from check to check, 0.25 to 0.5" in other.likely


def test_a_factor_of_a_map_in_a_batch_is_a_factor_of_the_batch():
    (cause,) = causes(document([related("factor of each example", subject="a.b", axiom="batching")]))
    assert "by another factor on each example: the map is normalised by a number of the whole batch" in cause.likely
