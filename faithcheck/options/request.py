"""The request that options make. The front doors give the same names to what means the same."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from faithcheck.alignment.settings import AlignRequest
from faithcheck.axioms.measure.expectations import SuppliedExpectation
from faithcheck.check import Check
from faithcheck.options import OptionError
from faithcheck.options.computing import choose_device, choose_timeout
from faithcheck.options.explainers import choose_claims, choose_explainers, hold_like
from faithcheck.options.pairs import choose_pairs
from faithcheck.plan import axioms_of, checks_of_request, pairs_with_maps
from faithcheck.request import Place, Request, Settings


def choose_settings(options: Any) -> Settings:
    """The settings: ``seed``, ``dtype``, ``device``, ``explainer_timeout``."""
    on_workers = getattr(options, "gpus_per_worker", 0)  # this machine needs no GPU
    return Settings(
        seed=options.seed,
        dtype=getattr(torch, options.dtype),
        device=torch.device("cuda") if on_workers else choose_device(options.device),
        timeout=choose_timeout(options.explainer_timeout),
        reuse=True,
    )


def choose_place(options: Any) -> Place:
    """Where the run computes: ``isolate``, and the options of a cluster where the front door has them."""
    cluster = ("workers", "cpus_per_worker", "gpus_per_worker")
    given = {name: getattr(options, name) for name in cluster if hasattr(options, name)}
    return Place(options.isolate, getattr(options, "ray", None), **given)


def choose_request(
    options: Any,
    specs: Sequence[str],
    axioms: Sequence[str],
    expectations: Sequence[SuppliedExpectation],
    settings: Settings,
    checkpoint: Sequence[str] = (),
) -> Request:
    """The request, for these axioms. Without specs, all built-in explainers are checked."""
    explainers = hold_like(options.like, specs, choose_explainers(specs))
    if specs or options.claim:  # claims are about explainers that the user names: without one they are refused
        explainers = choose_claims(options.claim, explainers if specs else [])
    by_name = {explainer.name: spec for spec, explainer in zip(specs, explainers, strict=False)}
    pairs = choose_pairs(options.pairs)
    return Request(explainers, axioms, pairs, by_name, expectations, settings, checkpoint, choose_place(options))


def choose_checks(
    options: Any, specs: Sequence[str], expectations: Sequence[SuppliedExpectation], settings: Settings
) -> tuple[Request, list[Check]]:
    """The request of ``faithcheck check``, and its checks: see `choose_request`."""
    request = choose_request(options, specs, (), expectations, settings)
    pairs = request.pairs if options.pairs else pairs_with_maps(request.explainers, request.pairs)
    try:
        request = replace(request, axioms=axioms_of(options.axiom, request.explainers, pairs), pairs=pairs)
        return request, checks_of_request(request)
    except ValueError as error:
        raise OptionError(str(error)) from error


def choose_align_request(options: Any) -> AlignRequest:
    """The request of ``faithcheck align``."""
    given = {field.name: getattr(options, field.name, None) for field in fields(AlignRequest)}
    own = {name: value for name, value in given.items() if value is not None}
    return AlignRequest(**own, settings=choose_settings(options), place=choose_place(options))
