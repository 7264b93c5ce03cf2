"""What the explainers do on one model class of `transformers`: which run, what they refuse, and which checks hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from faithcheck.axioms.batching import batching, outputs_of, without_padding
from faithcheck.axioms.measure.measurement import Measurement, relative_gap
from faithcheck.explainers import CPLRP, AttentionRollout, AttnLRP, GradientTimesInput, LeaveOneOut, Unsupported
from faithcheck.explainers.gates.gated_mask import mask_derivatives
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.loo.removal import default_removal
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.ledger import ConservationLedger, ledger_of_batch
from faithcheck.explainers.protocol import Explainer, InvalidAttribution, attribution_of
from faithcheck.models.architectures.embedding_model import KeepFloat64
from faithcheck.models.case import Case
from faithcheck.tests.helpers.installed.classes import ModelClass
from faithcheck.tests.helpers.installed.small_model import float64_by_default, small_model
from faithcheck.tests.helpers.installed.transforms import TRANSFORMS
from faithcheck.tests.helpers.transformed_copies import (
    FLOAT64,
    TOGETHER,
    TransformedCopies,
    difference,
    in_one_line,
    names,
)

EXPLAINERS: tuple[Explainer, ...] = (AttnLRP(), CPLRP(), LeaveOneOut(), MaskGate(), ReadoutGate(), AttentionRollout())
CHECKS = ("after", "during", "ledger", "removal", "copy", TOGETHER, *names(TRANSFORMS), "batch", "padding")
PADDED = 2  # tokens
MOST_ROUNDOFF = 1e-2  # a check that allows more would hold for any map


def measured(kind: ModelClass) -> dict[str, Any]:
    """Build a class and run every explainer on it: an outcome an explainer, or ``not_built``, the reason.

    ``removal`` is that of Leave-One-Out and of the gate.
    """
    try:
        model, case = small_model(kind)
    except Exception as error:  # whatever `transformers` raises for a configuration that it does not take
        return {"class": str(kind), "not_built": in_one_line(error)}
    result: dict[str, Any] = {"class": str(kind), "removal": default_removal(case).name}
    copies = TransformedCopies(model, case)
    result["transforms"] = dict.fromkeys(names(copies.applied), "") | copies.reasons
    return {**result, "outcomes": {e.name: outcome(e, model, case, copies) for e in EXPLAINERS}}


def outcome(
    explainer: Explainer, model: nn.Module, case: Case, copies: TransformedCopies | None = None
) -> dict[str, Any]:
    """``refuses`` or ``crashes``, each with the message; or ``checks``: the gap of each check that applies.

    ``copies`` are other models of the same function; None: there are none. Those that it refuses are in ``refused``.

    A check holds if its gap is at most ``tolerance``. One that the model itself fails is in ``model``, with its gap:
    see `gap_of_the_model`.
    """
    try:
        # As in the model's own forward pass: the readout gate runs its layers by themselves, too.
        with KeepFloat64(), float64_by_default():
            return checked(explainer, model, case, copies)
    except Unsupported as refusal:
        return {"refuses": in_one_line(refusal)}
    except InvalidAttribution as invalid:
        return {"crashes": in_one_line(invalid)}
    except Exception as crash:  # an explainer must refuse what it cannot explain: anything else is a defect
        return {"crashes": f"{type(crash).__name__}: {in_one_line(crash)}"}


def checked(explainer: Explainer, model: nn.Module, case: Case, copies: TransformedCopies | None) -> dict[str, Any]:
    """The gaps of all checks of one explainer; see `outcome`."""
    with torch.no_grad():
        before = case.run(model)
    with recorded_outputs(model, len(before)) as outputs:
        attribution = attribution_of(explainer, model, case)
    with torch.no_grad():
        gaps = {"after": difference(case.run(model), before)}
    if outputs:
        gaps["during"] = max(difference(output, before) for output in outputs)
    try:
        return compared(explainer, model, case, copies, attribution, gaps)
    except Unsupported as refusal:  # not of the model: it has a map
        raise RuntimeError(f"it runs, but refuses in a check: {refusal}") from refusal


def compared(
    explainer: Explainer,
    model: nn.Module,
    case: Case,
    copies: TransformedCopies | None,
    attribution: Tensor,
    gaps: dict[str, float],
) -> dict[str, Any]:
    """The gaps so far, and those of the ledger, of the removal, of other models and of other batches; see `outcome`."""
    allowed, cancels = FLOAT64, {}
    if isinstance(explainer, LRP):
        ledger = ledger_of_batch(explainer, model, case)
        gaps["ledger"] = ledger.gap
        if (roundoff := roundoff_of_relevance(ledger)) > FLOAT64:
            allowed, cancels = roundoff, {"cancels": where_relevance_is_largest(ledger)}
    if isinstance(explainer, MaskGate) and "attention_mask" in case.forward_arguments:
        gaps["removal"] = difference(attribution, mask_derivatives(model, case))
    refused: dict[str, str] = {}
    if copies is not None:
        of_copies, refused = copies.gaps(lambda other: attribution_of(explainer, other, case), attribution, allowed)
        gaps |= of_copies
    cases = {"batch": case}
    if "attention_mask" in case.forward_arguments:
        cases["padding"] = padded(case)
    of_model, copy = {}, deepcopy(model)
    for name, batch in cases.items():
        measurement = batching(explainer, copy, batch)
        if batch is case:
            gaps["copy"] = difference(measurement.compared.first, attribution)
        gap = gap_of_the_model(explainer, model, batch, measurement, allowed)
        if gap > FLOAT64:
            of_model[name] = gap
        elif measurement.gap is not None:
            gaps[name] = measurement.gap
    zero = not attribution.any()
    return {"checks": gaps, "refused": refused, "model": of_model, "tolerance": allowed, "zero": zero, **cancels}


def gap_of_the_model(
    explainer: Explainer, model: nn.Module, case: Case, measurement: Measurement, allowed: float
) -> float:
    """How far what the explainer reads off the model is, in a batch or with padding, from the same alone.

    It is the gap of the outputs. Where the explainer fails the check and the outputs do not, it is also that of the
    outputs without a token, which Leave-One-Out reads, or of gradient × input, for those that read the gradient.
    """
    gap = measurement.detail.get("gap, outputs", 0.0)
    assert isinstance(gap, float)
    if gap > allowed or measurement.gap is None or measurement.gap <= allowed:
        return gap
    if isinstance(explainer, LeaveOneOut):
        return gap_without_a_token(model, case)
    return batching(GradientTimesInput(), model, case).gap or 0.0


@torch.no_grad()
def gap_without_a_token(model: nn.Module, case: Case) -> float:
    """The largest gap of the first example's output with and without its padding, when one of its tokens is masked too.

    0 if the case has no attention mask. A model that reads a masked token, whose own row of attention is masked whole,
    reads a mean over all positions: it depends on their number.
    """
    if "attention_mask" not in case.forward_arguments:
        return 0.0
    gaps, first = [0.0], case.select(torch.tensor([0]))
    for token in first.unpadded[0].nonzero():
        masked = [with_mask(example, token) for example in (first, without_padding(first))]
        padded_output, output = (outputs_of(model, example) for example in masked)
        gaps.append(relative_gap(padded_output - output, padded_output, output))
    return max(gaps)


def with_mask(case: Case, token: Tensor) -> Case:
    """The case with one more token masked."""
    mask = case.forward_arguments["attention_mask"].clone()
    mask[:, token] = 0
    return replace(case, forward_arguments={**case.forward_arguments, "attention_mask": mask})


def roundoff_of_relevance(ledger: ConservationLedger) -> float:
    """The gap that round-off explains: that of the largest relevance that flows within the model, over the map's.

    Where large parts of relevance cancel, a map keeps fewer digits than the model's outputs: the identity rule's
    gradient f(x)/x has a pole at x = 0, so that what a sum of nearly 0 receives is shared by its large operands.
    """
    largest = max(float(relevance.abs().max()) for relevance in ledger.flows.values())
    size = float(ledger.attribution.abs().max())
    return min(torch.finfo(torch.float64).eps * largest / size, MOST_ROUNDOFF) if size else 0.0


def where_relevance_is_largest(ledger: ConservationLedger) -> str:
    """The operation, with its module, that makes the largest relevance within the model: the nearest to the output."""
    sizes = {flow: float(relevance.abs().max()) for flow, relevance in ledger.flows.items()}
    largest = max(sizes.values())
    number = max(sender for (sender, _), size in sizes.items() if sender is not None and size >= largest / 2)
    operation = ledger.operations[number]
    return f"{operation.operation} in {operation.module or 'the model'}"


def padded(case: Case) -> Case:
    """The first example twice: with its last tokens as padding, and whole, so that no explainer can leave it out."""
    examples = case.select(torch.tensor([0, 0]))
    mask = examples.forward_arguments["attention_mask"].clone()
    mask[0, -PADDED:] = 0
    return replace(examples, forward_arguments={"attention_mask": mask, "last": mask.sum(1) - 1})


@contextmanager
def recorded_outputs(model: nn.Module, rows: int) -> Iterator[list[Tensor]]:
    """The outputs of the model's forward passes of so many rows within the block."""
    outputs: list[Tensor] = []

    def record(module: nn.Module, args: Any, output: Any) -> None:
        if module is model and len(output) == rows:
            outputs.append(output.detach())

    handle = register_module_forward_hook(record)  # a gate runs a model that has hooks of its own in another way
    try:
        yield outputs
    finally:
        handle.remove()


