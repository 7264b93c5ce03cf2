"""Alignment with Leave-One-Out over a data set: every explainer's maps and perturbation curves, and what they say.

Table 2 of You et al., arXiv 2510.18810, for any model of text or images that can `encode` and make a `case`.
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
from faithcheck.axioms.alignment.store import Store, digest, fingerprint, settings_of, sources
from faithcheck.explainers.attention_rollout import AttentionRollout
from faithcheck.explainers.gates.grouped_mask_gate import GroupedMaskGate
from faithcheck.explainers.gradients import GradientTimesInput, IntegratedGradients
from faithcheck.explainers.loo.budget import BudgetedLeaveOneOut
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.removal import AttentionMask, Deletion, GaussianNoise, Removal, Replacement, Resampling
from faithcheck.explainers.lrp.attnlrp import AttnLRP
from faithcheck.explainers.lrp.cplrp import CPLRP
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.rules.norms import layer_norm_rule
from faithcheck.explainers.protocol import Explainer, InvalidAttribution, Unsupported, attribution_of
from faithcheck.models.case import Case

IG_STEPS = 20  # as in the figures that the project compares with; what it misses of completeness is reported
MAX_TOKENS = 4096
LONG, CHUNK = 128, 16  # texts of more features than LONG are perturbed in chunks: the paper's IMDB setting

TABLE_2 = ("loo", "ig_zero", "ig_pad", "ig_mask", "attention_rollout", "gradient_x_input", "attnlrp", "cplrp")
Json = dict[str, Any]


log = logging.getLogger(__name__)


class AlignmentError(ValueError):
    """The data cannot be measured as asked. The message says why and what to change."""


class Example(Protocol):
    """One example as its features: `faithcheck.models.pretrained.example.Example`."""

    @property
    def features(self) -> Tensor:
        """What the model embeds, a row per feature."""
        ...

    @property
    def special_tokens_mask(self) -> Tensor:
        """``(n,)`` bool, true at special positions."""
        ...

    @property
    def truncated(self) -> bool:
        """Whether it was cut."""
        ...


class Reader(Protocol):
    """A module that makes its own cases: `faithcheck.models.pretrained.text_model.TextModel`."""

    def case(self, examples: Sequence[Any]) -> Case:
        """The case of these examples, the predicted output explained."""
        ...


@dataclass(frozen=True)
class Setup:
    """How alignment is measured.

    Attributes:
        removal: what a removed feature is, for LOO and for the curves.
        chunk: how many neighbouring features the curves remove at once; LOO removes single ones.
        max_tokens: the most features in one forward pass, padding included.
        seed: of the bootstrap.
    """

    removal: Removal
    chunk: int = 1
    max_tokens: int = MAX_TOKENS
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """What one explainer gave.

    Attributes:
        name: the explainer's.
        how: its settings, in words.
        records: {example: {"target", "map", "morf", "lerf"}}, empty where it was refused.
        refused: why the explainer could not be measured; empty where it was.
        warned: its warnings, in the order of the batches.
        batches: how many there were.
    """

    name: str
    how: str
    records: Mapping[int, Json] = field(default_factory=dict)
    refused: str = ""
    warned: Sequence[str] = ()
    batches: int = 0


def table_2(setup: Setup) -> list[Explainer]:
    """The explainers of Table 2, with IG from three baselines, and gradient × input.

    LRP in the limit ε → 0: with the paper's 1e-6, a float32 map depends on the batch that its text is in, by up to
    4e-4 of its largest value on MiniLM, as z + ε·sign z jumps where round-off moves z past 0.
    """
    return [
        LeaveOneOut(setup.removal, max_tokens=setup.max_tokens),
        *(
            IntegratedGradients(IG_STEPS, baseline, f"ig_{baseline}", max_tokens=setup.max_tokens)
            for baseline in ("zero", "pad", "mask")
        ),
        AttentionRollout(),
        GradientTimesInput(),
        AttnLRP(),
        CPLRP(),
    ]


def described(used: object) -> str:
    """An explainer or a removal in words: what it is set to."""
    match used:
        case LeaveOneOut():
            return f"removed: {described(used.removal)}"
        case IntegratedGradients():
            start = used.baseline or "the case's baseline"
            return f"Gauss–Legendre quadrature of {used.steps} nodes on the way from {start}"
        case AttentionRollout():
            form = (
                "½A + ½I a layer (Abnar & Zuidema)"
                if used.residual
                else "A a layer, without residual (the paper's form)"
            )
            row = "the row that the output is read at" if used.row is None else f"row {used.row}"
            return f"{form}, mean over heads, {row}"
        case LRP():
            norm = "; σ of LayerNorm held constant" if used.rules.get("layer_norm") is layer_norm_rule else ""
            return (f"ε = {used.epsilon:g}" if used.epsilon else "ε → 0") + norm
        case GroupedMaskGate():
            return f"{used.groups} groups of features, each halfway to being removed in a pass of its own"
        case BudgetedLeaveOneOut():
            rows = f"{used.budget:.0%} of full LOO's rows" if isinstance(used.budget, float) else f"{used.budget} rows"
            targets = {"error": used.error, "correlation": used.correlation}
            return "; ".join([rows, *(f"to a {name} of {value:g}" for name, value in targets.items() if value)])
        case AttentionMask():
            return "attention mask 0, as in the paper"
        case Replacement():
            return f"replaced by {used.name}"
        case Deletion():
            return "deleted, the rest closing up"
        case Resampling():
            return f"replaced by one of the data set, mean of {used.draws} draws, seed {used.seed}"
        case GaussianNoise():
            noise = f"Gaussian noise of {used.scale:g} × its root mean square added"
            return f"{noise}, mean of {used.draws} draws, seed {used.seed}"
    return f"{type(used).__module__}.{type(used).__qualname__}"


def measurable(examples: Sequence[Example]) -> list[int]:
    """The examples that have a feature which is not special, and something that is left without it."""
    return [
        i
        for i, example in enumerate(examples)
        if len(example.special_tokens_mask) > 1 and not bool(example.special_tokens_mask.all())
    ]


def batches(examples: Sequence[Example], max_tokens: int) -> list[list[int]]:
    """Which examples run together: those of like length, so many that LOO fits one forward pass, at least one.

    It depends on nothing but the lengths, so that a run that goes on has the batches that it had.

    Raises:
        AlignmentError: no example can be measured, or one alone has more than ``max_tokens`` features.
    """
    order = sorted(measurable(examples), key=lambda i: (len(examples[i].special_tokens_mask), i))
    if not order:
        raise AlignmentError(f"none of the {len(examples)} examples has a feature that is not special")
    found: list[list[int]] = []
    for i in order:
        n = len(examples[i].special_tokens_mask)
        if n > max_tokens:
            raise AlignmentError(
                f"example {i} has {n} features, more than the {max_tokens} of one forward pass: raise --max-tokens, "
                "or cut the texts with --max-length"
            )
        # The longest comes last: every row is padded to its length; LOO has n rows and the whole.
        if found and (len(found[-1]) + 1) * n * (n + 1) <= max_tokens:
            found[-1].append(i)
        else:
            found.append([i])
    return found


def align(
    model: Any,
    examples: Sequence[Example],
    explainers: Iterable[Explainer],
    setup: Setup,
    folder: Path,
    advance: Callable[[str, int], None] = lambda explainer, done: None,
) -> list[Outcome]:
    """Explain the predicted output of every example by every explainer, and follow each map's perturbation curves.

    What is measured is kept in ``folder`` batch by batch; what is there already is not measured again.

    Args:
        model: an `nn.Module` that is a `Reader` too.
        examples: from its ``encode``.
        explainers: LOO, if it is to be compared with, among them.
        setup: removal, chunk, memory.
        folder: of the stores, one file an explainer.
        advance: called with the explainer's name and the number of examples done since the last call.

    Raises:
        AlignmentError: no example has features, or one has too many.
        StoreError: another run has the store, or an explainer cannot be written down.
    """
    plan = batches(examples, setup.max_tokens)
    common = determining(model, examples, plan, setup)
    return [_outcome(model, examples, plan, explainer, setup, common, folder, advance) for explainer in explainers]


def determining(model: Any, examples: Sequence[Example], plan: list[list[int]], setup: Setup) -> Json:
    """What determines the numbers, but for the explainer."""
    assert isinstance(model, nn.Module)
    first = model.case([examples[plan[0][0]]])  # type: ignore[operator]
    return {
        "model": fingerprint(model),
        "examples": [[digest(example.features), digest(example.special_tokens_mask)] for example in examples],
        "references": {name: digest(value) for name, value in first.replacements.items()},
        "removal": settings_of(setup.removal),
        "chunk": setup.chunk,
        "max_tokens": setup.max_tokens,
        "dtype": str(first.inputs.dtype),
        "device": first.inputs.device.type,
        "threads": torch.get_num_threads(),
        "versions": {name: importlib.metadata.version(name) for name in ("faithcheck", "torch", "transformers")},
        "sources": sources(measure, curves, Case, type(model), faithcheck.explainers),
    }


def _outcome(
    model: Any,
    examples: Sequence[Example],
    plan: list[list[int]],
    explainer: Explainer,
    setup: Setup,
    common: Json,
    folder: Path,
    advance: Callable[[str, int], None],
) -> Outcome:
    with Store(folder, explainer.name, {**common, "explainer": settings_of(explainer)}) as store:
        for number, batch in enumerate(plan):
            if number not in store.batches:
                try:
                    store.append(number, measure(model, [examples[i] for i in batch], explainer, setup))
                except OSError:  # of the disk
                    raise
                except Exception as error:  # a stranger's explainer may raise anything; the others run on
                    expected = isinstance(error, Unsupported | InvalidAttribution)
                    if not expected:
                        log.error("%s raised", explainer.name, exc_info=True)
                    advance(explainer.name, sum(map(len, plan[number:])))
                    why = str(error) if expected else f"it raised {type(error).__name__}: {error}"
                    return Outcome(explainer.name, described(explainer), refused=why)
            advance(explainer.name, len(batch))
        measured = [store.batches[number] for number in range(len(plan))]
    return Outcome(
        explainer.name,
        described(explainer),
        {i: r for batch, made in zip(plan, measured, strict=True) for i, r in zip(batch, made["records"], strict=True)},
        warned=[warning for made in measured for warning in made["warnings"]],
        batches=len(plan),
    )


def measure(model: Any, examples: Sequence[Example], explainer: Explainer, setup: Setup) -> Json:
    """One batch: each example's target, map of its features, and outputs along MoRF and LeRF; and the warnings."""
    case: Case = model.case(examples)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attribution = attribution_of(explainer, model, case)
    records = recorded(model, case, attribution, setup)
    return {"records": records, "warnings": [f"{w.category.__name__}: {w.message}" for w in caught]}


def recorded(model: Any, case: Case, attribution: Tensor, setup: Setup) -> list[Json]:
    """What is kept of each example: its target, its map ``(batch, features)``, and the outputs along MoRF and LeRF."""
    removed = curves(model, case, attribution, setup.removal, setup.chunk, setup.max_tokens)
    return [
        {
            "target": int(case.target[i]),
            "map": attribution[i, case.unpadded[i]].tolist(),
            "morf": removed.morf[i].tolist(),
            "lerf": removed.lerf[i].tolist(),
        }
        for i in range(len(attribution))
    ]
