"""Alignment with Leave-One-Out over a data set, as in Table 2 of You et al., arXiv 2510.18810, for texts and images."""

import functools
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from torch import nn

import faithcheck.explainers
from faithcheck.alignment.batch import BatchJob, LoadedModel, measure_batch
from faithcheck.alignment.batches import Batches, batches, longest
from faithcheck.alignment.explainer_pass import ExplainerPass, ExplainerResult
from faithcheck.alignment.perturbation_curves import curves
from faithcheck.alignment.run_key import arithmetic, fingerprint, sources, state_of
from faithcheck.alignment.settings import AlignmentSettings
from faithcheck.executors.executor import Executor, Remote
from faithcheck.explainers.protocol import Explainer
from faithcheck.models import targets
from faithcheck.models.case import Case, digest
from faithcheck.models.pretrained.example import Examples


def align(
    model: Any,
    examples: Examples,
    explainers: Iterable[Explainer],
    settings: AlignmentSettings,
    folder: Path,
    advance: Callable[[str, int], None] = lambda explainer, done: None,
    executor: Executor | None = None,
    elsewhere: Callable[[BatchJob], Remote] | None = None,
    device: str | None = None,
) -> list[ExplainerResult]:
    """Explain the output of every example that the model chooses, and measure each map's perturbation curves.

    Batches are stored in ``folder``, and those already there are not measured again. An explainer that raises, whatever
    it raises, does not stop the others; what it leaves behind is undone, and nothing measured on a changed model is
    stored. ``model`` has the methods ``encode``, which made the examples, and ``case``. Correlations need Leave-One-Out
    among the explainers. ``advance`` gets an explainer's name and the examples done since the last call; ``elsewhere``
    makes the job for another process; ``device`` is the type of device that measures, if not the model's.

    `AlignmentError`: no example can be measured, or one is too long. `StoreError`, `OSError`: a store cannot be used.
    """
    executor = executor or Executor()
    passes = passes_of(model, examples, explainers, settings, folder, advance, device)
    load = functools.cache(lambda: LoadedModel(model, longest(examples)))
    of_name = {one.explainer.name: one for one in passes}
    jobs = (
        BatchJob(one.explainer, number, [examples[i] for i in one.plan[number]], settings, load, elsewhere)
        for one in passes
        for number in one.missing()
    )
    measured = 0
    with ExitStack() as stores:
        for name in sorted(of_name):  # in this order, so that two runs never wait for each other
            stores.enter_context(of_name[name])
        for job, content in executor.run(jobs):
            measured += of_name[job.explainer].keep(job.number, content)
    if executor.record is not None:
        executor.record = replace(executor.record, tasks=measured)
    return [one.result() for one in passes]


def passes_of(
    model: Any,
    examples: Examples,
    explainers: Iterable[Explainer],
    settings: AlignmentSettings,
    folder: Path,
    advance: Callable[[str, int], None] = lambda explainer, done: None,
    device: str | None = None,
) -> list[ExplainerPass]:
    """What each explainer is to measure: see `align`, and `ExplainerPass`."""
    plan = batches(examples, settings.max_tokens)
    key = common_key(model, examples, plan, settings)
    if device is not None:
        key["device"] = device
    return [ExplainerPass(explainer, plan, key, folder, advance) for explainer in explainers]


def common_key(model: Any, examples: Examples, plan: Batches, settings: AlignmentSettings) -> dict[str, object]:
    """Everything but the explainer that determines the numbers: the part of the run key that all explainers share."""
    assert isinstance(model, nn.Module)
    first = model.case([examples[plan[0][0]]])  # type: ignore[operator]
    return {
        "model": fingerprint(model),
        "examples": examples.digest,
        "replacements": {name: digest(value) for name, value in first.replacements.items()},
        "removal": state_of(settings.removal),
        "chunk": settings.chunk,
        "max_tokens": settings.max_tokens,
        **arithmetic(first.inputs),
        "sources": sources(measure_batch, batches, curves, Case, type(model), targets, faithcheck.explainers),
    }
