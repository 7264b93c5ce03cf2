"""One attention computed in several ways.

It is written out by `transformers`, or is torch's one operation; queries, keys and values come from one linear map or
from three; shared heads of keys and values are repeated, or each query head has its own copy.

Why AttnLRP and CP-LRP hold on these pairs, at ε = 0:

1. `scaled_dot_product_attention` is propagated by its definition, softmax(QKᵀ·scale + mask) V, each operation by its
   own rule, as if the model wrote it out. Torch masks with −∞ and `transformers` with the lowest finite number. The
   weights are the same: e^(−∞) and e^(lowest − largest) are both exactly 0.
2. The ε-rule is the plain gradient, and each part of a concatenation gets the gradient of its own rows.
   [W_q; W_k; W_v] x and (W_q x, W_k x, W_v x) pass W_qᵀ r_q + W_kᵀ r_k + W_vᵀ r_v on, in one sum or in three.
3. A repeated head of keys gets the sum over its copies, Σ_h r_h, and passes W_kᵀ Σ_h r_h on; copies of W_k pass
   Σ_h W_kᵀ r_h on.
4. Logits may depend on the distance of two tokens: ALiBi (Press, Smith & Lewis 2022, arXiv 2108.12409, §3) adds
   −m·|i − j|. These are constants, which get no relevance.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from faithcheck.models.architectures.architecture import BaseModel
from faithcheck.models.architectures.base_models import ARCHITECTURES, layers
from faithcheck.models.architectures.transformer_layer import LinearView, as_module
from faithcheck.models.cases import WIDTH, sentences
from faithcheck.models.expectation import expect, expect_lrp
from faithcheck.models.networks.derived import Derived
from faithcheck.models.pair import copies, invariance_pair
from faithcheck.models.transform import blueprint, every_layer, function_preserving_transform

WRITTEN_OUT = "scaled_dot_product_attention is propagated by its definition: the same operations, each by its own rule"
CONCATENATED = "linear maps pass the plain gradient on, and each part of a concatenation gets that of its own rows"
REPEATED = "a repeated head gets Σ_h r_h and passes Wᵀ Σ_h r_h on, its copies pass Σ_h Wᵀ r_h on"


class Concatenated(nn.Module):
    """Several linear maps of one input; their outputs are concatenated."""

    def __init__(self, maps: Sequence[LinearView]) -> None:
        super().__init__()
        self.maps = nn.ModuleList(map(as_module, maps))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([linear(x) for linear in self.maps], -1)


class FusedPart(nn.Module):
    """The outputs ``start`` to ``start + size`` of a linear map."""

    def __init__(self, fused: nn.Linear, start: int, size: int) -> None:
        super().__init__()
        self.fused, self.start, self.size = fused, start, size

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.fused(x)
        return outputs.narrow(-1, self.start, self.size)


class WithMask(Derived):
    """A decoder called with an explicit causal mask; without one it leaves the mask to SDPA's flag ``is_causal``."""

    def forward(self, inputs: Tensor) -> Tensor:
        batch, n = inputs.shape[:2]
        mask = torch.ones(batch, 1, n, n, dtype=torch.bool, device=inputs.device).tril()
        return self.model(inputs, attention_mask=mask)


@function_preserving_transform(
    "attention.sdpa", why="scaled_dot_product_attention computes what the eager model writes out", lrp=WRITTEN_OUT
)
def sdpa(embedding_model: nn.Module) -> nn.Module:
    model: Any = embedding_model.model
    model.set_attn_implementation("sdpa")
    return embedding_model


@function_preserving_transform(
    "attention.separate",
    why="a linear map's outputs are those of its rows, which may belong to three maps",
    lrp=CONCATENATED,
    requires=[every_layer("one module for queries, keys and values", lambda layer: layer.fused)],
)
def separate(embedding_model: nn.Module) -> nn.Module:
    for layer in layers(embedding_model):
        assert layer.query_key_value is not None
        layer.replace(layer.query_key_value, Concatenated((layer.query, layer.key, layer.value)))
    return embedding_model


