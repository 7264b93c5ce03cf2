"""False pairs are refused, each with a message that names what differs; the models without the fault are a pair."""

import re

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from faithcheck.check import Check
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.models.pair import random_points
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


class Projected(nn.Module):
    """A projection of each token and a head; transformers' Conv1D takes a view of its inputs, and Linear does not."""

    def __init__(self, projection):
        super().__init__()
        self.projection, self.head = projection(), nn.Linear(4, 2)
        weights = torch.Generator().manual_seed(0)
        weight, bias = torch.randn(3, 4, generator=weights), torch.randn(4, generator=weights)
        is_conv1d = isinstance(self.projection, Conv1D)
        self.projection.weight.data, self.projection.bias.data = weight if is_conv1d else weight.T, bias
        self.head.weight.data, self.head.bias.data = torch.randn(2, 4, generator=weights), bias[:2]
        self.double()

    def forward(self, inputs):
        return self.head(self.projection(inputs).tanh().sum(1))


def test_models_that_cannot_run_on_rows_of_the_same_memory_are_a_pair():
    linear, conv1d = lambda: Projected(lambda: nn.Linear(3, 4)), lambda: Projected(lambda: Conv1D(4, 3))
    tokens = random_points(6, 5, 3, classes=2)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        conv1d()(torch.zeros(1, 5, 3).double().expand(2, 5, 3))
    record = equivalence(FalsePair(conv1d, "", linear, tokens), "none")
    assert record.status == "holds", record
    case = tokens(0, torch.float64, torch.device("cpu")).select(torch.tensor([0]))
    maps = [LeaveOneOut().attribute(model(), case) for model in (linear, conv1d)]
    torch.testing.assert_close(*maps, rtol=1e-12, atol=1e-12)
