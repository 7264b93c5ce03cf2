"""A Transformer that `torch.compile` compiled: explainers give the map of the model itself, or refuse it by name.

The pair ``execution.compiled`` is a small network, which compiles in a moment. The backend "eager" runs the graph in
torch's own operations: there maps are equal to the bit.
"""

import copy

import pytest
import torch

from faithcheck.explainers.builtin import builtin_explainers
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.architectures.base_models import ARCHITECTURES

BASE = ARCHITECTURES["bert"].base_model
PLACE = (0, torch.float64, torch.device("cpu"))
REFUSE = {"attnlrp", "cplrp", "blockwise_lrp", "pa_lrp"}
NO_RULE = {"epsilon_lrp", "deeplift_rescale"}  # for the model as it is
EXPLAINERS = builtin_explainers()

# torch.compile says how often it compiled a function anew for another mode.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def compiled():
    """A small BERT, and a compiled copy of it, whose outputs are the same."""
    f = BASE.model(*PLACE)
    g = torch.compile(copy.deepcopy(f), backend="eager")
    assert torch.equal(BASE.case(*PLACE).run(f), BASE.case(*PLACE).run(g))
    yield f, g
    torch._dynamo.reset()


@pytest.mark.parametrize("name", sorted(EXPLAINERS.keys() - REFUSE - NO_RULE))
def test_the_map_is_that_of_the_model(name, compiled):
    f, g = compiled
    case = BASE.case(*PLACE)
    assert torch.equal(EXPLAINERS[name].attribute(g, case), EXPLAINERS[name].attribute(f, case))


@pytest.mark.parametrize("name", sorted(REFUSE))
def test_lrp_refuses_it_by_name(name, compiled):
    with pytest.raises(Unsupported, match=r"is compiled by torch.compile.*explain the module before it is compiled"):
        EXPLAINERS[name].attribute(compiled[1], BASE.case(*PLACE))
