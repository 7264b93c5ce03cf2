"""The models of pairs, built once for all checks of a pair that follow each other.

A check leaves the models as they were, or they are not used again: `left_behind.restored` says whether it did.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

import torch

from faithcheck.axioms.engine.model_snapshot import ModelSnapshot
from faithcheck.models.pair import Pair

Models: TypeAlias = tuple[ModelSnapshot, ModelSnapshot]
"""The two models of a pair, each with its state when it was built."""

CAPACITY = 2
"""The number of pairs whose models are held. Checks are planned pair by pair, so that few are needed."""

_built: OrderedDict[tuple[int, int, torch.dtype, torch.device], tuple[Pair, Models]] = OrderedDict()


def built(pair: Pair, seed: int, dtype: torch.dtype, device: torch.device) -> Models:
    """The two models of a pair, from an earlier check with the same settings if they are still held."""
    key = (id(pair), seed, dtype, device)  # the pair is held too, so that no other pair gets its id
    if key not in _built:
        f, g = pair.build(seed, dtype, device)
        _built[key] = pair, (ModelSnapshot(f), ModelSnapshot(g))
        while len(_built) > CAPACITY:
            _built.popitem(last=False)
    return _built[key][1]


def discard(pair: Pair) -> None:
    """Do not use the models of a pair again: something was left behind on them, or a check on them failed."""
    for key in [key for key in _built if key[0] == id(pair)]:
        del _built[key]
