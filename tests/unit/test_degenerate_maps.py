"""Checks that hold on degenerate maps, which say little: they are found, counted and named in every report."""

from functools import partial

import pytest
import torch

from faithcheck import check_explainer
from faithcheck.axioms.measure.settling import kinds_of
from faithcheck.explainers import GradientTimesInput, LeaveOneOut
from faithcheck.models import registered_pairs
from faithcheck.models.case import output_difference
from faithcheck.reports.pages import report, terminal, wording
from faithcheck.tests.helpers.documents import document, record

PAIR, MLP = (registered_pairs()[f"control.{name}"] for name in ("bert", "mlp"))


class Gives:
    """An explainer that makes its map from that of gradient × input."""

    name = "gives"

    def __init__(self, change):
        self.change = change

    def attribute(self, model, case):
        return self.change(GradientTimesInput().attribute(model, case))


def one_hot(attribution, place=0):
    return torch.zeros_like(attribution).index_fill(1, torch.tensor(place), 1)


def at_another_place_for_each_example(attribution):
    return torch.eye(attribution.shape[1]).to(attribution)[torch.arange(len(attribution)) % attribution.shape[1]]


def nearly(attribution):
    return one_hot(attribution) + 1e-9 * torch.arange(attribution.shape[1]).to(attribution)


def first_example_alone(attribution):
    return torch.cat([one_hot(attribution)[:1], attribution[1:]])


DEGENERATE = {
    "zero": [torch.zeros_like],
    "constant": [torch.ones_like, lambda a: a.sum(1, keepdim=True).expand_as(a).clone()],
    "one-hot": [one_hot, at_another_place_for_each_example, nearly],
    "": [lambda a: a, first_example_alone, torch.abs],
}


@pytest.mark.parametrize(
    ("kind", "change"), [(kind, change) for kind, changes in DEGENERATE.items() for change in changes]
)
@pytest.mark.parametrize("axiom", ["invariance", "determinism"])
def test_a_check_on_degenerate_maps_says_in_which_way(kind, change, axiom):
    found, *_ = check_explainer(Gives(change), [axiom], [PAIR])
    assert (found.status, found.gap, found.degenerate) == ("recorded", 0, kind)


def test_examples_that_are_degenerate_in_several_ways_say_all():
    def change(attribution):
        return torch.cat([torch.zeros_like(attribution[:1]), torch.ones_like(attribution[1:])])

    (found,) = check_explainer(Gives(change), ["invariance"], [PAIR])
    assert found.degenerate == "constant or zero"


def test_a_search_on_degenerate_maps_says_so():
    (found,) = check_explainer(Gives(torch.zeros_like), ["generated"], [registered_pairs()["generated.search"]])
    assert (found.gap, found.degenerate) == (0, "zero")


@pytest.mark.parametrize("pair", ["product.x1x2x3", "control.product"])
def test_maps_that_are_degenerate_as_the_function_is_are_not_named(pair):
    (found,) = check_explainer(LeaveOneOut(), ["invariance"], [registered_pairs()[pair]])
    assert (found.status, found.degenerate) == ("holds", ""), "leaving out any factor of a product leaves 0"


def test_zero_is_named_where_the_function_has_constant_maps():
    (found,) = check_explainer(Gives(torch.zeros_like), ["invariance"], [registered_pairs()["product.x1x2x3"]])
    assert found.degenerate == "zero"


def test_a_check_against_a_reference_says_something_of_any_map():
    class AllToFirst:
        name = "all_to_first"

        def attribute(self, model, case):
            return one_hot(case.inputs) * output_difference(model, case).unsqueeze(1)

    complete, same = (check_explainer(AllToFirst(), [axiom], [MLP])[0] for axiom in ("completeness", "determinism"))
    assert complete.gap < 1e-12
    assert (complete.degenerate, same.degenerate) == ("", "one-hot")


def test_padding_and_examples_of_one_feature_do_not_count():
    maps = torch.tensor([[2.0, 2.0, 7.0], [5.0, 0.0, 0.0]])
    unpadded = torch.tensor([[True, True, False], [True, False, False]])
    assert kinds_of([maps], unpadded) == {"constant"}
    assert kinds_of([maps], torch.ones_like(unpadded)) == set()
    assert kinds_of([maps[1:]], unpadded[1:]) == set()


@pytest.mark.parametrize(
    "view",
    [
        report.to_html,
        report.to_markdown,
        partial(terminal.render, width=160),
        partial(terminal.render_screen, width=160),
    ],
)
def test_every_report_names_them_for_each_explainer(view):
    empty = [record("holds", id=f"invariance/{i}", degenerate="one-hot") for i in range(2)]
    others = [record("holds", explainer="other"), record("holds", axiom="batching", id="b", degenerate="one-hot")]
    results = document([*empty, *others, record("holds", id="c")])
    page = " ".join(view(results).replace("\\_", "_").split())
    assert "by_holds: 2 of 3 invariance, 1 of 1 batching checks hold on maps that are one-hot: they say little." in page
    assert "5 checks as expected (3 of them on degenerate maps)" in page
    assert "other: " not in page
    assert wording.degenerate(document([record("holds")])) == []
