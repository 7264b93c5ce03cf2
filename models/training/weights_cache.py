"""A cache of trained weights in the user's cache folder."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from faithcheck.models.atomic_write import write_atomically
from faithcheck.models.cache_folder import cache_folder
from faithcheck.models.data.handwritten_digits import Digits
from faithcheck.models.training import digit_classifier
from faithcheck.models.training.digit_classifier import Recipe, Trained

log = logging.getLogger(__name__)


def trained(
    model: type[nn.Module], options: Mapping[str, Any], digits: Digits, seed: int, recipe: Recipe | None = None
) -> Trained:
    """The weights of ``model(**options)`` trained on the digits, from the cache if it has them.

    The cache is `cache_folder`. A file's name is a hash of the model's source, its options, the training loop's source,
    the recipe, the seed, the data and torch's version, so the weights of another training are never used. A file holds
    a checksum of its weights: a damaged one is replaced by a new training, with a warning in the log that names it. If
    the folder cannot be written, every call trains again, with a line in the log.

    Args:
        model: the class of a network, called with ``options``.
        options: its arguments, as JSON has them.
        digits: the data to train and to evaluate on.
        seed: of the initial weights and of the order of images.
        recipe: how to train; the default `Recipe` if None.
    """
    recipe = recipe or Recipe()
    file = cache_folder() / f"{model.__name__}-{_key(model, options, digits, seed, recipe)}.safetensors"
    result = _read(file)
    if result is None:
        result = digit_classifier.train(model, options, digits, seed, recipe)
        _write(file, result)
    return result


def _key(model: type[nn.Module], options: Mapping[str, Any], digits: Digits, seed: int, recipe: Recipe) -> str:
    configuration = {
        "model": f"{model.__module__}.{model.__qualname__}",
        "source": [inspect.getsource(model), inspect.getsource(digit_classifier)],
        "options": dict(options),
        "recipe": asdict(recipe),
        "seed": seed,
        "data": digits.fingerprint,
        "torch": str(torch.__version__),
        "checksum": "sha256",
    }
    return hashlib.sha256(json.dumps(configuration, sort_keys=True).encode()).hexdigest()[:32]


def _read(file: Path) -> Trained | None:
    """The cached weights, or None if there is no file or it is damaged."""
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as archive:
            weights = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118 (not a dict)
            metadata = json.loads(archive.metadata()["training"])
            result = Trained(weights, float(metadata["accuracy"]))
            if metadata["sha256"] == _checksum(result):
                return result
            damage = "their checksum is another one"
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        damage = f"{type(error).__name__}: {error}"
    log.warning("cached weights %s are damaged (%s): training again", file, damage)
    return None


def _write(file: Path, result: Trained) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # In one entry: safetensors writes several in any order, and equal trainings give equal files.
        metadata = {"accuracy": result.accuracy, "sha256": _checksum(result)}
        write_atomically(file, save(result.weights, {"training": json.dumps(metadata)}))
    except OSError as error:
        log.info("trained weights are not cached, %s cannot be written: %s", file, error)


def _checksum(result: Trained) -> str:
    """SHA-256 of the accuracy, and of each tensor's name, dtype, shape and values."""
    hashed = hashlib.sha256(repr(result.accuracy).encode())
    for name in sorted(result.weights):
        weight = result.weights[name].contiguous()
        hashed.update(f"{name} {weight.dtype} {tuple(weight.shape)} ".encode())
        hashed.update(weight.flatten().view(torch.uint8).numpy().data)
    return hashed.hexdigest()
