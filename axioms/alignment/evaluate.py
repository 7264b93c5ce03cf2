"""Alignment with Leave-One-Out over a data set: the maps and perturbation curves of every explainer.

Table 2 of You et al., arXiv 2510.18810, for any model of text or images with the methods ``encode``, which makes
examples, and ``case``, which makes a `Case` of examples.
"""

from __future__ import annotations

import importlib.metadata
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import faithcheck.explainers
from faithcheck.axioms.alignment.perturbation_curves import curves
from faithcheck.axioms.alignment.run_key import StoreError, digest, fingerprint, sources, state_of
from faithcheck.axioms.alignment.store import Store
from faithcheck.explainers.attention_rollout import AttentionRollout
from faithcheck.explainers.gradients import GradientTimesInput, IntegratedGradients
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.removal import Removal
from faithcheck.explainers.lrp.attnlrp import AttnLRP
from faithcheck.explainers.lrp.cplrp import CPLRP
from faithcheck.explainers.protocol import (
    Explainer,
    InvalidAttribution,
    Unsupported,
    attribution_of,
    describe_settings,
)
from faithcheck.models.case import Case

IG_STEPS = 20  # as in the figures that the project compares with; the error of completeness is reported
MAX_TOKENS = 4096
LONG, CHUNK = 128, 16  # texts of more features than LONG are perturbed in chunks, as the paper perturbs IMDB

TABLE_2 = ("loo", "ig_zero", "ig_pad", "ig_mask", "attention_rollout", "gradient_x_input", "attnlrp", "cplrp")
Json = dict[str, Any]

log = logging.getLogger(__name__)


class AlignmentError(ValueError):
    """The data cannot be measured with these settings. The message says why and what to change."""


class Example(Protocol):
    """One example of the data set, as `faithcheck.models.pretrained.example.Example` is one."""

    @property
    def features(self) -> Tensor:
        """The values that the model embeds, one row per feature: ``(features, …)``."""
        ...

    @property
    def special_tokens_mask(self) -> Tensor:
        """``(features,)`` bool, true at special tokens."""
        ...

    @property
    def truncated(self) -> bool:
        """Whether the example was cut to the maximum length."""
        ...


@dataclass(frozen=True)
class AlignmentSettings:
    """How alignment is measured.

    Attributes:
        removal: the way a feature is removed, for LOO and for the curves.
        chunk: how many neighbouring features the curves remove at once; LOO removes single ones.
        max_tokens: the most features in one forward pass, padding included.
        seed: of the bootstrap.
    """

    removal: Removal
    chunk: int = 1
    max_tokens: int = MAX_TOKENS
    seed: int = 0


@dataclass(frozen=True)
class ExplainerResult:
    """The maps and perturbation curves of one explainer, or the reason why it could not be measured.

    Attributes:
        name: the name of the explainer.
        how: its settings, in words.
        records: {example: {"target", "map", "morf", "lerf"}}, empty if the explainer could not be measured.
        refused: why the explainer could not be measured; else empty.
        warned: its warnings, in the order of the batches.
        batches: the number of batches.
    """

    name: str
    how: str
    records: Mapping[int, Json] = field(default_factory=dict)
    refused: str = ""
    warned: Sequence[str] = ()
    batches: int = 0


def table_2(settings: AlignmentSettings) -> list[Explainer]:
    """The explainers of Table 2, with IG from three baselines, and gradient × input.

    LRP is taken in the limit ε → 0. With the paper's ε = 1e-6 a float32 map depends on the other texts of its batch, by
    up to 4e-4 of its largest value on MiniLM: z + ε·sign z jumps if round-off changes the sign of z.
    """
    return [
        LeaveOneOut(settings.removal, max_tokens=settings.max_tokens),
        *(
            IntegratedGradients(IG_STEPS, baseline, f"ig_{baseline}", max_tokens=settings.max_tokens)
            for baseline in ("zero", "pad", "mask")
        ),
        AttentionRollout(),
        GradientTimesInput(),
        AttnLRP(),
        CPLRP(),
    ]


def measurable(examples: Sequence[Example]) -> list[int]:
    """The examples with a feature that is not special, and at least one other feature that remains if it is removed."""
    return [
        i
        for i, example in enumerate(examples)
        if len(example.special_tokens_mask) > 1 and not bool(example.special_tokens_mask.all())
    ]


