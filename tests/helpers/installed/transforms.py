"""Function-preserving transforms of any model of `transformers`: they ask for no module by its name.

Each changes a copy of a small model (`faithcheck.tests.helpers.installed.small_model`) at every place where it applies.
They are made to be combined, one after another in one copy.

Why AttnLRP and CP-LRP stay the same, at ε = 0, where each operation has the gradient that its rule says:

1. *Other objects, the same operations.* A rule depends on an operation and its operands. Which module holds a weight,
   whether another module holds it too, and whether it was computed from other weights, is nothing to it.
2. *Linear maps in parts.* The ε-rule is the plain gradient, and each part of a concatenation gets that of its own rows:
   the parts of W pass Σ Wᵢᵀ uᵢ = Wᵀ u on. A sum passes its gradient on to all its terms, such as an adapter's.
3. *Norms in parts.* With σ held constant a LayerNorm is linear, and so are the factor γ and the summand β behind it. A
   BatchNorm in eval mode is a linear map with constant numbers.
4. *Another way to run.* Attention in one operation is propagated by its definition. Experts one after another or all at
   once are the same products of the same factors in the same order, and a choice of rows. Chunks of tokens, a cache
   that was empty before, and the last token alone are rearrangements of an operation's results.

Why the others do: Leave-One-Out reads the function's values, which are the same without a token too. The gates are
derivatives of the function along the removal, in which attention weights and the mask are all that they replace. And
Attention Rollout reads attention weights, which no transform here changes.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear
from torch.nn.utils import parametrizations
from transformers import PreTrainedModel
from transformers.activations import GELUActivation, SiLUActivation
from transformers.pytorch_utils import Conv1D

from faithcheck.models.pairs.execution import chunked_feed_forward, chunked_layers
from faithcheck.models.pairs.parametrization_of_weights import LowRankAdapter
from faithcheck.models.pairs.sharing_of_modules_and_weights import activations
from faithcheck.tests.helpers.installed.small_model import Embedded

RANK = 2


class DoesNotApply(Exception):
    """A model has nothing that a transform changes; the message says what is missing."""


@dataclass(frozen=True)
class InstalledTransform:
    """A function-preserving transform of any small model."""

    name: str
    change: Callable[[Any], None]
    operation: str = ""

    @property
    def summary(self) -> str:
        """What the changed model does, in a sentence."""
        return (self.change.__doc__ or "").strip()


TRANSFORMS: list[InstalledTransform] = []


def transform(name: str, operation: str = "") -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Register a transform; they are applied in the order of this file."""

    def decorate(change: Callable[[Any], None]) -> Callable[[Any], None]:
        TRANSFORMS.append(InstalledTransform(name, change, operation))
        return change

    return decorate


def require(holds: object, missing: str) -> None:
    """Raise `DoesNotApply` unless this is true."""
    if not holds:
        raise DoesNotApply(missing)


def of_type(model: nn.Module, *kinds: type[nn.Module]) -> list[Any]:
    """The modules of exactly these classes: a class derived from them may compute something else."""
    return [module for module in model.modules() if type(module) in kinds]


