"""Training of the small models, and a cache of trained weights in the user's cache folder."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import sys
import tempfile
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

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """How a classifier is trained: Adam on cross-entropy, in float32 on the CPU. The paper states no batch size."""

    epochs: int = 5
    learning_rate: float = 1e-3
    batch_size: int = 4


@dataclass(frozen=True)
class Trained:
    """Weights (float32, CPU), and the share of dev images that they classify correctly."""

    weights: dict[str, Tensor]
    accuracy: float


def trained(
    model: type[nn.Module], options: Mapping[str, Any], digits: Digits, seed: int, recipe: Recipe | None = None
) -> Trained:
    """The weights of ``model(**options)`` trained on the digits, from the cache where it has them.

    The cache is `cache_folder`. A file's name is a hash of the model's source, its options, the recipe, the seed, the
    data and torch's version, so weights of anything else are never taken. A damaged file is trained anew and replaced,
    with a warning in the log; a folder that cannot be written costs the training each time, with a line in the log.
    """
    recipe = recipe or Recipe()
    configuration = {
        "model": f"{model.__module__}.{model.__qualname__}",
        "source": [inspect.getsource(model), inspect.getsource(sys.modules[__name__])],
        "options": dict(options),
        "recipe": asdict(recipe),
        "seed": seed,
        "data": digits.fingerprint,
        "torch": str(torch.__version__),
    }
    key = hashlib.sha256(json.dumps(configuration, sort_keys=True).encode()).hexdigest()
    file = cache_folder() / f"{model.__name__}-{key[:32]}.safetensors"
    result = _read(file)
    if result is None:
        result = train(model, options, digits, seed, recipe)
        _write(file, result)
    return result


def train(model: type[nn.Module], options: Mapping[str, Any], digits: Digits, seed: int, recipe: Recipe) -> Trained:
    """Train ``model(**options)``: initial weights and order of images follow from the seed.

    The global random state and number of threads are left as they were. On one machine the weights are the same to the
    bit at every call; across machines they may differ in the last bits, as sums of floats do.
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


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread inside, and on as many as before after.

    The order of summation, and so trained weights, depend on the number of threads. And small operations gain nothing
    from a second one, but lose a factor of twenty to its synchronisation where another process has the other core.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/faithcheck``, or ``~/.cache/faithcheck`` where that is not set."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "faithcheck"


def _read(file: Path) -> Trained | None:
    """The cached weights, or None where there are none or they are damaged."""
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as archive:
            weights = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118 (not a dict)
            return Trained(weights, float(archive.metadata()["accuracy"]))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        log.warning("cached weights %s are damaged (%s): training anew", file, error)
        return None


def _write(file: Path, result: Trained) -> None:
    """Write to a temporary file and rename, so that another process never reads half a file."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as part:
            try:
                part.write(save(result.weights, {"accuracy": repr(result.accuracy)}))
                part.close()
                os.replace(part.name, file)
            except BaseException:
                os.unlink(part.name)
                raise
    except OSError as error:
        log.info("trained weights are not cached, %s cannot be written: %s", file, error)
