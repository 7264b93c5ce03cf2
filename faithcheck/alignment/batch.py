"""A batch of an alignment: how it is measured in the sandbox, and the job that every executor runs."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch
from msgspec import structs
from torch import Tensor, nn

from faithcheck.alignment.alignment_memory import WAYS_OUT, AlignmentMemory, Prediction
from faithcheck.alignment.batch_result import BatchResult, MeasuredExample, joined
from faithcheck.alignment.matrix_products import MatrixProducts
from faithcheck.alignment.perturbation_curves import curves
from faithcheck.alignment.run_key import StoreError, structure
from faithcheck.alignment.settings import AlignmentSettings
from faithcheck.axioms.measure.error_text import error_text, message_text, safe_text, traceback_text
from faithcheck.axioms.traces.model_snapshot import ModelSnapshot
from faithcheck.executors.executor import Remote
from faithcheck.explainers.protocol import Explainer, InvalidAttribution, Unsupported, attribution_of
from faithcheck.memory.memory_limit import is_out_of_memory, memory_limit, with_half_the_rows
from faithcheck.memory.peak_memory import peak_memory
from faithcheck.models.case import Case
from faithcheck.models.pretrained.example import Example
from faithcheck.reports.documents.alignment import Peaks
from faithcheck.reports.documents.document import from_json
from faithcheck.reports.memory_units import in_words
from faithcheck.sandbox import Raised, Traces, attempt, sandbox

COUNTED = 16
"""The arithmetic of one batch in 16 is counted: counting takes as long as the attribution of short examples."""
SEED = 0x5EED_FA17  # of the first batch: not one that an explainer would seed with
CHANGED = (
    "the model is no longer the one that was loaded: this explainer, or one before it, changed what cannot be put "
    "back. Measure it in a run of its own"
)

T = TypeVar("T")
log = logging.getLogger(__name__)


class LoadedModel:
    """The model of an alignment as it was loaded, to find and to undo what an explainer changes on it."""

    def __init__(self, model: Any, longest: tuple[int, int] = (0, 0)) -> None:
        self.model = model
        self.snapshot = ModelSnapshot(model)
        self.memory = AlignmentMemory(self.snapshot, *longest)
        self._structure = structure(model)

    def unchanged(self) -> bool:
        """Whether the model has the fingerprint that it had: comparing weights costs less than hashing them again."""
        return structure(self.model) == self._structure and self.snapshot.has_same_weights()


@dataclass(frozen=True)
class BatchJob:
    """One explainer on one batch; see `measure_batch`."""

    of: Explainer
    number: int
    examples: Sequence[Example]
    settings: AlignmentSettings
    model: Callable[[], LoadedModel]  # loads the model in this process, once
    elsewhere: Callable[[BatchJob], Remote] | None = None  # the job for another process; None where there is none

    @property
    def explainer(self) -> str:
        """The name of the explainer."""
        return self.of.name

    @property
    def timeout(self) -> float | None:
        """The time limit of a batch."""
        return self.settings.timeout

    def run(self) -> BatchResult:
        """See `measure_batch`."""
        return measure_batch(self.model(), self.examples, self.of, self.settings, self.number)

    def remote(self) -> Remote:
        """The job for another process."""
        assert self.elsewhere is not None
        return self.elsewhere(self)

    def result(self, content: object) -> BatchResult:
        """The result that came back as JSON."""
        result = from_json(content, BatchResult)
        if result.refused is None and len(result.examples) != len(self.examples):
            raise ValueError(f"its process sent no records of the {len(self.examples)} examples of batch {self.number}")
        return result

    def failed(self, why: str, printed: str | None = None) -> BatchResult:
        """The explainer could not be measured."""
        return BatchResult(refused=why, failed=True)

    def not_run(self, why: str) -> BatchResult:
        """As `failed`: an explainer has all batches or none."""
        return self.failed(why)

    def left_out(self, why: str) -> BatchResult:
        """The examples of this batch have no figures of this explainer."""
        return BatchResult(left_out=f"batch {self.number}: {why}")


def measure_batch(
    loaded: LoadedModel, examples: Sequence[Example], explainer: Explainer, settings: AlignmentSettings, number: int
) -> BatchResult:
    """One batch; the explainer may raise anything, and what it leaves behind is undone.

    What does not fit the memory is measured in halves, a single example with half as many rows in a forward pass. If
    the explainer changed the model for good, the result is refused with `CHANGED`. The seed follows from the batch's
    number: a resumed run draws the same.
    """
    result = _within_memory(loaded, examples, explainer, settings, number)
    return result if loaded.unchanged() else structs.replace(result, refused=CHANGED, failed=True)


def _within_memory(
    loaded: LoadedModel, examples: Sequence[Example], explainer: Explainer, settings: AlignmentSettings, number: int
) -> BatchResult:
    """The batch in as many parts as the memory asks for."""
    features = max(len(example.special_tokens_mask) for example in examples)
    device = next((weight.device for weight in loaded.snapshot.model.parameters()), torch.device("cpu"))
    limit = memory_limit(device, settings.max_memory)

    def short_case() -> Case:
        shortest = min(examples, key=lambda example: len(example.special_tokens_mask))
        case: Case = loaded.model.case([shortest])
        return case

    def in_halves(why: str, failed: bool) -> BatchResult:
        parts = halves(examples, explainer, settings)
        if not parts:
            reason = f"an example of {features} features does not fit the memory, one row in a forward pass: {why}"
            return BatchResult(refused=f"{reason}; {WAYS_OUT}", failed=failed)
        loaded.memory.say_once(explainer.name, why)
        return joined([_within_memory(loaded, *part, number) for part in parts], why)

    if refusal := loaded.memory.refusal(explainer, settings, limit, short_case):
        return BatchResult(refused=refusal)
    prediction = loaded.memory.predict(explainer, settings, len(examples), features, short_case)
    if prediction is not None and prediction.peak > limit:
        return in_halves(f"{in_words(prediction.peak)} predicted, the limit is {in_words(limit)}", failed=False)
    result = _in_one_part(loaded, examples, explainer, settings, number, prediction)
    if result.out_of_memory:
        gc.collect()
        return in_halves("memory ran out", failed=True)
    return result


def _in_one_part(
    loaded: LoadedModel,
    examples: Sequence[Example],
    explainer: Explainer,
    settings: AlignmentSettings,
    number: int,
    prediction: Prediction | None,
) -> BatchResult:
    case: Case = loaded.model.case(examples)
    traces, memory = Traces(), None

    def attribution() -> Tensor:
        nonlocal memory
        if prediction is None:
            return attribution_of(explainer, loaded.model, case)
        result: list[Tensor] = []
        peak = peak_memory(
            lambda: result.append(attribution_of(explainer, loaded.model, case)), case.inputs.device, loaded.model
        )
        memory = Peaks(predicted=prediction.attribution, measured=peak)
        return result[0]

    def measured() -> BatchResult:
        nonlocal traces
        # The seed follows from the batch, so that a resumed run draws the same.
        with sandbox(loaded.snapshot, seed=SEED + number, timeout=settings.timeout) as traces:
            with MatrixProducts() if number % COUNTED == 0 else nullcontext() as products:
                explained = attribution()
            positions, no_positions = positions_of(explainer, loaded.model, case)
        return BatchResult(
            examples=measured_examples(loaded.model, case, explained, settings, positions),
            no_positions=no_positions,
            attribution=0 if products is None else products.operations,
            forward=0 if products is None else forward_operations(loaded.model, case),
        )

    return structs.replace(
        attempted(explainer.name, measured),
        memory=memory,
        warnings=[error_text(cast(Warning, one.message)) for one in traces.warnings],
        left_behind=[safe_text(line) for line in traces.left_behind],
    )


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


def attempted(name: str, work: Callable[[], T]) -> T | BatchResult:
    """What ``work`` returns; or, if code of the explainer with this name raised, why it was refused."""
    found = attempt(work)
    if not isinstance(found, Raised):
        return found
    error = found.error
    if isinstance(error, Unsupported | InvalidAttribution | StoreError):
        return BatchResult(refused=message_text(error), failed=not isinstance(error, Unsupported))
    if is_out_of_memory(error):
        return BatchResult(refused="memory ran out", failed=True, out_of_memory=True)
    log.error("%s raised:\n%s", name, traceback_text(error))
    return BatchResult(refused=f"it raised {error_text(error)}", failed=True)


def positions_of(explainer: Explainer, model: nn.Module, case: Case) -> tuple[list[float | None], str]:
    """What position embeddings keep of the relevance of each example; or None of each, and the reason.

    An explainer that knows has a method ``position_relevance(model, case)``, as `LRP` has.
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


def measured_examples(
    model: Any, case: Case, attribution: Tensor, settings: AlignmentSettings, positions: Sequence[float | None]
) -> list[MeasuredExample]:
    """What is stored of each example: see `MeasuredExample`; ``positions`` is from `positions_of`."""
    outputs = curves(model, case, attribution, settings.removal, settings.chunk, settings.max_tokens)
    return [
        MeasuredExample(
            target=int(case.target[i]),
            map=attribution[i, case.unpadded[i]].tolist(),
            morf=outputs.morf[i].tolist(),
            lerf=outputs.lerf[i].tolist(),
            positions=positions[i],
        )
        for i in range(len(attribution))
    ]
