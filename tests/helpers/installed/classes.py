"""The model classes that `transformers` lists in its auto mappings, by task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from transformers.models.auto import modeling_auto

MAPPINGS: dict[str, Mapping[str, str | tuple[str, ...]] | Mapping[str, Sequence[str]]] = {
    "causal_lm": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "sequence_classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "seq2seq_lm": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "image_classification": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
}
"""The mapping of each task: ``{model_type: the class's name, or several}``."""


@dataclass(frozen=True)
class ModelClass:
    """One class of `transformers`."""

    task: str
    model_type: str
    name: str

    def __str__(self) -> str:
        return f"{self.task}/{self.model_type}/{self.name}"


def installed_classes() -> Iterator[ModelClass]:
    """Every class of every task, in the order of `transformers`; a class may serve several configurations."""
    for task, mapping in MAPPINGS.items():
        for model_type, names in mapping.items():
            for name in (names,) if isinstance(names, str) else names:
                yield ModelClass(task, model_type, name)