def batches(examples: Sequence[Example], max_tokens: int) -> list[list[int]]:
    """Which examples run together: examples of similar length, as many as fit one forward pass of LOO, at least one.

    The batches depend on the lengths alone, so that a resumed run has the same batches.

    Raises:
        AlignmentError: no example can be measured, or one alone has more than ``max_tokens`` features.
    """
    order = sorted(measurable(examples), key=lambda i: (len(examples[i].special_tokens_mask), i))
    if not order:
        raise AlignmentError(f"none of the {len(examples)} examples has a feature that is not special")
    groups: list[list[int]] = []
    for i in order:
        n = len(examples[i].special_tokens_mask)
        if n > max_tokens:
            raise AlignmentError(
                f"example {i} has {n} features, more than the {max_tokens} of one forward pass: raise --max-tokens, "
                "or cut the texts with --max-length"
            )
        # The last example is the longest: all rows are padded to its length. LOO has n + 1 rows per example.
        if groups and (len(groups[-1]) + 1) * n * (n + 1) <= max_tokens:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def align(
    model: Any,
    examples: Sequence[Example],
    explainers: Iterable[Explainer],
    settings: AlignmentSettings,
    folder: Path,
    advance: Callable[[str, int], None] = lambda explainer, done: None,
) -> list[ExplainerResult]:
    """Explain the predicted output of every example by every explainer, and measure each map's perturbation curves.

    Measurements are stored in ``folder`` batch by batch; batches that are stored already are not measured again.

    Args:
        model: an `nn.Module` with a method ``case(examples)``.
        examples: from its ``encode``.
        explainers: the explainers; Leave-One-Out must be among them for correlations with it.
        settings: removal, chunk, memory.
        folder: of the stores, one file per explainer.
        advance: called with the explainer's name and the number of examples done since the last call.

    Raises:
        AlignmentError: no example can be measured, or one has too many features.
        StoreError: another run has the store open, or an explainer cannot be written down.
    """
    plan = batches(examples, settings.max_tokens)
    key = common_key(model, examples, plan, settings)
    return [_result(model, examples, plan, explainer, settings, key, folder, advance) for explainer in explainers]


def common_key(model: Any, examples: Sequence[Example], plan: list[list[int]], settings: AlignmentSettings) -> Json:
    """Everything but the explainer that determines the numbers: the part of the run key that all explainers share."""
    assert isinstance(model, nn.Module)
    first = model.case([examples[plan[0][0]]])  # type: ignore[operator]
    return {
        "model": fingerprint(model),
        "examples": [[digest(example.features), digest(example.special_tokens_mask)] for example in examples],
        "replacements": {name: digest(value) for name, value in first.replacements.items()},
        "removal": state_of(settings.removal),
        "chunk": settings.chunk,
        "max_tokens": settings.max_tokens,
        "dtype": str(first.inputs.dtype),
        "device": first.inputs.device.type,
        "threads": torch.get_num_threads(),
        "versions": {name: importlib.metadata.version(name) for name in ("faithcheck", "torch", "transformers")},
        "sources": sources(measure, curves, Case, type(model), faithcheck.explainers),
    }


def _result(
    model: Any,
    examples: Sequence[Example],
    plan: list[list[int]],
    explainer: Explainer,
    settings: AlignmentSettings,
    key: Json,
    folder: Path,
    advance: Callable[[str, int], None],
) -> ExplainerResult:
    with Store(folder, explainer.name, {**key, "explainer": state_of(explainer)}) as store:
        for number, batch in enumerate(plan):
            if number not in store.batches:
                try:
                    store.append(number, measure(model, [examples[i] for i in batch], explainer, settings))
                except (OSError, StoreError):  # the disk failed, not the explainer
                    raise
                except Exception as error:  # an explainer may raise anything; the other explainers still run
                    expected = isinstance(error, Unsupported | InvalidAttribution)
                    if not expected:
                        log.error("%s raised", explainer.name, exc_info=True)
                    advance(explainer.name, sum(map(len, plan[number:])))
                    reason = str(error) if expected else f"it raised {type(error).__name__}: {error}"
                    return ExplainerResult(explainer.name, describe_settings(explainer), refused=reason)
            advance(explainer.name, len(batch))
        measured = [store.batches[number] for number in range(len(plan))]
    contents = zip(plan, measured, strict=True)
    return ExplainerResult(
        explainer.name,
        describe_settings(explainer),
        {i: r for batch, content in contents for i, r in zip(batch, content["records"], strict=True)},
        warned=[warning for content in measured for warning in content["warnings"]],
        batches=len(plan),
    )


def measure(model: Any, examples: Sequence[Example], explainer: Explainer, settings: AlignmentSettings) -> Json:
    """One batch: each example's target, map of its features, and outputs along MoRF and LeRF; and the warnings."""
    case: Case = model.case(examples)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attribution = attribution_of(explainer, model, case)
    records = records_of(model, case, attribution, settings)
    return {"records": records, "warnings": [f"{w.category.__name__}: {w.message}" for w in caught]}


def records_of(model: Any, case: Case, attribution: Tensor, settings: AlignmentSettings) -> list[Json]:
    """What is stored of each example: its target, its map ``(features,)``, and the outputs along MoRF and LeRF."""
    outputs = curves(model, case, attribution, settings.removal, settings.chunk, settings.max_tokens)
    return [
        {
            "target": int(case.target[i]),
            "map": attribution[i, case.unpadded[i]].tolist(),
            "morf": outputs.morf[i].tolist(),
            "lerf": outputs.lerf[i].tolist(),
        }
        for i in range(len(attribution))
    ]
