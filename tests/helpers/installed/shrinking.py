"""A small configuration of any class: every size that its name tells is replaced by a small one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from faithcheck.tests.helpers.installed.own_sizes import OWN_SIZES

WIDTH, HEADS, HEAD, VOCABULARY, LAYERS, CLASSES = 32, 4, 8, 64, 2, 3
IMAGE, PATCH = 32, 8
SPECIAL_TOKENS = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}

SIZES = (
    (r"vocab", VOCABULARY),
    (r"experts_per_tok|num_experts_per|top_?k(_experts)?$|moe_k$|topk_group$", 2),
    (r"(num|n)_(\w+_)?experts$|moe_num_experts", 4),
    (r"n_group$|num_expert_groups?", 2),
    (r"shared_experts?$", 1),
    (r"kv_shared", 0),
    (r"(key_value|kv)_heads|linear_num_key_heads", 2),
    (r"head_dim|head_size|d_kv|kv_channels|dim_head|rotary_dim|d_head|lora_rank", HEAD),
    (r"head", HEADS),
    (r"layers$|n_layer$|depth$", LAYERS),
    (r"intermediate|ffn|d_ff|n_inner|d_inner|dim_ff|hidden_dim$|feed_?forward", 48),
    (r"hidden_size|d_model|n_embd|emb(ed)?_dim|embedding_(size|dim)|width|emb_size|^dim$|projection_dim", WIDTH),
    (r"position|n_ctx|seq_len|max_length|context_length", 128),
    (r"latents", WIDTH),
    (r"filters", HEAD),
    (r"d_state|state_size", HEAD),
    (r"dt_rank|time_step_rank", 4),
    (r"image_size", IMAGE),
    (r"patch_size", PATCH),
)
"""Regular expressions of attributes and their sizes; the first that matches counts, and a size never grows."""

SIZES_OF_STAGES = (
    (r"depths$|num_blocks", 1),
    (r"head", 2),
    (r"hidden_sizes|embed_dims?$|^dims?$|channels|width", 16),
)
"""The same for lists, of which each stage of an image model takes one number."""


def small_configuration(model_type: str, **options: Any) -> PreTrainedConfig:
    """The configuration of this model_type with small sizes; ``options`` override all others."""
    kind = CONFIG_MAPPING[model_type]
    own = OWN_SIZES.get(model_type, {})
    return kind(**{**small_sizes(kind()), **SPECIAL_TOKENS, **own, **options})


def small_sizes(configuration: PreTrainedConfig) -> dict[str, Any]:
    """The sizes of a configuration, made small, and those of the configurations within it."""
    sizes: dict[str, Any] = {name: token for name, token in SPECIAL_TOKENS.items() if name in vars(configuration)}
    heads = vars(configuration).get("num_attention_heads")
    for name, value in vars(configuration).items():
        if isinstance(value, PreTrainedConfig):
            sizes[name] = {**small_sizes(value), **OWN_SIZES.get(value.model_type, {}), "model_type": value.model_type}
        elif isinstance(value, int) and not isinstance(value, bool) and not name.startswith("_"):
            if name == "qk_head_dim":  # the sum of two others
                continue
            if name.endswith(("token_id", "token_index")):
                sizes.setdefault(name, min(value, VOCABULARY - 1))
            elif (size := small_size(name)) is not None:
                sizes[name] = min(value, HEADS if "key_value" in name and value == heads else size)
        elif isinstance(value, list | tuple) and (size := small_size(name, SIZES_OF_STAGES)) is not None:
            sizes[name] = [type(number)(min(number, size)) for number in value]
    return sizes


def small_size(name: str, sizes: Sequence[tuple[str, int]] = SIZES) -> int | None:
    """The small size of an attribute of this name; None: its name tells no size."""
    return next((size for pattern, size in sizes if re.search(pattern, name)), None)
