"""Models with random weights, each with its copy: the two models of many pairs."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TypeVar

import torch
from torch import nn

from faithcheck.models.pair import Build

Model = TypeVar("Model", bound=nn.Module)

WHY = "a deep copy is the same model"


def model_and_copy(
    make: Callable[[], Model], seed: int, dtype: torch.dtype, device: torch.device, **changed: object
) -> tuple[Model, Model]:
    """A model with the random weights of this seed, and its deep copy with these attributes changed, in eval mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make().to(device, dtype).eval()
    copy = deepcopy(model)
    for name, value in changed.items():
        setattr(copy, name, value)
    return model, copy


def copies(make: Callable[[], nn.Module]) -> Build:
    """A pair's ``build``: a model and its deep copy."""

    def build(seed: int, dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, nn.Module]:
        return model_and_copy(make, seed, dtype, device)

    return build
