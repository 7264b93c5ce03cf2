"""All architectures and base models, collected from the files of this package: those with an `ARCHITECTURE`."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

from torch import nn

from faithcheck.models import architectures
from faithcheck.models.architectures.architecture import Architecture, BaseModel
from faithcheck.models.architectures.transformer_layer import TransformerLayer


def _find_architectures() -> Iterator[Architecture]:
    for entry in pkgutil.iter_modules(architectures.__path__, architectures.__name__ + "."):
        if entry.name != __name__:
            module = importlib.import_module(entry.name)
            if isinstance(architecture := getattr(module, "ARCHITECTURE", None), Architecture):
                yield architecture


ARCHITECTURES: dict[str, Architecture] = {architecture.name: architecture for architecture in _find_architectures()}
"""All architectures, by the ``model_type`` of their configuration."""

BASE_MODELS: dict[str, BaseModel] = {
    base_model.name: base_model for architecture in ARCHITECTURES.values() for base_model in architecture.base_models
}
"""All base models by name."""


def architecture_of(embedding_model: nn.Module) -> Architecture:
    """The architecture of an embedding model; `ValueError` for a family that no file of this package describes."""
    model: Any = embedding_model.model
    model_type = model.config.model_type
    if model_type not in ARCHITECTURES:
        raise ValueError(f"unknown architecture {model_type!r}: expected one of {', '.join(sorted(ARCHITECTURES))}")
    return ARCHITECTURES[model_type]


def layers(embedding_model: nn.Module) -> Iterator[TransformerLayer]:
    """The layers of an embedding model, first to last; errors as of `architecture_of`."""
    return architecture_of(embedding_model).layers(embedding_model.model)
