"""The settings of a run, as its results document holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.registry import origin
from faithcheck.models.data import handwritten_digits
from faithcheck.options.pairs import pair_origins
from faithcheck.reports.documents.results import NotApplicable, RunSettings
from faithcheck.request import Request


def run_settings(
    request: Request,
    arguments: Sequence[object],
    *,
    max_skips: int | None = None,
    not_applicable: Sequence[NotApplicable] = (),
    claimed: Mapping[str, list[str]] | None = None,
) -> RunSettings:
    """The settings of a run of the suite.

    Args:
        request: what the run is asked for.
        arguments: the command line.
        max_skips: how many tests may be skipped; None for any number.
        not_applicable: the axioms that cannot be measured for some explainers.
        claimed: the axioms of which something is claimed or expected of each explainer that the user named.
    """
    settings, explainers, specs = request.settings, request.explainers, request.specs
    return RunSettings(
        seed=settings.seed,
        dtype=str(settings.dtype).removeprefix("torch."),
        device=str(settings.device),
        data=handwritten_digits.source(),
        threads=torch.get_num_threads(),
        max_skips=max_skips,
        explainers=[explainer.name for explainer in explainers],
        specs=dict(specs),
        origins={one.name: origin(specs.get(one.name, one.name), one) for one in explainers},
        pairs=len(request.pairs),
        pair_origins=pair_origins(request.pairs),
        expectations=len(request.expectations),
        rules={one.name: sorted(one.rules) for one in explainers if isinstance(one, LRP)},
        not_applicable=list(not_applicable),
        arguments=[str(argument) for argument in arguments],
        claimed=dict(claimed or {}),
    )
