"""One layer run in several ways: recomputed, mapped over examples, traced, offloaded, compiled, by flex attention.

Traced and offloaded layers call the same operations, from a graph or on weights that lie elsewhere until the layer
runs: AttnLRP and CP-LRP give the same relevance. They refuse what they cannot see into, and say so: a compiled graph,
`torch.func.vmap`, and a layer that runs again in the backward pass, where rules do not apply. Explainers that need
only the function's values and gradients give the same map there too. Flex attention is a compiled graph as well; it
has no gradient on a CPU, so the pair's gradient is written by hand.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig

from faithcheck.models.expectation import ALL_LRP, INVARIANT_BY_DEFINITION, Expectation, Expectations, expect_lrp
from faithcheck.models.pair import copies, invariance_pair, random_points

CASE = random_points(4, 5, 6, classes=2)


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.softmax(query @ key.transpose(-2, -1), -1) @ value


class Attention(nn.Module):
    """One head: ``(batch, 5, 6)`` to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        return attend(self.query(tokens), self.key(tokens), self.value(tokens))


class Network(nn.Module):
    """Attention, which ``run`` runs, tanh, the mean over tokens, a linear map: ``(batch, 5, 6)`` to ``(batch, 2)``."""

    def __init__(self, run: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run
        self.attention, self.head = Attention(), nn.Linear(6, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.run(self.attention, tokens)).mean(1))


def as_it_is(layer: nn.Module, tokens: Tensor) -> Tensor:
    return layer(tokens)


def recomputed(layer: nn.Module, tokens: Tensor) -> Tensor:
    return checkpoint(layer, tokens, use_reentrant=False)


def mapped(layer: nn.Module, tokens: Tensor) -> Tensor:
    return torch.func.vmap(lambda one: layer(one.unsqueeze(0)).squeeze(0))(tokens)


def refused(error: str, why: str, by: str = "attnlrp cplrp blockwise_lrp") -> Expectations:
    """What is expected where explainers see no operations: that they refuse, with these words."""
    refusal = {("invariance", explainer): Expectation("ERROR", why, error=error) for explainer in by.split()}
    return {**INVARIANT_BY_DEFINITION, **refusal}


SEEN = {
    **INVARIANT_BY_DEFINITION,
    **expect_lrp("the same operations in the same order, each by its rule", of="attnlrp cplrp blockwise_lrp"),
}


invariance_pair(
    "execution.recomputed",
    copies(lambda: Network(as_it_is), run=recomputed),
    CASE,
    refused("gradient checkpointing", "the layer runs again in the backward pass, where no rule applies"),
    why="a layer gives the same values when it is computed again",
    cite="Chen et al. 2016, arXiv 1604.06174",
)
invariance_pair(
    "execution.mapped",
    copies(lambda: Network(as_it_is), run=mapped),
    CASE,
    refused("hides its operations", "vmap runs the operations on tensors that no torch function shows"),
    why="no operation of the layer mixes examples",
)


invariance_pair(
    "execution.traced",
    copies(lambda: Network(as_it_is), lambda g: setattr(g, "attention", symbolic_trace(g.attention).eval())),
    CASE,
    SEEN,
    why="the graph has the operations that the forward pass called",
)


class Offloaded(nn.Module):
    """A layer whose own weights are on the device ``meta``; they are brought from elsewhere when it runs."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.kept = nn.ParameterList(layer.parameters())
        self.names = [name for name, _ in layer.named_parameters()]
        self.empty = [deepcopy(layer).to("meta")]  # in a list: a device_map moves it with no other module

    def forward(self, tokens: Tensor) -> Tensor:
        weights = dict(zip(self.names, self.kept, strict=True))
        return torch.func.functional_call(self.empty[0], weights, (tokens,))


invariance_pair(
    "execution.offloaded",
    copies(lambda: Network(as_it_is), lambda g: setattr(g, "attention", Offloaded(g.attention).eval())),
    CASE,
    SEEN,
    why="a layer gives the same values wherever its weights lie between its calls",
)


def every_graph() -> AbstractContextManager[None]:
    """Torch compiles as many graphs of a function as it needs, and raises an error where it would stop to compile.

    By itself it makes 8, for another dtype, batch of one, mode or state of autograd each, and then runs the function
    uncompiled without an error: a check would measure another model than its pair names. 256 is a second limit.
    """
    return torch._dynamo.config.patch(  # by the names that all versions know
        cache_size_limit=256, fail_on_cache_limit_hit=True
    )


class HiddenLayer(nn.Module):
    """Two linear maps, and tanh between them."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(5, 4), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output(torch.tanh(self.hidden(inputs)))