def replace_modules(model: nn.Module, replacements: dict[nn.Module, nn.Module]) -> None:
    """Put other modules in the places of some."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in replacements:
                setattr(parent, name, replacements[child])


# --- another way to run -----------------------------------------------------------------------------------------------


@transform("sdpa", operation="scaled_dot_product_attention")
def sdpa(model: Any) -> None:
    """Compute attention by `torch.nn.functional.scaled_dot_product_attention`."""
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    require(any(part._can_set_attn_implementation() for part in parts), "transformers has no SDPA for it")
    try:
        model.model.set_attn_implementation("sdpa")
    except ValueError as unsupported:  # perhaps of a part of it
        model.model.set_attn_implementation("eager")
        raise DoesNotApply("transformers has no SDPA for it") from unsupported


@transform("experts at once", operation="bmm")
def experts_at_once(model: Any) -> None:
    """Compute the experts of a mixture by one batched matrix product."""
    require(any(hasattr(module, "_apply_gate") for module in model.modules()), "no experts")
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            part.config._experts_implementation_internal = "batched_mm"


@transform("chunks of tokens", operation="chunk")
def chunks_of_tokens(model: Any) -> None:
    """Run feed-forward blocks one token at a time."""
    require(chunked_layers(model), "no feed-forward block in chunks")
    chunked_feed_forward(model)


@transform("cache")
def cache(model: Any) -> None:
    """Have the model keep its keys and values, or states, as for a next token."""
    require(isinstance(model, Embedded) and "use_cache" in model.arguments, "no cache")
    model.options["use_cache"] = True


@transform("last token alone")
def last_token_alone(model: Any) -> None:
    """Compute the logits after the last token alone."""
    require(
        isinstance(model, Embedded) and "logits_to_keep" in model.arguments and not model.classifies,
        "no choice of tokens",
    )
    model.options["logits_to_keep"] = 1


# --- other objects ----------------------------------------------------------------------------------------------------


@transform("own weights")
def own_weights(model: Any) -> None:
    """Give every place of a module with weights, or of a weight, its own copy."""
    shared, seen = 0, set[Any]()
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and child in seen and any(child.parameters()):
                setattr(parent, name, deepcopy(child))
                shared += 1
            seen.add(child)
    weights = set[int]()
    for parent in list(model.modules()):
        for name, weight in list(parent._parameters.items()):
            if weight is not None and id(weight) in weights:
                setattr(parent, name, nn.Parameter(weight.detach().clone()))
                shared += 1
            weights.add(id(weight))
    require(shared, "no weight in two places")


@transform("frozen weights")
def frozen_weights(model: Any) -> None:
    """Have the weights of every other module require no gradient."""
    for module in list(model.modules())[::2]:
        for weight in module.parameters(recurse=False):
            weight.requires_grad_(False)


class TimesSigmoid(nn.Module):
    """SiLU, written out."""

    def forward(self, inputs: Tensor) -> Tensor:
        """z σ(z)."""
        return inputs * torch.sigmoid(inputs)


class TimesNormalDistribution(nn.Module):
    """GELU, written out."""

    def forward(self, inputs: Tensor) -> Tensor:
        """z Φ(z)."""
        outputs: Tensor = inputs * torch.special.ndtr(inputs)
        return outputs


def is_exact(module: Any) -> bool:
    """Whether GELU is one operation, and not the form with tanh."""
    return module.act is gelu if type(module) is GELUActivation else module.approximate == "none"


@transform("activations as products")
def activations_as_products(model: Any) -> None:
    """Compute SiLU as z σ(z), and GELU as z Φ(z)."""
    replacements: dict[nn.Module, nn.Module] = {
        module: TimesSigmoid() for module in of_type(model, nn.SiLU, SiLUActivation)
    }
    gelus = [m for m in of_type(model, nn.GELU, GELUActivation) if is_exact(m)]
    replacements |= {module: TimesNormalDistribution() for module in gelus}
    require(replacements, "no module SiLU or GELU")
    replace_modules(model, replacements)


@transform("shared activations")
def shared_activations(model: Any) -> None:
    """Use one module for all modules of a kind that have no weights."""
    activations(model)


# --- linear maps ------------------------------------------------------------------------------------------------------


@transform("Conv1D as linear")
def conv1d_as_linear(model: Any) -> None:
    """Replace GPT's linear maps of transposed weights by `torch.nn.Linear`."""
    maps = of_type(model, Conv1D)
    require(maps, "no Conv1D")
    replacements: dict[nn.Module, nn.Module] = {}
    for conv in maps:
        replacements[conv] = nn.Linear(conv.nx, conv.nf, dtype=conv.weight.dtype)
        replacements[conv].weight = nn.Parameter(conv.weight.T.clone())
        replacements[conv].bias = conv.bias
    replace_modules(model, replacements)


