"""One attention computed in several ways.

As `transformers` writes it out or as torch's one operation; with one map to query, key and value or with three; with
heads of keys and values that are repeated or each its own. Why AttnLRP and CP-LRP hold on each, at ε = 0:

* `scaled_dot_product_attention` is propagated by its definition, softmax(QKᵀ·scale + mask) V, every operation of which
  meets the rule that it meets where a model writes it out. The two forms of a mask, −∞ in torch and the lowest finite
  number in `transformers`, give the same weights: e^(−∞) and e^(lowest − largest) are both exactly 0.
* The ε-rule is the plain gradient, and a concatenation's parts get the gradient of their own rows:
  [W_q; W_k; W_v] x and (W_q x, W_k x, W_v x) pass W_qᵀ r_q + W_kᵀ r_k + W_vᵀ r_v on, in one sum or in three.
* A head of keys that is repeated collects the sum of what its copies get, Σ_h r_h, and hands W_kᵀ Σ_h r_h on; copies
  of W_k hand on Σ_h W_kᵀ r_h.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from faithcheck.models.architectures.base_models import BASE_MODELS, Linear, as_module, layers
from faithcheck.models.pair import INVARIANT_BY_DEFINITION, Pair, expect_lrp, register
from faithcheck.models.transform import function_preserving_transform

WRITTEN_OUT = "scaled_dot_product_attention is propagated by its definition: the same operations, each by its own rule"
CONCATENATED = "linear maps pass the plain gradient on, and a concatenation's parts get that of their own rows"
REPEATED = "a repeated head collects Σ_h r_h and passes Wᵀ Σ_h r_h on, its copies Σ_h Wᵀ r_h"


class Concatenated(nn.Module):
    """Several linear maps of one input, side by side."""

    def __init__(self, maps: Sequence[Linear]) -> None:
        super().__init__()
        self.maps = nn.ModuleList(map(as_module, maps))

    def forward(self, x: Tensor) -> Tensor:
        """``(…, inputs)`` to ``(…, Σ outputs)``."""
        return torch.cat([linear(x) for linear in self.maps], -1)


class Part(nn.Module):
    """Some of the outputs of a linear map."""

    def __init__(self, fused: nn.Linear, start: int, size: int) -> None:
        super().__init__()
        self.fused, self.start, self.size = fused, start, size

    def forward(self, x: Tensor) -> Tensor:
        """``(…, inputs)`` to ``(…, size)``."""
        whole: Tensor = self.fused(x)
        return whole.narrow(-1, self.start, self.size)


class WithMask(nn.Module):
    """A decoder that is given the causal mask, which it would otherwise leave to a flag of SDPA."""

    def __init__(self, embedding_model: nn.Module) -> None:
        super().__init__()
        self.embedding_model = embedding_model

    def forward(self, inputs: Tensor) -> Tensor:
        """See `faithcheck.models.architectures.base_models.Embedded`."""
        batch, n = inputs.shape[:2]
        mask = torch.ones(batch, 1, n, n, dtype=torch.bool, device=inputs.device).tril()
        logits: Tensor = self.embedding_model(inputs, attention_mask=mask)
        return logits


@function_preserving_transform(
    "attention.sdpa",
    why="scaled_dot_product_attention computes what the eager model writes out",
    lrp=WRITTEN_OUT,
)
def sdpa(embedding_model: nn.Module) -> nn.Module:
    """Attention by torch's one operation."""
    model: Any = embedding_model.model
    model.set_attn_implementation("sdpa")
    return embedding_model


@function_preserving_transform(
    "attention.separate",
    why="a linear map's outputs are those of its rows, which may be three maps",
    lrp=CONCATENATED,
    base_models=("gpt2",),
)
def separate(embedding_model: nn.Module) -> nn.Module:
    """Three maps to query, key and value in place of the fused one."""
    for layer in layers(embedding_model):
        layer.attention.c_attn = Concatenated((layer.query, layer.key, layer.value))
    return embedding_model


@function_preserving_transform(
    "attention.fused",
    why="three linear maps of one input are parts of one map",
    lrp=CONCATENATED,
    base_models=("bert", "bert_trained", "roberta", "llama", "vit"),
)
def fused(embedding_model: nn.Module) -> nn.Module:
    """One map to query, key and value, each a part of its outputs."""
    for layer in layers(embedding_model):
        maps = (layer.query, layer.key, layer.value)
        biases = [m.bias for m in maps if m.bias is not None]
        one = as_module(Linear(torch.cat([m.weight for m in maps]), torch.cat(biases) if biases else None))
        start = 0
        for short, long, part in zip("qkv", ("query", "key", "value"), maps, strict=True):
            name = long if hasattr(layer.attention, long) else f"{short}_proj"
            setattr(layer.attention, name, Part(one, start, len(part.weight)))
            start += len(part.weight)
    return embedding_model


def grouped(embedding_model: nn.Module) -> bool:
    """Whether several heads of queries share one of keys and values."""
    return any(layer.key_value_heads < layer.heads for layer in layers(embedding_model))


@function_preserving_transform(
    "attention.expanded",
    why="a head of keys and values that several queries share is as many heads of equal weights",
    lrp=REPEATED,
    base_models=("llama",),
    where=grouped,
)
def expanded(embedding_model: nn.Module) -> nn.Module:
    """A head of keys and values for each of the queries, with repeated weights."""
    model: Any = embedding_model.model
    for layer in layers(embedding_model):
        times = layer.heads // layer.key_value_heads
        rows = torch.arange(len(layer.key.weight)).view(layer.key_value_heads, -1).repeat_interleave(times, 0).flatten()
        for name, old in (("k_proj", layer.key), ("v_proj", layer.value)):
            bias = None if old.bias is None else old.bias[rows]
            setattr(layer.attention, name, as_module(Linear(old.weight[rows], bias)))
        layer.attention.num_key_value_groups = 1
    model.config.num_key_value_heads = model.config.num_attention_heads
    return embedding_model


def grouped_in_sdpa(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """Both by SDPA: f leaves the repetition to its ``enable_gqa``, g has expanded heads."""
    f = sdpa(BASE_MODELS["llama"].model(seed, dtype, device))
    return f, expanded(deepcopy(f)).eval()


register(
    Pair(
        "attention.expanded_sdpa_llama",
        grouped_in_sdpa,
        BASE_MODELS["llama"].case,
        "enable_gqa repeats heads of keys and values, as repeated weights do",
        expected={**INVARIANT_BY_DEFINITION, **expect_lrp(f"{WRITTEN_OUT}; {REPEATED}")},
        axioms=frozenset({"invariance"}),
    )
)


def register_causal(base_model: str) -> None:
    """The pair of a decoder whose SDPA makes the causal mask of a flag, and one that is given the mask."""

    def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
        f = sdpa(BASE_MODELS[base_model].model(seed, dtype, device))
        return f, WithMask(deepcopy(f)).eval()

    why = "SDPA's flag is_causal masks what lies ahead, as the mask does"
    expected = {**INVARIANT_BY_DEFINITION, **expect_lrp(f"{WRITTEN_OUT}, which has either mask before the softmax")}
    axioms = frozenset({"invariance"})
    register(
        Pair(
            f"attention.causal_flag_{base_model}",
            build,
            BASE_MODELS[base_model].case,
            why,
            expected=expected,
            axioms=axioms,
        )
    )


for decoder in ("gpt2", "llama"):
    register_causal(decoder)
