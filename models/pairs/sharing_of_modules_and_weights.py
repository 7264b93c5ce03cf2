"""One module or weight used in several places, against a copy in each place: the function does not depend on identity.

Why AttnLRP and CP-LRP hold on all these pairs, at ε = 0: a rule depends on one operation and its operands, where
weights are constants, and it keeps no state between two calls of a module. So relevance is the same modified gradient
at the features, whichever objects hold the weights. An explainer that keeps state by module or by name (a hook that
stores the activation of a module, above all DeepLIFT's) is called twice for one object here.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.models.architectures.architecture import EXAMPLES, SMALL_SIZES, TOKENS, BaseModel
from faithcheck.models.architectures.base_models import ARCHITECTURES, layers
from faithcheck.models.case import Case
from faithcheck.models.expectation import expect_lrp
from faithcheck.models.networks.derived import Derived
from faithcheck.models.pair import MakeCase, invariance_pair
from faithcheck.models.transform import function_preserving_transform

EXPECTED = expect_lrp("a rule depends on an operation and its operands, not on the object that holds the weights")


@function_preserving_transform(
    "sharing.activations",
    why="a module without weights or state is the same function in every place",
    lrp="a rule depends on an operation and its operands, not on the module that called it, or how often",
)
def activations(embedding_model: nn.Module) -> nn.Module:
    """Use one module for all modules of a kind that have no weights: activations, dropouts."""
    first: dict[str, nn.Module] = {}
    for parent in list(embedding_model.modules()):
        for name, child in list(parent.named_children()):
            contents: list[object] = [*child.parameters(), *child.buffers(), *child.children()]
            if not contents:
                setattr(parent, name, first.setdefault(kind_of(child), child))
    return embedding_model


def kind_of(module: nn.Module) -> str:
    """The class of a module and its settings: not every ``repr`` shows them all."""
    settings = {name: value for name, value in vars(module).items() if isinstance(value, (int, float, str, tuple))}
    return f"{module!r} {settings}"


def stack(embedding_model: nn.Module) -> nn.ModuleList:
    """The module list of a model's layers."""
    first = next(layers(embedding_model)).module
    return next(m for m in embedding_model.modules() if isinstance(m, nn.ModuleList) and len(m) and m[0] is first)


def register_layers(base_model: BaseModel) -> None:
    def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
        f = base_model.model(seed, dtype, device)
        g = deepcopy(f)
        shared, copied = stack(f), stack(g)
        for i in range(1, len(copied)):
            shared[i], copied[i] = shared[0], deepcopy(copied[0])
        return f, g

    why = "a layer used twice is two layers of equal weights"
    invariance_pair(f"sharing.layers_{base_model.name}", build, base_model.case, EXPECTED, why=why)


class Tokens(Derived):
    """A decoder called on one-hot tokens, so that its embedding weights are used at the input and at the output."""

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs @ self.model.model.get_input_embeddings().weight)


def tokens(vocabulary: int) -> MakeCase:
    """A pair's ``case``: random one-hot tokens, each example with a random target."""

    def case(seed: int, dtype: torch.dtype, device: torch.device) -> Case:
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(vocabulary, (EXAMPLES, TOKENS), generator=generator)
        inputs = nn.functional.one_hot(ids, vocabulary).to(device, dtype)
        target = torch.randint(vocabulary, (EXAMPLES,), generator=generator).to(device)
        return Case(inputs, target, torch.zeros_like(inputs))

    return case


def register_embeddings(base_model: BaseModel) -> None:
    """Register the pair of a decoder whose output weights are its embedding weights, and one where they are a copy."""

    def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
        f: Any = base_model.model(seed, dtype, device)
        f.model.get_output_embeddings().weight = f.model.get_input_embeddings().weight
        g = deepcopy(f)
        output = g.model.get_output_embeddings()
        output.weight = nn.Parameter(output.weight.detach().clone())
        return Tokens(f).eval(), Tokens(g).eval()

    why = "a weight used at the input and at the output is two equal weights"
    case = tokens(SMALL_SIZES["vocab_size"])
    invariance_pair(f"sharing.embeddings_{base_model.name}", build, case, EXPECTED, why=why)


for architecture in ARCHITECTURES.values():
    register_layers(architecture.base_model)
    if architecture.decoder:
        register_embeddings(architecture.base_model)
