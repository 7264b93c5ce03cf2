"""False pairs are refused, each with a message that names what differs; the models without the fault are a pair."""

import re

import pytest

from faithcheck.check import Check
from faithcheck.request import Settings
from faithcheck.tests.helpers.false_pairs import FALSE_PAIRS, FalsePair, Network, masked_points, outputs


def equivalence(false_pair, name):
    return Check("equivalence", None, false_pair.pair(name)).run(Settings())


@pytest.mark.parametrize("name", FALSE_PAIRS)
def test_a_false_pair_is_refused_and_the_message_names_what_differs(name):
    record = equivalence(FALSE_PAIRS[name], name)
    assert record.status in ("error", "broken claim")
    message = str(record.detail.get("error") or record.detail["differ in"])
    assert re.search(FALSE_PAIRS[name].message, message), message


@pytest.mark.parametrize("case", [FalsePair.case, masked_points])
def test_the_network_of_the_false_pairs_and_its_copy_are_a_pair(case):
    record = equivalence(FalsePair(Network, "", case=case), "none")
    assert record.status == "holds", record
    assert record.gap == 0


def test_round_off_of_terms_that_cancel_is_no_difference():
    """In g the second output, and the gradient of the first at feature 1, are round-off; in f both are 0."""

    def cancelling(x):
        return 0.1 * x[:, 1] + 0.2 * x[:, 1] - 0.3 * x[:, 1]

    first = lambda x: x[:, 0].sin()  # noqa: E731
    f, g = outputs(first, lambda x: 0 * x[:, 2]), outputs(lambda x: first(x) + cancelling(x), cancelling)
    record = equivalence(FalsePair(g, "", f), "none")
    assert record.status == "holds", record
    assert record.gap > 0