class Compiled(nn.Module):
    """`torch.compile` of a layer; the backend "eager" runs the graph in torch's own operations."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = torch.compile(layer, backend="eager", dynamic=True)

    def forward(self, inputs: Tensor) -> Tensor:
        with every_graph():
            return self.layer(inputs)


def compiled(layer: HiddenLayer) -> Compiled:
    model = Compiled(layer).eval()
    model(torch.zeros(1, 5).to(layer.hidden.weight))  # the first call patches torch.nn.Module: here, not in a check
    return model


invariance_pair(
    "execution.compiled",
    copies(HiddenLayer, compiled),
    random_points(4, 5, classes=2),
    refused("torch.compile", "rules see no operation of a compiled graph", f"{ALL_LRP} blockwise_lrp deeplift_rescale"),
    why="the compiled graph has the operations that the forward pass called",
)


@cache
def compiled_flex_attention() -> Callable[..., Any]:
    """Flex attention, compiled as torch asks for; the backend "eager" runs the graph in torch's own operations."""
    from torch.nn.attention.flex_attention import flex_attention  # here, as it takes seconds to import

    def attend_by_flex(queries: Tensor, keys: Tensor, values: Tensor) -> Any:
        return flex_attention(queries, keys, values, scale=1.0)

    return torch.compile(attend_by_flex, backend="eager", dynamic=True)


class ForwardByFlex(torch.autograd.Function):
    """softmax(QKᵀ) V: forward by torch's flex attention, backward by hand, as flex attention has none on a CPU."""

    @staticmethod
    def forward(context: Any, *operands: Tensor) -> Tensor:
        context.save_for_backward(*operands)
        # Every example twice: of a batch of one, torch would compile another graph, in half a second.
        twice = [operand.detach().repeat(2, 1, 1, 1) for operand in operands]
        with every_graph():
            attended: Tensor = compiled_flex_attention()(*twice)
        return attended[: len(operands[0])]

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            operands = [saved.detach().requires_grad_() for saved in context.saved_tensors]
            attended = attend(*operands)
        return torch.autograd.grad(attended, operands, gradient)


class FlexAttention(Attention):
    """The same by flex attention; its configuration says so, as that of a model of `transformers` does."""

    def __init__(self) -> None:
        super().__init__()
        self.config = PreTrainedConfig()
        self.config._attn_implementation = "flex_attention"

    def forward(self, tokens: Tensor) -> Tensor:
        operands = (linear(tokens).unsqueeze(1) for linear in (self.query, self.key, self.value))
        attended: Tensor = ForwardByFlex.apply(*operands)  # type: ignore[no-untyped-call]
        return attended.squeeze(1)


def with_flex_attention(network: Network) -> None:
    weights, network.attention = network.attention.state_dict(), FlexAttention().to(network.head.weight).eval()
    network.attention.load_state_dict(weights)
    network(torch.zeros(1, 5, 6).to(network.head.weight))  # see `compiled`


invariance_pair(
    "execution.flex",
    copies(lambda: Network(as_it_is), with_flex_attention),
    CASE,
    refused(
        "flex attention",
        "no explainer sees the operations and the attention weights of a compiled graph",
        "attnlrp cplrp blockwise_lrp attention_rollout mask_gate finite_mask_gate grouped_mask_gate readout_gate "
        "budgeted_loo",
    ),
    why="flex attention without a change of its logits is softmax(QKᵀ·scale) V",
    cite="Dong et al. 2024, arXiv 2412.05496",
)
