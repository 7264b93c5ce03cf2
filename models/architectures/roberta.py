"""RoBERTa: an encoder like BERT, with positions counted from 2 and a classifier without pooler."""

from collections.abc import Iterator
from typing import Any

import transformers
from transformers import PreTrainedModel

from faithcheck.models.architectures.architecture import CLASSES, SMALL_SIZES, SPECIAL_TOKENS, Architecture
from faithcheck.models.architectures.bert import encoder_layers
from faithcheck.models.architectures.transformer_layer import TransformerLayer, linear_view


def roberta(**options: Any) -> PreTrainedModel:
    """A small `RobertaForSequenceClassification`; ``options`` override its configuration."""
    sizes: dict[str, Any] = {**SMALL_SIZES, "intermediate_size": 24, "max_position_embeddings": 34}
    config = transformers.RobertaConfig(**{**sizes, **SPECIAL_TOKENS, "num_labels": CLASSES, **options})
    return transformers.RobertaForSequenceClassification(config)


def layers(model: Any) -> Iterator[TransformerLayer]:
    """The layers of a RoBERTa; its classifier reads the last norm."""
    return encoder_layers(model.roberta.encoder, linear_view(model.classifier, "dense"))


ARCHITECTURE = Architecture("roberta", roberta, layers)