class Reflection(nn.Module):
    """Hx + b with H = 1 − 2nnᵀ/‖n‖², so that H H = 1; n has no zeros."""

    def __init__(self, size: int, bias: Tensor | None = None) -> None:
        super().__init__()
        normal = torch.linspace(1, 2, size, dtype=torch.float64)
        self.weight = nn.Buffer(torch.eye(size).to(normal) - 2 * torch.outer(normal, normal) / normal.square().sum())
        self.bias = bias

    def forward(self, inputs: Tensor) -> Tensor:
        """``(…, size)`` to ``(…, size)``."""
        return linear(inputs, self.weight, self.bias)


class Product(nn.Sequential):
    """Two maps, read like the one linear map that they stand for."""

    @property
    def weight(self: Any) -> Tensor:
        """W, ``(outputs, inputs)``."""
        product: Tensor = self[1].weight @ self[0].weight
        return product

    @property
    def bias(self: Any) -> Tensor | None:
        """b, ``(outputs,)``."""
        bias: Tensor | None = self[1].bias
        return bias


@transform("linear maps as products")
def linear_maps_as_products(model: Any) -> None:
    """Compute every linear map W as the product of two, (W H) H or H (H W), with a reflection H."""
    maps = of_type(model, nn.Linear)
    require(maps, "no linear map")
    replacements: dict[nn.Module, nn.Module] = {}
    for module in maps:
        outputs, inputs = module.weight.shape
        if inputs < outputs:
            reflection = Reflection(inputs)
            module.weight = nn.Parameter(module.weight @ reflection.weight)  # new: an embedding may share the old
            replacements[module] = Product(reflection, module)
        else:
            reflection = Reflection(outputs, module.bias)
            module.weight, module.bias = nn.Parameter(reflection.weight @ module.weight), None
            replacements[module] = Product(module, reflection)
    replace_modules(model, replacements)


class WithAdapter(LowRankAdapter):
    """The same, read like the linear map that it stands for."""

    @property
    def weight(self: Any) -> Tensor:
        """W, ``(outputs, inputs)``."""
        whole: Tensor = self.base.weight + self.up @ self.down
        return whole

    @property
    def bias(self: Any) -> Tensor | None:
        """b, ``(outputs,)``."""
        bias: Tensor | None = self.base.bias
        return bias


@transform("low-rank adapters")
def low_rank_adapters(model: Any) -> None:
    """Take a part of rank two out of every linear map, and put it into an adapter beside it."""
    maps = of_type(model, nn.Linear)
    require(maps, "no linear map")
    generator = torch.Generator().manual_seed(0)
    replacements: dict[nn.Module, nn.Module] = {}
    for module in maps:
        outputs, inputs = module.weight.shape
        size = module.weight.abs().mean().sqrt()
        down, up = (
            torch.randn(shape, generator=generator, dtype=torch.float64) * size
            for shape in ((RANK, inputs), (outputs, RANK))
        )
        module.weight = nn.Parameter(module.weight - up @ down)  # new: an embedding may share the old
        replacements[module] = WithAdapter(module, down, up)
    replace_modules(model, replacements)


class Blocks(nn.Linear):
    """Wx + b with W in four blocks: two halves of the outputs, each a sum over two halves of the inputs."""

    def forward(self, inputs: Tensor) -> Tensor:
        """``(…, inputs)`` to ``(…, outputs)``."""
        halves, weight, rows = inputs.tensor_split(2, -1), self.weight, len(self.weight) // 2
        columns = halves[0].shape[-1]
        outputs = []
        for part in (slice(None, rows), slice(rows, None)):
            bias = None if self.bias is None else self.bias[part]
            first = linear(halves[0], weight[part, :columns], bias)
            outputs.append(first + linear(halves[1], weight[part, columns:]))
        return torch.cat(outputs, -1)


