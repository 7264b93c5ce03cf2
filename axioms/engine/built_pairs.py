"""What checks need of a pair: its two models and its case, made once for all checks of a pair that follow each other.

A check leaves the models as they were, or they are not used again: `left_behind.restored` says whether it did. Each
check gets a copy of the case.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import torch

from faithcheck.axioms.engine.model_snapshot import ModelSnapshot
from faithcheck.models.case import Case
from faithcheck.models.pair import Pair


class Built(NamedTuple):
    """The two models of a pair, each with its state when it was built, and the case."""

    f: ModelSnapshot
    g: ModelSnapshot
    case: Case


CAPACITY = 2
"""The number of pairs that are held. Checks are planned pair by pair, so that few are needed."""

_built: OrderedDict[tuple[int, int, torch.dtype, torch.device], tuple[Pair, Built]] = OrderedDict()


def built(pair: Pair, seed: int, dtype: torch.dtype, device: torch.device) -> Built:
    """The models and the case of a pair, from an earlier check with the same settings if they are still held."""
    key = (id(pair), seed, dtype, device)  # the pair is held too, so that no other pair gets its id
    if key not in _built:
        f, g = pair.build(seed, dtype, device)
        torch.manual_seed(seed)  # whatever random numbers the models took
        _built[key] = pair, Built(ModelSnapshot(f), ModelSnapshot(g), pair.case(seed, dtype, device))
        while len(_built) > CAPACITY:
            _built.popitem(last=False)
    held = _built[key][1]
    return held._replace(case=held.case.copy())


def discard(pair: Pair) -> None:
    """Do not use the models of a pair again: something was left behind on them, or a check on them failed."""
    for key in [key for key in _built if key[0] == id(pair)]:
        del _built[key]
