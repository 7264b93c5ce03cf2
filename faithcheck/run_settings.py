"""The settings of a run, as its results document holds them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from faithcheck.axioms.measure.expectations import SuppliedExpectation
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.protocol import Explainer
from faithcheck.models.data import handwritten_digits
from faithcheck.models.pair import Pair
from faithcheck.options.explainers import origins
from faithcheck.options.pairs import pair_origins
from faithcheck.reports.results import Json
from faithcheck.request import Settings


def run_settings(
    settings: Settings,
    specs: Sequence[str],
    explainers: Sequence[Explainer],
    pairs: Sequence[Pair],
    supplied: Sequence[SuppliedExpectation],
    arguments: Sequence[object],
) -> Json:
    """The settings of a run of the suite.

    Args:
        settings: seed, dtype and device.
        specs: the specs of ``--explainer``; none for the built-in explainers.
        explainers: the explainers that the run checks.
        pairs: the pairs that the run checks on.
        supplied: the expectations of ``--expectations``.
        arguments: the command line.
    """
    return {
        "seed": settings.seed,
        "dtype": str(settings.dtype).removeprefix("torch."),
        "device": str(settings.device),
        "data": handwritten_digits.source(),
        "explainers": [explainer.name for explainer in explainers],
        "specs": {explainer.name: spec for spec, explainer in zip(specs, explainers, strict=False)},
        "origins": origins(specs, explainers),
        "pairs": len(pairs),
        "pair_origins": pair_origins(pairs),
        "expectations": len(supplied),
        "rules": {e.name: sorted(e.rules) for e in explainers if isinstance(e, LRP)},
        "threads": torch.get_num_threads(),
        "arguments": [str(argument) for argument in arguments],
    }
