"""A Transformer that `torch.compile` compiled: explainers give the map of the model itself, or refuse it by name.

The pairs ``execution.compiled`` and ``execution.flex`` are small networks, which compile in a moment. The backend
"eager" runs the graph in torch's own operations: there maps are equal to the bit.
"""

import copy
from itertools import product

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from faithcheck.explainers.builtin import builtin_explainers
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.architectures.base_models import ARCHITECTURES
from faithcheck.models.pairs.execution_of_a_layer import Compiled, ForwardByFlex, attend

BASE = ARCHITECTURES["bert"].base_model
PLACE = (0, torch.float64, torch.device("cpu"))
REFUSE = {"attnlrp", "cplrp", "blockwise_lrp", "pa_lrp"}
EXPLAINERS = builtin_explainers()


@pytest.fixture(scope="module")
def compiled():
    """A small BERT, and a compiled copy of it."""
    f = BASE.model(*PLACE)
    g = torch.compile(copy.deepcopy(f), backend="eager")
    yield f, g
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch, which also traces the modes of explainers
@pytest.mark.parametrize("name", ["gradient_x_input", "loo", "attention_rollout", "mask_gate"])
def test_the_map_is_that_of_the_model(name, compiled):
    f, g = compiled
    case = BASE.case(*PLACE)
    assert torch.equal(case.run(f), case.run(g))
    assert torch.equal(EXPLAINERS[name].attribute(g, case), EXPLAINERS[name].attribute(f, case))


@pytest.mark.parametrize("name", sorted(REFUSE))
def test_lrp_refuses_it_by_name(name, compiled):
    with pytest.raises(Unsupported, match=r"is compiled by torch.compile.*explain the module before it is compiled"):
        EXPLAINERS[name].attribute(compiled[1], BASE.case(*PLACE))


@pytest.fixture
def forgotten_graphs():
    """Torch forgets after the test what it compiled, and what it no longer compiles, whether the test passes or not."""
    yield
    torch._dynamo.reset()


class TwiceIfCompiled(nn.Module):
    """Twice its inputs where torch compiles it, and its inputs where it runs as Python."""

    def forward(self, inputs):
        return inputs * (2 if torch.compiler.is_compiling() else 1)


@pytest.mark.slow
@pytest.mark.usefixtures("forgotten_graphs")
def test_the_layer_of_the_pair_stays_compiled_where_torch_by_itself_would_stop():
    def compiled_every_time(layer):
        states = product((torch.float64, torch.float32, torch.float16), (1, 2), (False, True))
        points = [torch.ones(batch, 3, dtype=dtype, requires_grad=gradient) for dtype, batch, gradient in states]
        return all(torch.equal(layer(inputs), 2 * inputs) for inputs in points)

    assert not compiled_every_time(torch.compile(TwiceIfCompiled(), backend="eager", dynamic=True))
    torch._dynamo.reset()
    assert compiled_every_time(Compiled(TwiceIfCompiled()))


@pytest.mark.slow
@pytest.mark.usefixtures("forgotten_graphs")
def test_flex_attention_of_the_pair_stays_compiled_where_other_code_compiled_it_too_often(monkeypatch):
    from torch.nn.attention import flex_attention as module

    monkeypatch.setattr(module, "_WARNINGS_SHOWN", set())  # torch warns once a process that it is not compiled
    points = [torch.randn(3, batch, 1, 3, width) for batch in (1, 2) for width in range(2, 7)]  # 10 graphs
    with torch._dynamo.config.patch(cache_size_limit=1):
        by_torch = torch.compile(module.flex_attention, backend="eager", dynamic=True)
        by_torch(*points[0])
        with pytest.warns(UserWarning, match="without torch.compile"):
            by_torch(*points[1])
    module._WARNINGS_SHOWN.clear()
    for operands in points:
        assert_close(ForwardByFlex.apply(*operands), attend(*operands))
    assert not module._WARNINGS_SHOWN
