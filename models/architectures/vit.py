"""ViT: a pre-LayerNorm encoder of image patches that classifies by a class token."""

from collections.abc import Iterator
from typing import Any

import transformers
from transformers import PreTrainedModel

from faithcheck.models.architectures.architecture import CLASSES, SMALL_SIZES, Architecture
from faithcheck.models.architectures.transformer_layer import TransformerLayer, transformer_layer


def vit(**options: Any) -> PreTrainedModel:
    """A small `ViTForImageClassification` of 2 × 3 patches of 2 × 2 grey pixels; ``options`` override the rest."""
    sizes: dict[str, Any] = {name: size for name, size in SMALL_SIZES.items() if name != "vocab_size"}
    images = {"image_size": (4, 6), "patch_size": 2, "num_channels": 1}
    config = transformers.ViTConfig(**{**sizes, **images, "intermediate_size": 24, "num_labels": CLASSES, **options})
    return transformers.ViTForImageClassification(config)


def layers(model: Any) -> Iterator[TransformerLayer]:
    """The layers of a ViT."""
    for layer in model.vit.layers:
        yield transformer_layer(
            layer,
            heads=model.config.num_attention_heads,
            attention="attention",
            query="attention.q_proj",
            key="attention.k_proj",
            value="attention.v_proj",
            output="attention.o_proj",
            up="mlp.fc1",
            down="mlp.fc2",
            activation="mlp.activation_fn",
            norm_before_attention="layernorm_before",
            norm_before_feed_forward="layernorm_after",
        )


ARCHITECTURE = Architecture("vit", vit, layers, images=True)