def holding(outcomes: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """The checks that hold, of each explainer that runs: what the record keeps of a class."""
    return {
        name: [
            check
            for check in CHECKS
            if check in outcome["checks"] and holds(check, outcome["checks"][check], outcome["tolerance"])
        ]
        for name, outcome in outcomes.items()
        if "checks" in outcome
    }


def holds(check: str, gap: float, allowed: float) -> bool:
    """Whether a check holds: the same to the bit after an attribution, else to round-off.

    A copy lies elsewhere in memory, where a matrix product may add in another order. ``allowed`` is the round-off of
    the map; outputs and the ledger, whose gap is relative to the largest relevance, have the tolerance of the type.
    """
    return gap == 0 if check == "after" else gap <= (FLOAT64 if check in ("during", "ledger") else allowed)


def operation_of(refusal: str) -> str:
    """The operation that a refusal names; else the refusal up to its first colon."""
    named = re.match(r"(\w+) in [^:]+:", refusal)
    return named[1] if named else refusal.split(":")[0]


def lost(record: Mapping[str, Mapping[str, list[str]]], now: Mapping[str, Mapping[str, list[str]]]) -> list[str]:
    """What the record has and a new sweep of the same classes has not: runs and checks, in words."""
    lines = []
    for kind, explainers in record.items():
        for explainer, checks in explainers.items():
            if explainer not in now.get(kind, {}):
                lines.append(f"{kind}: {explainer} no longer runs")
                continue
            gone = [check for check in checks if check not in now[kind][explainer]]
            lines += [f"{kind}: {explainer}: {check} no longer holds" for check in gone]
    return lines
