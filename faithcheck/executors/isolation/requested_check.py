"""A check as a request in plain values, from which another process makes the same check."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from faithcheck.json_object import Json
from faithcheck.models.data import handwritten_digits

if TYPE_CHECKING:
    from faithcheck.check import Check
    from faithcheck.explainers.protocol import Explainer
    from faithcheck.models.pair import Pair
    from faithcheck.request import Settings


def request_of(check: Check, settings: Settings, spec: str, checkpoint: Sequence[str] = ()) -> Json:
    """What another process needs to make this check.

    Args:
        check: the check.
        settings: of the run; isolation is left out.
        spec: what loads the explainer: a built-in name, an entry point or ``module:Object``; ``""`` without one.
        checkpoint: the paths of ``--checkpoint``, whose pairs the other process registers.
    """
    name = check.explainer.name if check.explainer else None
    supplied = [one for one in check.supplied if name is not None and one.matches(check.axiom, name, check.subject)]
    return {
        "axiom": check.axiom,
        "explainer": spec,
        "like": getattr(check.explainer, "like", ""),
        "claims": sorted(getattr(check.explainer, "claims", ())),
        "pair": check.pair.name,
        "pair_modules": _modules(check.pair),
        "side": check.side,
        "supplied": [asdict(one) for one in supplied],
        "seed": settings.seed,
        "dtype": str(settings.dtype).removeprefix("torch."),
        "device": str(settings.device),
        "timeout": settings.timeout,
        "reuse": settings.reuse,
        "checkpoint": [*checkpoint],
        "data": None if (folder := handwritten_digits.folder()) is None else str(folder),
    }


def _modules(pair: Pair) -> list[str]:
    """The modules whose import registers the pair."""
    functions = (getattr(make, "func", make) for make in (pair.build, pair.case))
    return sorted({function.__module__ for function in functions})


# --- in the other process --------------------------------------------------------------------------------------------


def check_of(request: Json) -> tuple[Check, Settings]:
    """The check of a request, and its settings.

    Raises:
        ValueError: the pair is not registered by its module, or the explainer cannot be loaded.
    """
    from faithcheck.axioms.measure.expectations import SuppliedExpectation
    from faithcheck.check import Check
    from faithcheck.models.expectation import Expectation
    from faithcheck.request import Settings

    pair, explainer = _pair(request), None
    if request["explainer"]:
        explainer = _held(request["explainer"], request["like"], tuple(request["claims"]))
    supplied = [
        SuppliedExpectation(**{**one, "expectation": Expectation(**one["expectation"])}) for one in request["supplied"]
    ]
    dtype, device = getattr(torch, request["dtype"]), torch.device(request["device"])
    settings = Settings(request["seed"], dtype, device, request["timeout"], request["reuse"])
    return Check(request["axiom"], explainer, pair, request["side"], supplied), settings


@functools.cache
def _held(spec: str, like: str, claims: tuple[str, ...]) -> Explainer:
    """One object for all checks, so that what was measured of it once is used again."""
    from faithcheck.axioms.measure.expectations import held_like
    from faithcheck.claims import claiming

    explainer = explainer_of(spec)
    return claiming(held_like(explainer, like) if like else explainer, claims)


@functools.cache
def explainer_of(spec: str) -> Explainer:
    """The explainer that the spec names, loaded once a process.

    Raises:
        ValueError: it cannot be loaded.
    """
    from faithcheck.explainers.registry import load_explainer

    return load_explainer(spec)


@functools.cache
def _use_data(folder: str | None) -> None:
    handwritten_digits.use_folder(folder)


def _pair(request: Json) -> Pair:
    from faithcheck.models.pair import registered_pairs

    _use_data(request["data"])
    for module in request["pair_modules"]:
        importlib.import_module(module)
    pairs = registered_pairs()
    if request["pair"] not in pairs and request["checkpoint"]:
        from faithcheck.models.transform import register_checkpoint

        register_checkpoint(*request["checkpoint"])
        pairs = registered_pairs()
    if request["pair"] not in pairs:
        raise ValueError(
            f"the pair {request['pair']} is not registered by importing {', '.join(request['pair_modules'])}, which "
            "a process of its own needs: register it there, or leave out --isolate or --ray"
        )
    return pairs[request["pair"]]
