"""A pair's two models and its case, built once for the checks that follow each other, one f for several pairs.

If a check changed the models (`model_snapshot.restored`), nothing is used again. Each check gets a copy of the case.
"""

from collections import OrderedDict
from typing import NamedTuple

import torch

from faithcheck.axioms.fast import measured_once
from faithcheck.axioms.traces.model_snapshot import ModelSnapshot
from faithcheck.models.case import Case
from faithcheck.models.pair import BuildFromBase, BuildModel, Pair, seed_torch


class Built(NamedTuple):
    """The two models of a pair, each with its state when it was built, and the case."""

    f: ModelSnapshot
    g: ModelSnapshot
    case: Case


CAPACITY = 2
"""The number of pairs that are held. Checks are planned pair by pair, so that few are needed."""

_bases: dict[tuple[BuildModel, int, torch.dtype, torch.device], ModelSnapshot] = {}
_built: OrderedDict[tuple[int, int, torch.dtype, torch.device], tuple[Pair, Built]] = OrderedDict()


def built(pair: Pair, seed: int, dtype: torch.dtype, device: torch.device) -> Built:
    """The models and the case of a pair, from an earlier check with the same settings if they are still held."""
    key = (id(pair), seed, dtype, device)  # the pair is held too, so that no other pair gets its id
    if key not in _built:
        f, g = _models(pair, seed, dtype, device)
        seed_torch(seed)  # whatever random numbers the models took
        _built[key] = pair, Built(f, g, pair.case(seed, dtype, device))
        while len(_built) > CAPACITY:
            _built.popitem(last=False)
    held = _built[key][1]
    return held._replace(case=held.case.copy())


def _models(pair: Pair, seed: int, dtype: torch.dtype, device: torch.device) -> tuple[ModelSnapshot, ModelSnapshot]:
    build = pair.build
    if not isinstance(build, BuildFromBase):
        f, g = build(seed, dtype, device)
        if pair.control:  # several checks of each explainer ask the same of it
            measured_once.share(f)
        return ModelSnapshot(f), ModelSnapshot(g)
    key = build.base, seed, dtype, device
    if key not in _bases:
        _bases[key] = ModelSnapshot(build.base(seed, dtype, device))
        measured_once.share(_bases[key].model)
    return _bases[key], ModelSnapshot(build.rewrite(_bases[key].model, seed))


def discard() -> None:
    """Use nothing again that was built or measured: something was left behind, or a check failed."""
    _built.clear()
    _bases.clear()
    measured_once.forget()
