"""The evidence of a red record: which relation of the two sides is found, and what a record keeps."""

import base64
import io

import pytest
import torch
from PIL import Image

from faithcheck import check_explainer
from faithcheck.axioms.measure.evidence import FEATURES, evidence_of, relation
from faithcheck.axioms.measure.measurement import Compared
from faithcheck.axioms.measure.record import Evidence, Relation
from faithcheck.explainers import AttnLRP
from faithcheck.models import Case
from faithcheck.reports.documents.document import from_json, to_json
from faithcheck.reports.pages.colours import NEGATIVE_RELEVANCE, POSITIVE_RELEVANCE
from faithcheck.reports.pages.evidence import shown as shown_of
from faithcheck.tests.helpers import documents
from faithcheck.tests.helpers.documents import EVIDENCE
from faithcheck.tests.helpers.faults.fault import result

GENERATOR = torch.Generator().manual_seed(0)
SECOND = torch.randn(4, 6, generator=GENERATOR, dtype=torch.float64)
OTHER = torch.randn(4, 6, generator=GENERATOR, dtype=torch.float64)
PADDING = torch.zeros(4, 6, dtype=torch.bool)
PADDING[:, -1] = True
SIDES = ("the first", "the second")


def found(first, second=SECOND, **further):
    """The relation without the names of its sides."""
    found = relation(Compared(first, second, SIDES, **further))
    return found and {key: value for key, value in to_json(found).items() if key not in ("first", "second")}


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (0 * SECOND, {"kind": "zero"}),
        (-SECOND, {"kind": "factor", "value": -1.0}),
        (1.01 * SECOND, {"kind": "factor", "value": 1.01}),
        (SECOND.abs(), {"kind": "absolute"}),
        (SECOND.clamp(min=0), {"kind": "positive"}),
        (SECOND / SECOND.sum(1, keepdim=True), {"kind": "factor of each example"}),
        (SECOND + 0.25, {"kind": "offset", "value": 0.25}),
        (SECOND.roll(1, 1), {"kind": "shifted", "value": 1}),
        (SECOND[:, [1, 0, 2, 3, 5, 4]], {"kind": "order"}),
        (SECOND[:1].expand_as(SECOND), {"kind": "example"}),
        (SECOND + OTHER, None),
        (SECOND * (1 + 1e-9), None),
    ],
)
def test_the_relation_of_two_maps(first, expected):
    assert found(first) == expected


def test_shares_that_a_rule_gives_twice_are_not_called_permuted():
    left, right = torch.tensor([[0.25, 0.25, 0.5]]), torch.tensor([[0.5, 0.25, 0.25]])
    assert found(left, right) is None


def test_the_relation_of_sums_needs_more_than_one_example():
    assert found(0.5 * SECOND[:, 0], SECOND[:, 0]) == {"kind": "factor", "value": 0.5}
    assert found(0.5 * SECOND[:1, 0], SECOND[:1, 0]) is None
    assert found(torch.ones(4), SECOND[:, 0]) == {"kind": "sum", "value": 1.0}
    assert found(SECOND[:, 0] + 2, SECOND[:, 0]) == {"kind": "offset", "value": 2.0}


def test_two_different_numbers_in_another_order_say_nothing():
    """As AttnLRP's maps of (x₁x₂)x₃ and x₁(x₂x₃): quarters and halves of y, which no index is off by."""
    left, right = torch.tensor([[0.25, 0.25, 0.5]]).double(), torch.tensor([[0.5, 0.25, 0.25]]).double()
    outputs = SECOND[:, :1].abs() + 1
    assert found(left * outputs, right * outputs) is None


def test_known_mistakes_and_places_are_named():
    assert found(OTHER, mistakes={"f(x)": OTHER}) == {"kind": "mistake", "of": "f(x)"}
    assert found(SECOND + OTHER * PADDING, places={"padding": PADDING}) == {"kind": "place", "of": "padding"}


def test_a_map_that_is_not_finite_has_no_relation():
    assert found(SECOND / 0) is None


def test_a_record_keeps_the_worst_example_with_its_names():
    first = SECOND.clone()
    first[2] += OTHER[2]
    case = Case(SECOND, torch.zeros(4, dtype=torch.int64), SECOND, feature_names=[list("abcdef")] * 4)
    evidence = evidence_of(Compared(first, SECOND, SIDES), [], case)
    assert evidence.example == 2
    assert evidence.names == list("abcdef")
    assert [one.of for one in evidence.maps] == list(SIDES)
    assert evidence.maps[1].values == pytest.approx(SECOND[2].tolist(), rel=1e-5)
    assert from_json(to_json(evidence), Evidence) == evidence, "JSON's types alone"


