"""Alignment with Leave-One-Out over a data set: the maps and perturbation curves of every explainer.

Table 2 of You et al., arXiv 2510.18810, for any model of text or images with the methods ``encode``, which makes
examples, and ``case``, which makes a `Case` of examples.
"""

from __future__ import annotations

import gc
import importlib.metadata
import logging
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

import faithcheck.explainers
from faithcheck.alignment.alignment_memory import WAYS_OUT, AlignmentMemory, Prediction
from faithcheck.alignment.batches import Batches, batches, longest
from faithcheck.alignment.defaults import MAX_TOKENS
from faithcheck.alignment.matrix_products import MatrixProducts
from faithcheck.alignment.perturbation_curves import curves
from faithcheck.alignment.run_key import StoreError, fingerprint, sources, state_of, structure
from faithcheck.alignment.store import Store, StoredRecords
from faithcheck.axioms.measure.error_text import error_text, message_text, safe_text, traceback_text
from faithcheck.axioms.traces.left_behind import RANDOM, restored
from faithcheck.axioms.traces.model_snapshot import ModelSnapshot
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
    display_label,
)
from faithcheck.json_object import Json
from faithcheck.memory.memory_limit import is_out_of_memory, memory_limit, with_half_the_rows
from faithcheck.memory.peak_memory import peak_memory
from faithcheck.models import targets
from faithcheck.models.case import Case
from faithcheck.models.data.stored import stored_array
from faithcheck.models.digest import digest
from faithcheck.models.pretrained.example import Example, Examples
from faithcheck.reports.memory_units import in_words
from faithcheck.sandbox import interruptible, time_limit

IG_STEPS = 20  # as in the figures that the project compares with; the error of completeness is reported

