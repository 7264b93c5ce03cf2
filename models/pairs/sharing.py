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

from faithcheck.models.architectures.base_models import BASE_MODELS, EXAMPLES, TOKENS, BaseModel, layers
from faithcheck.models.case import Case
from faithcheck.models.pair import INVARIANT_BY_DEFINITION, MakeCase, Pair, expect_lrp, register
from faithcheck.models.transform import function_preserving_transform

EXPECTED = {
    **INVARIANT_BY_DEFINITION,
    **expect_lrp("a rule sees an operation and its operands, not the object that holds the weights"),
}
INVARIANCE = frozenset({"invariance"})


@function_preserving_transform(
    "sharing.activations",
    why="a module without weights or state is the same function wherever it stands",
    lrp="a rule sees an operation and its operands, not the module that called it, or how often",
)
def activations(embedding_model: nn.Module) -> nn.Module:
    """One module for all activations, dropouts and the like that are of one kind."""
    first: dict[str, nn.Module] = {}
    for parent in list(embedding_model.modules()):
        for name, child in list(parent.named_children()):
            parts: list[object] = [*child.parameters(), *child.buffers(), *child.children()]
            if not parts:
                setattr(parent, name, first.setdefault(repr(child), child))
    return embedding_model


def stack(embedding_model: nn.Module) -> nn.ModuleList:
    """The list that a model keeps its layers in."""
    first = next(layers(embedding_model)).module
    return next(m for m in embedding_model.modules() if isinstance(m, nn.ModuleList) and len(m) and m[0] is first)


def register_layers(base_model: BaseModel) -> None:
    """The pair of a model whose layers are all one object, as ALBERT's, and one with a copy for each layer."""

    def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
        f = base_model.model(seed, dtype, device)
        g = deepcopy(f)
        one, copied = stack(f)[0], stack(g)
        for i in range(1, len(copied)):
            stack(f)[i], copied[i] = one, deepcopy(copied[0])
        return f, g

    why = "a layer used twice is two layers of equal weights"
    register(
        Pair(f"sharing.layers_{base_model.name}", build, base_model.case, why, expected=EXPECTED, axioms=INVARIANCE)
    )


for name in ("bert", "roberta", "gpt2", "llama", "vit"):
    register_layers(BASE_MODELS[name])


class Tokens(nn.Module):
    """A decoder read at its tokens, one-hot, so that its embedding weights work at both ends."""

    def __init__(self, embedding_model: Any) -> None:
        super().__init__()
        self.embedding_model = embedding_model

    def forward(self, inputs: Tensor) -> Tensor:
        """Weights of tokens ``(batch, tokens, vocabulary)`` to the logits after the last token."""
        logits: Tensor = self.embedding_model(inputs @ self.embedding_model.model.get_input_embeddings().weight)
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


def register_embeddings(base_model: BaseModel) -> None:
    """The pair of a decoder whose output weights are its embeddings' own, and one where they are a copy."""

    def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
        f: Any = base_model.model(seed, dtype, device)
        f.model.lm_head.weight = f.model.get_input_embeddings().weight
        g = deepcopy(f)
        g.model.lm_head.weight = nn.Parameter(g.model.lm_head.weight.detach().clone())
        return Tokens(f).eval(), Tokens(g).eval()

    why = "a weight used at both ends is two equal weights"
    register(
        Pair(f"sharing.embeddings_{base_model.name}", build, tokens(16), why, expected=EXPECTED, axioms=INVARIANCE)
    )


for name in ("gpt2", "llama"):
    register_embeddings(BASE_MODELS[name])
