"""The settings of a run, as its results document holds them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.registry import origin
from faithcheck.models.data import handwritten_digits
from faithcheck.options.pairs import pair_origins
from faithcheck.reports.results import Json
from faithcheck.request import Request


def run_settings(request: Request, arguments: Sequence[object]) -> Json:
    """The settings of a run of the suite.

    Args:
        request: what the run is asked for.
        arguments: the command line.
    """
    settings, explainers, specs = request.settings, request.explainers, request.specs
    return {
        "seed": settings.seed,
        "dtype": str(settings.dtype).removeprefix("torch."),
        "device": str(settings.device),
        "data": handwritten_digits.source(),
        "explainers": [explainer.name for explainer in explainers],
        "specs": dict(specs),
        "origins": {one.name: origin(specs.get(one.name, one.name), one) for one in explainers},
        "pairs": len(request.pairs),
        "pair_origins": pair_origins(request.pairs),
        "expectations": len(request.expectations),
        "rules": {e.name: sorted(e.rules) for e in explainers if isinstance(e, LRP)},
        "threads": torch.get_num_threads(),
        "arguments": [str(argument) for argument in arguments],
    }
