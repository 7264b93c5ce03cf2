"""GPT-2: a pre-LayerNorm decoder with one fused map to queries, keys and values."""

from collections.abc import Iterator
from typing import Any

import transformers
from transformers import PreTrainedModel

from faithcheck.models.architectures.architecture import HEADS, SPECIAL_TOKENS, WIDTH, Architecture
from faithcheck.models.architectures.transformer_layer import TransformerLayer, transformer_layer


def gpt2(**options: Any) -> PreTrainedModel:
    """A small `GPT2LMHeadModel` with GELU in its tanh form; ``options`` override its configuration."""
    sizes: dict[str, Any] = {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": 32, "vocab_size": 16}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**{**SPECIAL_TOKENS, **sizes, "use_cache": False, **options})
    )


def layers(model: Any) -> Iterator[TransformerLayer]:
    """The layers of a GPT-2."""
    for layer in model.transformer.h:
        yield transformer_layer(
            layer,
            heads=model.config.num_attention_heads,
            attention="attn",
            query_key_value="attn.c_attn",
            output="attn.c_proj",
            up="mlp.c_fc",
            down="mlp.c_proj",
            activation="mlp.act",
            norm_before_attention="ln_1",
            norm_before_feed_forward="ln_2",
        )


ARCHITECTURE = Architecture("gpt2", gpt2, layers, decoder=True)