@function_preserving_transform(
    "attention.fused",
    why="three linear maps of one input are parts of one map",
    lrp=CONCATENATED,
    requires=[every_layer("separate modules for queries, keys and values", lambda layer: not layer.fused)],
)
def fused(embedding_model: nn.Module) -> nn.Module:
    """Replace the maps to queries, keys and values by one map, and read each from a part of its outputs."""
    for layer in layers(embedding_model):
        maps = (layer.query, layer.key, layer.value)
        biases = [linear.bias for linear in maps if linear.bias is not None]
        weight = torch.cat([linear.weight for linear in maps])
        whole = as_module(LinearView(weight, torch.cat(biases) if biases else None))
        start = 0
        for linear in maps:
            layer.replace(linear, FusedPart(whole, start, len(linear.weight)))
            start += len(linear.weight)
    return embedding_model


SHARED_HEADS = every_layer(
    "heads of keys and values that several queries share", lambda layer: layer.queries_per_key > 1
)


@function_preserving_transform(
    "attention.expanded",
    why="a head of keys and values that several queries share is as many heads of equal weights",
    lrp=REPEATED,
    requires=[SHARED_HEADS],
)
def expanded(embedding_model: nn.Module) -> nn.Module:
    for layer in layers(embedding_model):
        blocks = torch.arange(len(layer.key.weight)).view(layer.key_value_heads, -1)
        rows = blocks.repeat_interleave(layer.queries_per_key, 0).flatten()
        for linear in (layer.key, layer.value):
            bias = None if linear.bias is None else linear.bias[rows]
            layer.replace(linear, as_module(LinearView(linear.weight[rows], bias)))
        layer.set_queries_per_key(1)
    return embedding_model


def register_sdpa(
    name: str, base_model: BaseModel, change: Callable[[nn.Module], nn.Module], why: str, lrp: str
) -> None:
    """Register a pair of two models that both use SDPA; ``change`` makes g of a copy of f."""

    def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
        f = sdpa(base_model.model(seed, dtype, device))
        with torch.no_grad():
            return f, change(deepcopy(f)).eval()

    invariance_pair(f"{name}_{base_model.name}", build, base_model.case, expect_lrp(lrp), why=why)


for architecture in ARCHITECTURES.values():
    if architecture.decoder:
        register_sdpa(
            "attention.causal_flag",
            architecture.base_model,
            WithMask,
            "SDPA's flag is_causal masks later tokens, as the mask does",
            f"{WRITTEN_OUT}, which adds either mask before the softmax",
        )
    if SHARED_HEADS.holds(blueprint(architecture.base_model)):
        register_sdpa(
            "attention.expanded_sdpa",
            architecture.base_model,
            expanded,
            "SDPA's enable_gqa repeats heads of keys and values, as repeated weights do",
            f"{WRITTEN_OUT}; {REPEATED}",
        )


HEADS, OUTPUTS = 2, 2


class DistanceAttention(nn.Module):
    """x + attention(x), summed over the tokens, and a linear map: ``(batch, tokens, width)`` to ``(batch, 2)``."""

    def __init__(self, one_operation: bool = False) -> None:
        super().__init__()
        self.one_operation = one_operation
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, OUTPUTS)

    def forward(self, inputs: Tensor) -> Tensor:
        query, key, value = (
            part(inputs).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        position = torch.arange(inputs.shape[1], device=inputs.device)
        slopes = 2.0 ** -torch.arange(1, HEADS + 1, device=inputs.device)  # the paper's, for two heads: ½ and ¼
        bias = (-slopes[:, None, None] * (position[:, None] - position).abs()).to(inputs)
        if self.one_operation:
            attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        else:
            logits = torch.matmul(query, key.transpose(-1, -2)) / query.shape[-1] ** 0.5
            attended = torch.matmul(torch.softmax(logits + bias, -1), value)
        return self.head((inputs + attended.transpose(1, 2).flatten(2)).sum(1))


invariance_pair(
    "attention.distances_sdpa",
    copies(DistanceAttention, one_operation=True),
    sentences,
    expect_lrp(WRITTEN_OUT),
    expect("invariance", "blockwise_lrp", WRITTEN_OUT),
    why="scaled_dot_product_attention adds its mask to the logits",
)