COUNTED = 16
"""The arithmetic of one batch in so many is counted: counting takes as long as the attribution of short examples."""
SEED = 0x5EED_FA17  # of the first batch: not one that an explainer would seed with
CHANGED = (
    "the model is no longer the one that was loaded: this explainer, or one before it, changed what cannot be put "
    "back. Measure it in a run of its own"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AlignmentSettings:
    """How alignment is measured.

    Attributes:
        removal: the way a feature is removed, for LOO and for the curves.
        chunk: how many neighbouring features the curves remove at once; LOO removes single ones.
        max_tokens: the most features in one forward pass, padding included.
        seed: of the bootstrap.
        timeout: the seconds that an explainer may take for a batch; None: no limit.
        max_memory: the bytes that an attribution may take over what is in use; None: what is available.
    """

    removal: Removal
    chunk: int = 1
    max_tokens: int = MAX_TOKENS
    seed: int = 0
    timeout: float | None = None
    max_memory: int | None = None


@dataclass(frozen=True)
class ExplainerResult:
    """The maps and perturbation curves of one explainer, or the reason why it could not be measured.

    Attributes:
        name: the name of the explainer.
        label: its name in tables and figures.
        how: its settings, in words.
        records: {example: {"target", "map", "morf", "lerf", "positions"}}, empty if the explainer could not be
            measured; those of a store are read when they are asked for.
        store: that has the records; None without one.
        refused: why the explainer could not be measured; else empty.
        failed: whether that is an error of the explainer, and not its refusal of this model.
        warned: how many warnings it gave, and the first of them, in words; else empty.
        left_behind: what it left behind on the model or in the process, which was undone, a line for each kind.
        batches: the number of batches.
        smaller: which batches were measured in smaller parts, and why, in words; else empty.
        left_out: which batches were not measured, because they ended several workers, in words; else empty.
        memory: ``predicted`` and ``measured``, the peak memory of the attribution that was predicted to take most, in
            bytes over what was in use before; None if it cannot be predicted.
        cost: the arithmetic of an attribution, in plain forward passes of the same examples, over one batch in
            `COUNTED`; None without any.
        no_positions: why no relevance of position embeddings is known; else empty.
    """

    name: str
    label: str = ""
    how: str = ""
    records: Mapping[int, Json] = field(default_factory=dict)
    store: Store | None = None
    refused: str = ""
    failed: bool = False
    warned: str = ""
    left_behind: Sequence[str] = ()
    batches: int = 0
    smaller: str = ""
    left_out: str = ""
    memory: Mapping[str, int] | None = None
    cost: float | None = None
    no_positions: str = ""


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


def align(
    model: Any,
    examples: Examples,
    explainers: Iterable[Explainer],
    settings: AlignmentSettings,
    folder: Path,
    advance: Callable[[str, int], None] = lambda explainer, done: None,
    measure_batch: MeasureBatch | None = None,
    engine: Engine | None = None,
) -> list[ExplainerResult]:
    """Explain the output of every example that the model chooses, and measure each map's perturbation curves.

    Measurements are stored in ``folder`` batch by batch; batches that are stored already are not measured again. What
    an explainer leaves behind is undone before anything else is measured, and nothing is stored that was measured on a
    model that changed. An explainer that raises, whatever it raises, does not stop the others.

    Args:
        model: an `nn.Module` with a method ``case(examples)``.
        examples: from its method ``encode``.
        explainers: the explainers; Leave-One-Out must be among them for correlations with it.
        settings: removal, chunk, memory, time limit.
        folder: of the stores, one file per explainer.
        advance: called with the explainer's name and the number of examples done since the last call.
        measure_batch: measures a batch in place of `measure`, with its arguments and its results.
        engine: measures what is missing in all passes, in place of this process, which takes one after the other.

    Raises:
        AlignmentError: no example can be measured, or one has too many features.
        StoreError: a store cannot be opened or written.
        OSError: the folder cannot be created.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    device = None if engine is None else engine.device
    passes = passes_of(model, examples, explainers, settings, folder, advance, device)
    if engine is not None:
        engine(passes)
    else:
        loaded = LoadedModel(model, longest(examples))
        for one in passes:
            _in_this_process(one, loaded, examples, settings, measure_batch or measure)
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
    """What each explainer is to measure: see `align`, and `ExplainerPass`.

    Args:
        model: see `align`; so are the others.
        examples: all of them.
        explainers: one pass each.
        settings: removal, chunk, memory, time limit.
        folder: of the stores.
        advance: see `ExplainerPass`.
        device: the type of the device that measures, if it is not the model's.

    Raises:
        AlignmentError: no example can be measured, or one has too many features.
    """
    plan = batches(examples, settings.max_tokens)
    key = common_key(model, examples, plan, settings)
    if device is not None:
        key["device"] = device
    return [ExplainerPass(explainer, plan, key, folder, advance) for explainer in explainers]


def _in_this_process(
    one: ExplainerPass,
    loaded: LoadedModel,
    examples: Examples,
    settings: AlignmentSettings,
    measure_batch: MeasureBatch,
) -> None:
    with one:
        for number in one.missing():
            content = measure_batch(loaded, [examples[i] for i in one.plan[number]], one.explainer, settings, number)
            if not loaded.unchanged():
                content |= {"refused": CHANGED, "failed": True}
            one.keep(number, content)


def common_key(model: Any, examples: Examples, plan: Batches, settings: AlignmentSettings) -> Json:
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
        "dtype": str(first.inputs.dtype),
        "device": first.inputs.device.type,
        "threads": torch.get_num_threads(),
        "versions": {name: importlib.metadata.version(name) for name in ("faithcheck", "torch", "transformers")},
        "sources": sources(measure, batches, curves, Case, type(model), targets, faithcheck.explainers),
    }


class LoadedModel:
    """The model of an alignment as it was loaded, to find and to undo what an explainer changes on it.

    Attributes:
        model: the model.
        snapshot: its state, with a copy of its weights.
        memory: the memory that explainers take on it.
    """

    def __init__(self, model: Any, longest: tuple[int, int] = (0, 0)) -> None:
        self.model = model
        self.snapshot = ModelSnapshot(model)
        self.memory = AlignmentMemory(self.snapshot, *longest)
        self._structure = structure(model)

    def unchanged(self) -> bool:
        """Whether the model has the fingerprint that it had: comparing weights costs less than hashing them again."""
        return structure(self.model) == self._structure and self.snapshot.has_same_weights()


MeasureBatch: TypeAlias = Callable[[LoadedModel, Sequence[Example], Explainer, AlignmentSettings, int], Json]


class ExplainerPass:
    """What one explainer is to measure: all batches; what is stored of them, and what is missing.

    Use it as a context manager: inside, its store is open.

    Attributes:
        explainer: the explainer.
        state: its state, see `state_of`; None if it cannot be written down.
        plan: the examples of each batch.

    Args:
        explainer: the explainer.
        plan: the batches.
        key: from `common_key`.
        folder: of the store.
        advance: called with the explainer's name and the number of examples done since the last call.
    """

    def __init__(
        self,
        explainer: Explainer,
        plan: Batches,
        key: Json,
        folder: Path,
        advance: Callable[[str, int], None] = lambda explainer, done: None,
    ) -> None:
        self.explainer, self.plan, self._advance = explainer, plan, advance
        described = _attempt(explainer.name, lambda: _described(explainer))
        self.state = described.get("state")
        label, how = described.get("label", explainer.name), described.get("how", "")
        self._result = ExplainerResult(explainer.name, label, how, batches=len(plan))
        self._store = None if self.state is None else Store(folder, explainer.name, {**key, "explainer": self.state})
        self._refused: dict[int, Json] = {0: {"left_behind": [], **described}} if self._store is None else {}
        self._left_out: dict[int, str] = {}
        self._missing = stored_array(len(plan), np.bool_)
        self._missing[:] = True

    def __enter__(self) -> Self:
        if self._store is not None:
            self._store.__enter__()
        self._done(range(len(self.plan)) if self._refused or self._store is None else self._store)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._store is not None:
            self._store.__exit__(*error)

    def missing(self) -> Iterator[int]:
        """The batches that are still to be measured; none after one in which the explainer could not be measured.

        Whether a batch is missing is looked up when its turn comes.
        """
        return filter(self.is_missing, range(len(self.plan)))

    def is_missing(self, number: int) -> bool:
        """Whether this batch is still to be measured."""
        return bool(self._missing[number])

    def keep(self, number: int, content: Json) -> None:
        """Store what `measure` returned of a batch; or keep in mind that the explainer could not be measured."""
        if "refused" in content:
            self._refused[number] = content
            self._done(range(number, len(self.plan)))
            return
        assert self._store is not None
        self._store.append(number, content)
        self._done([number])

    def leave_out(self, number: int, why: str) -> None:
        """Measure everything but this batch."""
        self._left_out[number] = why
        self._done([number])

    def _done(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if self._missing[number]:
                self._missing[number] = False
                self._advance(self.explainer.name, len(self.plan[number]))

    def result(self) -> ExplainerResult:
        """What was measured; no batch is missing."""
        if self._refused:
            first = min(self._refused)
            refused = self._refused[first]
            return replace(
                self._result,
                refused=refused["refused"],
                failed=refused["failed"],
                left_behind=_left_behind(chain(self._contents(range(first)), [refused])),
                batches=0,
            )
        assert self._store is not None
        total = _Total()
        for content in self._contents(range(len(self.plan))):
            total.add(content)
        return replace(
            self._result,
            records=StoredRecords(self._store, self.plan, self._left_out.keys()),
            store=self._store,
            warned=total.warned(len(self.plan)),
            left_behind=[*total.left_behind],
            smaller=_of_batches(total.smaller, total.first_smaller, total.batches),
            memory=total.memory,
            cost=total.attribution / total.forward if total.forward else None,
            left_out=_of_batches(len(self._left_out), next(iter(self._left_out.values()), ""), len(self.plan)),
            no_positions=total.no_positions,
        )

    def _contents(self, numbers: Iterable[int]) -> Iterator[Json]:
        """What was measured of these batches, one after the other; nothing of those that were left out."""
        if self._store is not None:
            yield from (self._store[number] for number in numbers if number not in self._left_out)


class Engine(Protocol):
    """What measures in place of this process."""

    @property
    def device(self) -> str:
        """The type of the device that it measures on."""
        ...

    def __call__(self, passes: Sequence[ExplainerPass]) -> None:
        """Measure all that is missing in these passes."""
        ...


@dataclass
class _Total:
    """What the batches of an explainer say together, one after the other."""

    batches: int = 0
    warnings: int = 0
    first_warning: str = ""
    left_behind: dict[str, None] = field(default_factory=dict)
    smaller: int = 0
    first_smaller: str = ""
    memory: Mapping[str, int] | None = None
    attribution: int = 0
    forward: int = 0
    no_positions: str = ""

    def add(self, content: Json) -> None:
        """One batch, as `measure` returned it."""
        self.batches += 1
        self.first_warning = self.first_warning or next(iter(content["warnings"]), "")
        self.warnings += len(content["warnings"])
        self.left_behind |= dict.fromkeys(content["left_behind"])
        self.first_smaller = self.first_smaller or content.get("smaller", "")
        self.smaller += bool(content.get("smaller"))
        self.no_positions = self.no_positions or content["no_positions"]
        memory = content.get("memory")
        if memory and (self.memory is None or memory["predicted"] > self.memory["predicted"]):
            self.memory = memory
        self.attribution += content["cost"]["attribution"]
        self.forward += content["cost"]["forward"]

    def warned(self, batches: int) -> str:
        """Of an explainer with so many batches."""
        first = f"the first: {self.first_warning}"
        return f"warnings: {self.warnings}, batches: {batches}; {first}" if self.warnings else ""


def _of_batches(number: int, first: str, batches: int) -> str:
    return f"{number} of {batches} batches; the first: {first}" if number else ""


def _described(explainer: Explainer) -> Json:
    """What an explainer says of itself, and its state for the key of its store."""
    return {
        "label": safe_text(display_label(explainer)),
        "how": safe_text(describe_settings(explainer)),
        "state": state_of(explainer),
    }


def _left_behind(contents: Iterable[Json]) -> list[str]:
    """What was left behind in any of these batches, each line once."""
    return list(dict.fromkeys(line for content in contents for line in content["left_behind"]))


def measure(
    loaded: LoadedModel, examples: Sequence[Example], explainer: Explainer, settings: AlignmentSettings, number: int
) -> Json:
    """One batch, whatever the explainer does: it may raise anything, and what it leaves behind is undone.

    A batch that is predicted not to fit the memory, or for which memory runs out, is measured in halves, and a single
    example with half as many rows in a forward pass.

    Args:
        loaded: the model.
        examples: of the batch.
        explainer: the explainer.
        settings: removal, chunk, memory, time limit.
        number: of the batch; random numbers follow from it, so that a resumed run draws the same.

    Returns:
        Plain values: ``warnings`` and ``left_behind``, lists of lines; ``records``, what `records_of` returns, and of
        each example its ``positions``, what position embeddings keep, or None;
        ``cost``, the operations of the matrix products of the ``attribution`` and of one ``forward`` pass, 0 in a batch
        where they are not counted; ``no_positions``, and perhaps ``memory`` and ``smaller``, see `ExplainerResult`. In
        place of ``records``, ``cost`` and ``no_positions``, if the explainer could not be measured, ``refused``, the
        reason, and whether it ``failed``.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    features = max(len(example.special_tokens_mask) for example in examples)
    device = next((weight.device for weight in loaded.snapshot.model.parameters()), torch.device("cpu"))
    limit = memory_limit(device, settings.max_memory)

    def short_case() -> Case:
        shortest = min(examples, key=lambda example: len(example.special_tokens_mask))
        case: Case = loaded.model.case([shortest])
        return case

    def in_halves(why: str, failed: bool) -> Json:
        parts = halves(examples, explainer, settings)
        if not parts:
            reason = f"an example of {features} features does not fit the memory, one row in a forward pass: {why}"
            return {"refused": f"{reason}; {WAYS_OUT}", "failed": failed, "warnings": [], "left_behind": []}
        loaded.memory.say_once(explainer.name, why)
        return joined([measure(loaded, *part, number) for part in parts], why)

    if refusal := loaded.memory.refusal(explainer, settings, limit, short_case):
        return {"refused": refusal, "failed": False, "warnings": [], "left_behind": []}
    prediction = loaded.memory.predict(explainer, settings, len(examples), features, short_case)
    if prediction is not None and prediction.peak > limit:
        return in_halves(f"{in_words(prediction.peak)} predicted, the limit is {in_words(limit)}", failed=False)
    content = _measured(loaded, examples, explainer, settings, number, prediction)
    if content.pop("out_of_memory", False):
        gc.collect()
        return in_halves("memory ran out", failed=True)
    return content


def _measured(
    loaded: LoadedModel,
    examples: Sequence[Example],
    explainer: Explainer,
    settings: AlignmentSettings,
    number: int,
    prediction: Prediction | None,
) -> Json:
    """One batch in one part; ``out_of_memory`` is true if memory ran out."""
    case: Case = loaded.model.case(examples)
    caught: list[warnings.WarningMessage] = []
    traces: list[str] = []
    memory: Json = {}

    def attribution() -> Tensor:
        if prediction is None:
            return attribution_of(explainer, loaded.model, case)
        result: list[Tensor] = []
        measured = peak_memory(
            lambda: result.append(attribution_of(explainer, loaded.model, case)), case.inputs.device, loaded.model
        )
        memory["memory"] = {"predicted": prediction.attribution, "measured": measured}
        return result[0]

    def records() -> Json:
        nonlocal traces, caught
        with (
            restored(loaded.snapshot) as traces,
            time_limit(settings.timeout),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            _seed(number)
            with MatrixProducts() if number % COUNTED == 0 else nullcontext() as products:
                explained = attribution()
            positions, no_positions = positions_of(explainer, loaded.model, case)
        cost = {"attribution": 0, "forward": 0}
        if products is not None:
            cost = {"attribution": products.operations, "forward": forward_operations(loaded.model, case)}
        of_examples = zip(records_of(loaded.model, case, explained, settings), positions, strict=True)
        return {
            "records": [{**record, "positions": kept} for record, kept in of_examples],
            "no_positions": no_positions,
            "cost": cost,
        }

    content = _attempt(explainer.name, records)
    # Each batch has its own random numbers, so that it is no trace to draw some.
    left_behind = [safe_text(line) for line in traces if not line.startswith(RANDOM)]
    texts = [error_text(cast(Warning, w.message)) for w in caught]
    return {**content, **memory, "warnings": texts, "left_behind": left_behind}


def forward_operations(model: nn.Module, case: Case) -> int:
    """The operations of the matrix products of a plain forward pass."""
    products = MatrixProducts()
    with products, torch.no_grad():
        case.run(model)
    return products.operations


def halves(
    examples: Sequence[Example], explainer: Explainer, settings: AlignmentSettings
) -> list[tuple[Sequence[Example], Explainer, AlignmentSettings]]:
    """The halves of a batch; of one example, the same with half as many rows in a forward pass; or nothing."""
    if len(examples) > 1:
        middle = len(examples) // 2
        return [(part, explainer, settings) for part in (examples[:middle], examples[middle:])]
    features = len(examples[0].special_tokens_mask)
    fewer, rows = with_half_the_rows(explainer, features), settings.max_tokens // features
    if fewer is None and rows < 2:
        return []
    halved = replace(settings, max_tokens=max(1, rows // 2) * features)
    return [(examples, fewer or explainer, halved)]


def joined(contents: Sequence[Json], why: str) -> Json:
    """What was measured in parts as one batch; if a part was refused, that part's refusal."""
    for content in contents:
        if "refused" in content:
            return content
    measured = [content["memory"] for content in contents if content.get("memory")]
    return {
        "records": [record for content in contents for record in content["records"]],
        "warnings": [warning for content in contents for warning in content["warnings"]],
        "left_behind": _left_behind(contents),
        "cost": {key: sum(content["cost"][key] for content in contents) for key in ("attribution", "forward")},
        "no_positions": next((content["no_positions"] for content in contents if content["no_positions"]), ""),
        "smaller": why,
        **({"memory": max(measured, key=lambda memory: memory["predicted"])} if measured else {}),
    }


def _attempt(name: str, work: Callable[[], Json]) -> Json:
    """What ``work`` returns; or, if code of the explainer with this name raised, ``refused`` and ``failed``.

    ``out_of_memory`` is true if that is because memory ran out.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    with interruptible():
        try:
            return work()
        except (Unsupported, InvalidAttribution, StoreError) as error:
            return {"refused": message_text(error), "failed": not isinstance(error, Unsupported)}
        except BaseException as error:  # SystemExit too: the other explainers still run
            if is_out_of_memory(error):
                return {"refused": "memory ran out", "failed": True, "out_of_memory": True}
            log.error("%s raised:\n%s", name, traceback_text(error))
            return {"refused": f"it raised {error_text(error)}", "failed": True}


def _seed(number: int) -> None:
    seed = SEED + number
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def positions_of(explainer: Explainer, model: nn.Module, case: Case) -> tuple[list[float | None], str]:
    """What position embeddings keep of the relevance of each example; or None of each, and the reason.

    An explainer that knows has a method ``position_relevance(model, case)``, as `faithcheck.explainers.lrp.engine.LRP`
    has.

    Raises:
        InvalidAttribution: a value is not finite.
    """
    unknown: list[float | None] = [None] * len(case.inputs)
    known: Callable[[nn.Module, Case], Tensor] | None = getattr(explainer, "position_relevance", None)
    if known is None:
        return unknown, "it gives relevance to features alone"
    try:
        kept = known(model, case)
    except Unsupported as error:
        return unknown, message_text(error)
    if not kept.isfinite().all():
        raise InvalidAttribution("the relevance of position embeddings is not finite")
    return kept.tolist(), ""


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
