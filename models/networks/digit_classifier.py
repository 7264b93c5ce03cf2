"""Digit classifiers: the training loop, and the cache of trained weights in the user's cache folder."""

import hashlib
import inspect
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from faithcheck.models.data.handwritten_digits import Digits
from faithcheck.models.files import cache_folder, write_atomically


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread inside the block: sums, and so trained weights, depend on the number of threads.

    Small operations gain nothing by a second one, and are twenty times slower if another process keeps that core busy.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Recipe:
    """Adam on cross-entropy, in float32 on the CPU; defaults as in You et al. 2025 (arXiv 2510.18810, §4.1)."""

    epochs: int = 5
    learning_rate: float = 1e-3
    batch_size: int = 4  # not stated there


@dataclass(frozen=True)
class Trained:
    """Weights (float32, CPU), and the share of dev images that they classify correctly, in [0, 1]."""

    weights: dict[str, Tensor]
    accuracy: float


def train(model: type[nn.Module], options: Mapping[str, Any], digits: Digits, seed: int, recipe: Recipe) -> Trained:
    """Train ``model(**options)``: initial weights and order of images follow from the seed.

    The global random state and the number of threads stay as they were. On one machine the weights are the same to the
    bit at every call; on different machines they may differ in the last bits, as sums of floats do.
    """
    images = digits.train_images.to(torch.float32)
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), one_thread():
        torch.manual_seed(seed)
        network = model(**options).to(torch.float32).train()
        optimizer = torch.optim.Adam(network.parameters(), lr=recipe.learning_rate, fused=True)
        for _ in range(recipe.epochs):
            for batch in torch.split(torch.randperm(len(images)), recipe.batch_size):
                optimizer.zero_grad()
                loss = cross_entropy(network(images[batch]), digits.train_labels[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    network.eval()
    with torch.no_grad():
        predicted = network(digits.dev_images.to(torch.float32)).argmax(1)
    accuracy = (predicted == digits.dev_labels).double().mean().item()
    return Trained({name: weight.detach().clone() for name, weight in network.state_dict().items()}, accuracy)


log = logging.getLogger(__name__)


def trained(
    model: type[nn.Module], options: Mapping[str, Any], digits: Digits, seed: int, recipe: Recipe | None = None
) -> Trained:
    """The weights of ``model(**options)`` trained on the digits, from the cache (`cache_folder`) if it has them.

    A file's name is a hash of all that the weights depend on (`_key`), and it holds their checksum: a damaged file is
    replaced by a new training, with a warning. If the folder cannot be written, every call trains again.
    """
    recipe = recipe or Recipe()
    file = cache_folder() / f"{model.__name__}-{_key(model, options, digits, seed, recipe)}.safetensors"
    result = _read(file)
    if result is None:
        result = train(model, options, digits, seed, recipe)
        _write(file, result)
    return result


def _key(model: type[nn.Module], options: Mapping[str, Any], digits: Digits, seed: int, recipe: Recipe) -> str:
    configuration = {
        "model": f"{model.__module__}.{model.__qualname__}",
        "source": [inspect.getsource(model), inspect.getsource(train)],
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
