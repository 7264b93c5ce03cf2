"""The training loop of digit classifiers. `faithcheck.models.training.weights_cache` keeps its results on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from faithcheck.models.data.handwritten_digits import Digits
from faithcheck.models.training.one_thread import one_thread


@dataclass(frozen=True)
class Recipe:
    """How a classifier is trained: Adam on cross-entropy, in float32 on the CPU.

    The defaults are those of You et al. 2025 (arXiv 2510.18810, §4.1), which does not state a batch size.
    """

    epochs: int = 5
    learning_rate: float = 1e-3
    batch_size: int = 4


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
