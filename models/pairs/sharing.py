"""One module or weight used in several places against a copy in each: an object's identity is no part of the function.

Why AttnLRP and CP-LRP hold on all of them, at ε = 0: a rule sees one operation with its operands, where weights are
constants; it keeps nothing from one call of a module to the next. So relevance is the same modified gradient at the
features, whichever objects the weights lie in. What keys its state by module or by its name (a hook that stores "the"
activation of a module, DeepLIFT's above all) meets one object twice here.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.models.architectures import EXAMPLES, HOSTS, TOKENS, Host, layers
from faithcheck.models.case import Case
from faithcheck.models.gauge import gauge
from faithcheck.models.pair import FUNCTION, MakeCase, Pair, register, relevance

EXPECTED = {**FUNCTION, **relevance("a rule sees an operation and its operands, not the object that holds the weights")}
INVARIANCE = frozenset({"invariance"})


@gauge(
    "sharing.activations",
    why="a module without weights or state is the same function wherever it stands",
    lrp="a rule sees an operation and its operands, not the module that called it, or how often",
)
def activations(reader: nn.Module) -> nn.Module:
    """One module for all activations, dropouts and the like that are of one kind."""
    first: dict[str, nn.Module] = {}
    for parent in list(reader.modules()):
        for name, child in list(parent.named_children()):
            parts: list[object] = [*child.parameters(), *child.buffers(), *child.children()]
            if not parts:
                setattr(parent, name, first.setdefault(repr(child), child))
    return reader


def stack(reader: nn.Module) -> nn.ModuleList:
    """The list that a model keeps its layers in."""
    first = next(layers(reader)).module
    return next(m for m in reader.modules() if isinstance(m, nn.ModuleList) and len(m) and m[0] is first)


def register_layers(host: Host) -> None:
    """The pair of a model whose layers are all one object, as ALBERT's, and one with a copy for each layer."""

    def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
        f = host.model(seed, dtype, device)
        g = deepcopy(f)
        one, copied = stack(f)[0], stack(g)
        for i in range(1, len(copied)):
            stack(f)[i], copied[i] = one, deepcopy(copied[0])
        return f, g

    why = "a layer used twice is two layers of equal weights"
    register(Pair(f"sharing.layers_{host.name}", build, host.case, why, expected=EXPECTED, axioms=INVARIANCE))


for name in ("bert", "roberta", "gpt2", "llama", "vit"):
    register_layers(HOSTS[name])


class Tokens(nn.Module):
    """A decoder read at its tokens, one-hot, so that its embedding weights work at both ends."""

    def __init__(self, reader: Any) -> None:
        super().__init__()
        self.reader = reader

    def forward(self, inputs: Tensor) -> Tensor:
        """Weights of tokens ``(batch, tokens, vocabulary)`` to the logits after the last token."""
        logits: Tensor = self.reader(inputs @ self.reader.model.get_input_embeddings().weight)
        return logits


def tokens(vocabulary: int) -> MakeCase:
    """Random tokens, one-hot, each example with a random target."""

    def case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
        numbers = torch.Generator().manual_seed(seed)
        ids = torch.randint(vocabulary, (EXAMPLES, TOKENS), generator=numbers)
        inputs = nn.functional.one_hot(ids, vocabulary).to(device, dtype)
        target = torch.randint(vocabulary, (EXAMPLES,), generator=numbers).to(device)
        return Case(inputs, target, torch.zeros_like(inputs))

    return case


def register_embeddings(host: Host) -> None:
    """The pair of a decoder whose output weights are its embeddings' own, and one where they are a copy."""

    def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
        f: Any = host.model(seed, dtype, device)
        f.model.lm_head.weight = f.model.get_input_embeddings().weight
        g = deepcopy(f)
        g.model.lm_head.weight = nn.Parameter(g.model.lm_head.weight.detach().clone())
        return Tokens(f).eval(), Tokens(g).eval()

    why = "a weight used at both ends is two equal weights"
    register(Pair(f"sharing.embeddings_{host.name}", build, tokens(16), why, expected=EXPECTED, axioms=INVARIANCE))


for name in ("gpt2", "llama"):
    register_embeddings(HOSTS[name])
