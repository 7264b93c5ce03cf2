"""BERT: a post-LayerNorm encoder that classifies by its first token; small, small with ReLU, and the trained one."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import transformers
from transformers import PreTrainedModel

from faithcheck.models.architectures.architecture import (
    CLASSES,
    SMALL_SIZES,
    Architecture,
    BaseModel,
    random_features,
    random_weights,
    trained,
)
from faithcheck.models.architectures.transformer_layer import (
    FoldableNorm,
    LinearView,
    TransformerLayer,
    linear_view,
    transformer_layer,
)
from faithcheck.models.pretrained import SENTIMENT


def bert(**options: Any) -> PreTrainedModel:
    """A small `BertForSequenceClassification`; ``options`` override its configuration."""
    sizes: dict[str, Any] = {**SMALL_SIZES, "intermediate_size": 24, "max_position_embeddings": 32}
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(**{**sizes, "num_labels": CLASSES, **options})
    )


def layers(model: Any) -> Iterator[TransformerLayer]:
    """The layers of a BERT; its pooler reads the last norm."""
    return encoder_layers(model.bert.encoder, linear_view(model.bert.pooler, "dense"))


def encoder_layers(encoder: Any, head: LinearView) -> Iterator[TransformerLayer]:
    """The layers of an encoder whose modules are named as BERT's; the map ``head`` reads the last norm."""
    for layer in encoder.layer:
        last = layer is encoder.layer[-1]
        yield transformer_layer(
            layer,
            heads=encoder.config.num_attention_heads,
            attention="attention.self",
            query="attention.self.query",
            key="attention.self.key",
            value="attention.self.value",
            output="attention.output.dense",
            up="intermediate.dense",
            down="output.dense",
            activation="intermediate.intermediate_act_fn",
            norms=(FoldableNorm(layer.output.LayerNorm, (head,)),) if last else (),
        )


ARCHITECTURE = Architecture(
    "bert",
    bert,
    layers,
    further_base_models=(
        BaseModel("bert_relu", random_weights(partial(bert, hidden_act="relu")), random_features(), variant=True),
        trained("bert_trained", str(SENTIMENT), blueprint=random_weights(bert)),
    ),
)
