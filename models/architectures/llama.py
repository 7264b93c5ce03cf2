"""Llama: a decoder with RMSNorm, rotary positions, shared heads of keys and values, and SwiGLU."""

from collections.abc import Iterator
from typing import Any

import transformers
from transformers import PreTrainedModel

from faithcheck.models.architectures.architecture import SMALL_SIZES, SPECIAL_TOKENS, Architecture
from faithcheck.models.architectures.transformer_layer import TransformerLayer, transformer_layer


def llama(**options: Any) -> PreTrainedModel:
    """A small `LlamaForCausalLM`, two query heads on each key-value head; ``options`` override its configuration."""
    sizes: dict[str, Any] = {**SMALL_SIZES, "num_key_value_heads": 2, "intermediate_size": 24}
    config: dict[str, Any] = {**SPECIAL_TOKENS, "max_position_embeddings": 32, "use_cache": False}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **config, **options}))


def layers(model: Any) -> Iterator[TransformerLayer]:
    """The layers of a Llama."""
    for layer in model.model.layers:
        yield transformer_layer(
            layer,
            heads=model.config.num_attention_heads,
            attention="self_attn",
            query="self_attn.q_proj",
            key="self_attn.k_proj",
            value="self_attn.v_proj",
            output="self_attn.o_proj",
            gate="mlp.gate_proj",
            up="mlp.up_proj",
            down="mlp.down_proj",
            activation="mlp.act_fn",
            norm_before_attention="input_layernorm",
            norm_before_feed_forward="post_attention_layernorm",
            rotary=True,
        )


ARCHITECTURE = Architecture("llama", llama, layers, decoder=True)
