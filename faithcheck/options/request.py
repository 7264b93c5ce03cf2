"""The request that the options of pytest and of ``faithcheck check`` make, which have the same names in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from faithcheck.axioms.measure.expectations import SuppliedExpectation
from faithcheck.options.computing import choose_timeout
from faithcheck.options.explainers import choose_claims, choose_explainers, hold_like
from faithcheck.options.pairs import choose_pairs
from faithcheck.request import Request, Settings


def choose_settings(options: Any, device: torch.device) -> Settings:
    """The settings of the checks.

    Args:
        options: with ``seed``, ``dtype`` and ``explainer_timeout``.
        device: the device that computes.

    Raises:
        OptionError: the time limit cannot be used.
    """
    return Settings(
        seed=options.seed,
        dtype=getattr(torch, options.dtype),
        device=device,
        timeout=choose_timeout(options.explainer_timeout),
        reuse=True,
    )


def choose_request(
    options: Any,
    specs: Sequence[str],
    axioms: Sequence[str],
    expectations: Sequence[SuppliedExpectation],
    settings: Settings,
    checkpoint: Sequence[str] = (),
) -> Request:
    """The request, for these axioms.

    Args:
        options: with ``like``, ``claim`` and ``pairs``.
        specs: the explainers that the user names; none for all built-in ones.
        axioms: names in `AXIOMS`.
        expectations: the user's own.
        settings: see `choose_settings`.
        checkpoint: the user's own model; its pairs are registered.

    Raises:
        OptionError: an explainer cannot be loaded, there is no such pair, or what is claimed is no axiom.
    """
    explainers = hold_like(options.like, specs, choose_explainers(specs))
    if specs or options.claim:  # claims are about explainers that the user names: without one they are refused
        explainers = choose_claims(options.claim, explainers if specs else [])
    by_name = {explainer.name: spec for spec, explainer in zip(specs, explainers, strict=False)}
    pairs = choose_pairs(options.pairs)
    return Request(explainers, axioms, pairs, by_name, expectations, settings, checkpoint)