@transform("linear maps in blocks")
def linear_maps_in_blocks(model: Any) -> None:
    """Compute every linear map in four blocks."""
    maps = [m for m in of_type(model, nn.Linear) if min(m.weight.shape) > 1]
    require(maps, "no linear map")
    for module in maps:
        module.__class__ = Blocks


@transform("computed weights")
def computed_weights(model: Any) -> None:
    """Compute the weight of every linear map in each forward pass, as γ v/‖v‖ with another length of v."""
    maps = [m for m in of_type(model, nn.Linear, Blocks) if m.weight.any(1).all()]
    require(maps, "no linear map")
    for module in maps:
        weight = parametrizations.weight_norm(module).parametrizations["weight"]
        lengths = torch.linspace(0.5, 2, len(weight.original1), dtype=torch.float64)
        weight.original1 = nn.Parameter(weight.original1 * lengths.unsqueeze(1))  # new: an embedding may share the old


class ByChannel(nn.Module):
    """A convolution whose channels of outputs are computed in two halves."""

    def forward(self: Any, inputs: Tensor) -> Tensor:
        """As the convolution."""
        half = self.out_channels // 2
        biases = (None, None) if self.bias is None else (self.bias[:half], self.bias[half:])
        parts = [
            self._conv_forward(inputs, weight, bias)
            for weight, bias in zip((self.weight[:half], self.weight[half:]), biases, strict=True)
        ]
        return torch.cat(parts, -1 - len(self.kernel_size))


class Conv1dByChannel(ByChannel, nn.Conv1d):
    """In one dimension."""


class Conv2dByChannel(ByChannel, nn.Conv2d):
    """In two dimensions."""


@transform("convolutions in halves")
def convolutions_in_halves(model: Any) -> None:
    """Compute the channels of every convolution's outputs in two halves."""
    maps = [m for m in of_type(model, nn.Conv1d, nn.Conv2d) if m.groups == 1 and m.out_channels > 1]
    require(maps, "no convolution of all channels")
    for module in maps:
        module.__class__ = Conv1dByChannel if type(module) is nn.Conv1d else Conv2dByChannel


# --- norms ------------------------------------------------------------------------------------------------------------


class NormThenAffine(nn.LayerNorm):
    """γ ⊙ n + β, each an operation of its own."""

    def forward(self, inputs: Tensor) -> Tensor:
        """As LayerNorm."""
        outputs: Tensor = layer_norm(inputs, self.normalized_shape, None, None, self.eps) * self.weight
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs


@transform("LayerNorm in parts")
def layer_norm_in_parts(model: Any) -> None:
    """Multiply by a LayerNorm's γ, and add its β, behind the norm."""
    norms = [norm for norm in of_type(model, nn.LayerNorm) if norm.weight is not None]
    require(norms, "no LayerNorm with weights")
    for norm in norms:
        norm.__class__ = NormThenAffine


class BatchNormAsAffine(nn.BatchNorm2d):
    """The factor and the summand of each channel, from the statistics that were measured before."""

    def forward(self: Any, inputs: Tensor) -> Tensor:
        """As BatchNorm in eval mode."""
        factor: Tensor = self.weight / torch.sqrt(self.running_var + self.eps)
        summand: Tensor = self.bias - self.running_mean * factor
        return inputs * factor.view(-1, 1, 1) + summand.view(-1, 1, 1)


@transform("BatchNorm as affine")
def batch_norm_as_affine(model: Any) -> None:
    """Compute a BatchNorm, in eval mode, as a factor and a summand of each channel."""
    norms = [norm for norm in of_type(model, nn.BatchNorm2d) if norm.weight is not None]
    require(norms, "no BatchNorm with weights")
    for norm in norms:
        norm.__class__ = BatchNormAsAffine
