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

from faithcheck.axioms.batching import batching
from faithcheck.axioms.engine.verdicts import Measurement, tolerance
from faithcheck.explainers import CPLRP, AttnLRP, LeaveOneOut, Unsupported
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.explainers.lrp.ledger import ledger_of_batch
from faithcheck.explainers.protocol import Explainer, InvalidAttribution, attribution_of
from faithcheck.models.case import Case
from faithcheck.models.installed.classes import ModelClass
from faithcheck.models.installed.small_model import small_model

EXPLAINERS: tuple[Explainer, ...] = (AttnLRP(), CPLRP(), LeaveOneOut(), MaskGate())
CHECKS = ("after", "during", "ledger", "copy", "batch", "padding")
PADDED = 2  # tokens


def measured(kind: ModelClass) -> dict[str, Any]:
    """Build a class and run every explainer on it; an outcome an explainer, or ``not_built``, the reason."""
    try:
        model, case = small_model(kind)
    except Exception as error:  # whatever `transformers` raises for a configuration that it does not take
        return {"class": str(kind), "not_built": in_one_line(error)}
    return {"class": str(kind), "outcomes": {e.name: outcome(e, model, case) for e in EXPLAINERS}}


def outcome(explainer: Explainer, model: nn.Module, case: Case) -> dict[str, Any]:
    """``refuses`` or ``crashes``, each with the message; or ``checks``: the gap of each check that applies.

    A check holds if its gap is at most the tolerance. One that the model itself fails, because its output depends on
    padding, is in ``model``, with the gap of the outputs.
    """
    try:
        return checked(explainer, model, case)
    except Unsupported as refusal:
        return {"refuses": in_one_line(refusal)}
    except InvalidAttribution as invalid:
        return {"crashes": in_one_line(invalid)}
    except Exception as crash:  # an explainer must refuse what it cannot explain: anything else is a defect
        return {"crashes": f"{type(crash).__name__}: {in_one_line(crash)}"}


def checked(explainer: Explainer, model: nn.Module, case: Case) -> dict[str, Any]:
    """The gaps of all checks of one explainer; see `outcome`."""
    with torch.no_grad():
        before = case.run(model)
    with recorded_outputs(model, len(before)) as outputs:
        attribution = attribution_of(explainer, model, case)
    with torch.no_grad():
        gaps = {"after": difference(case.run(model), before)}
    if outputs:
        gaps["during"] = max(difference(output, before) for output in outputs)
    if isinstance(explainer, LRP):
        gaps["ledger"] = ledger_of_batch(explainer, model, case).gap
    gaps["copy"] = difference(attribution_of(explainer, deepcopy(model), case), attribution)
    measurements = {"batch": batching(explainer, model, case)}
    if "attention_mask" in case.forward_arguments:
        measurements["padding"] = batching(explainer, model, padded(case))
    of_model = {name: gap for name, m in measurements.items() if (gap := outputs_gap(m)) > tolerance(case.inputs)}
    gaps |= {name: m.gap for name, m in measurements.items() if name not in of_model and m.gap is not None}
    return {"checks": gaps, "model": of_model, "zero": not attribution.any()}


def outputs_gap(measurement: Measurement) -> float:
    """How far the model's own outputs in a batch, or with padding, are from those alone."""
    gap = measurement.detail.get("gap, outputs", 0.0)
    assert isinstance(gap, float)
    return gap


def padded(case: Case) -> Case:
    """The first example, with its last tokens as padding."""
    example = case.select(torch.tensor([0]))
    mask = example.forward_arguments["attention_mask"].clone()
    mask[:, -PADDED:] = 0
    return replace(example, forward_arguments={"attention_mask": mask, "last": mask.sum(1) - 1})


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


def difference(a: Tensor, b: Tensor) -> float:
    """The largest difference of two tensors, relative to the largest value; 0 if they are the same to the bit."""
    return 0.0 if torch.equal(a, b) else float((a - b).abs().max() / b.abs().max())


def in_one_line(error: BaseException) -> str:
    """The message of an error, or its name, in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def holding(outcomes: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """The checks that hold, of each explainer that runs: what the record keeps of a class."""
    return {
        name: [check for check in CHECKS if check in outcome["checks"] and holds(check, outcome["checks"][check])]
        for name, outcome in outcomes.items()
        if "checks" in outcome
    }


def holds(check: str, gap: float) -> bool:
    """Whether a check holds: the same to the bit after an attribution, else to round-off.

    A copy lies elsewhere in memory, where a matrix product may add in another order.
    """
    return gap == 0 if check == "after" else gap <= tolerance(torch.empty(0, dtype=torch.float64))


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