def test_a_long_map_is_cut_and_its_length_is_said():
    long = torch.ones(2, FEATURES + 5, dtype=torch.float64)
    case = Case(long, torch.zeros(2, dtype=torch.int64), long)
    evidence = evidence_of(Compared(long, 2 * long, SIDES), [], case)
    assert [len(one.values) for one in evidence.maps] == [FEATURES, FEATURES]
    assert evidence.features == FEATURES + 5


def test_only_red_records_have_evidence():
    green = check_explainer(AttnLRP(), ["invariance"], ["product.x1x2x3", "control.mlp"])
    assert not [record for record in green if record.evidence or "evidence" in to_json(record)]


def test_a_violation_of_another_size_is_compared_with_its_prediction():
    """AttnLRP on (x1·x2)·x3 and x1·(x2·x3): Figure 1 of arXiv 2510.18810, here with a map that is halved."""
    with result(lambda a, case: a / 2).applied(AttnLRP()) as halved:
        (record,) = check_explainer(halved, ["invariance"], ["product.x1x2x3"])
    assert record.status == "inconclusive"
    evidence = record.evidence
    assert evidence.terms == [["*", ["*", "x1", "x2"], "x3"], ["*", "x1", ["*", "x2", "x3"]]]
    relation = Relation(kind="factor", value=0.5, first="the violation", second="the predicted violation")
    assert evidence.relation == relation
    f, g = (torch.tensor(one.values) for one in evidence.maps)
    torch.testing.assert_close(2 * (f - g), torch.tensor(evidence.predicted), rtol=1e-4, atol=1e-6)


# --- on a page -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", EVIDENCE)
def test_a_page_shows_the_maps_and_their_difference_each_with_a_text(layout):
    shown = shown_of(documents.record("broken claim", evidence=EVIDENCE[layout]))
    assert shown.layout == layout
    assert [one.of for one in shown.maps][:3] == ["the map of f", "the map of g", "the difference"]
    names = EVIDENCE[layout].get("names", ["x1", "x2"])
    assert shown.maps[0].text == f"the map of f: {names[0]} 0.5, {names[1]} -0.25"
    assert [cell.value for cell in shown.maps[2].cells] == [0.25, 0]
    assert ("gap", "0.31, 3e8 × the tolerance of 1e-9") in shown.facts


def test_an_image_has_a_pixel_for_each_feature():
    shown = shown_of(documents.record("broken claim", evidence=EVIDENCE["images"]))
    content = base64.b64decode(shown.maps[0].image.removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(content)) as image:
        assert image.size == (2, 1)
        red, blue = image.getpixel((0, 0)), image.getpixel((1, 0))
    assert red == POSITIVE_RELEVANCE
    assert blue[2] > blue[1] > blue[0] > NEGATIVE_RELEVANCE[0], "half as strong, and so paler"


def test_a_tree_has_the_relevance_of_each_input_below_its_leaf():
    f, g = shown_of(documents.record("broken claim", evidence=EVIDENCE["trees"])).trees
    assert (f.text, g.text) == ("x1·x2", "exp(x1) + x2")
    leaves = {node.text: node.leaf.text for node in g.nodes if node.leaf}
    assert leaves == {"x1": "0.25", "x2": "-0.25"}
    assert len(g.lines) == 3


def test_the_table_says_what_it_leaves_out():
    values = [0.0] * 30 + [1.0]
    maps = [{"of": side, "values": values} for side in SIDES]
    evidence = {"example": 0, "examples": 1, "features": 900, "maps": maps}
    table = shown_of(documents.record("broken claim", evidence=evidence)).table
    assert len(table.rows) == 12
    assert table.note == "12 of 900 features, those with the largest numbers; the document keeps the first 31"


def test_terms_that_are_nested_too_deeply_are_not_drawn():
    term = "x1"
    for _ in range(50):
        term = ["exp", term]
    evidence = {**EVIDENCE["trees"], "terms": [term, term]}
    for tree in shown_of(documents.record("broken claim", evidence=evidence)).trees:
        assert tree.nodes == []
        assert "too deeply" in tree.text


def test_a_number_that_json_does_not_have_is_drawn_as_0():
    maps = [{"of": side, "values": ["nan", 1.0]} for side in SIDES]
    shown = shown_of(documents.record("broken claim", evidence={**EVIDENCE["bars"], "maps": maps}))
    assert [cell.value for cell in shown.maps[0].cells] == [0.0, 1.0]
