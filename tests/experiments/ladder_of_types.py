"""The suite in coarse types: false alarms over seeds, and the wrong rules that are still found there.

``make ladder`` runs it, a process for each type, and prints the sums. What one seed, or one operation of an LRP method,
gives is one line of ``build/ladder.jsonl``, so a second run goes on where the first stopped.

A wrong rule, red in float64, is *found* where one of its red checks is red in the type too. It is *missed* where one
has a gap beyond twice its tolerance in the type and is not red there, and *hidden* where none has: the fault moves the
map by less than the digits that the type leaves. It is *not measured* where none of them has a digit left in the type.
The pairs of single operations have no weights to quantise: in int8, wrong rules are looked for on four larger pairs.
"""

from __future__ import annotations

import argparse
import fnmatch
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from faithcheck.axioms import AXIOMS
from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import RED
from faithcheck.check import Check
from faithcheck.explainers import CPLRP, AttnLRP, EpsilonLRP
from faithcheck.explainers.builtin import builtin_explainers
from faithcheck.explainers.lrp.blockwise import BlockwiseLRP
from faithcheck.explainers.lrp.engine import LRP
from faithcheck.models import registered_pairs
from faithcheck.plan import plan
from faithcheck.request import Settings
from faithcheck.tests.helpers import rule_faults
from faithcheck.tests.helpers.campaign_results import state_of_the_code, store, stored
from faithcheck.tests.helpers.rule_faults import RuleFault

RESULTS = Path(__file__).parents[2] / "build" / "ladder.jsonl"
TYPES = ("bfloat16", "float16", "int8")
WITH_LINEAR_MAPS = ("control.mlp", "linear_attention.assoc", "control.linear_attention", "control.bert")
METHODS = (AttnLRP, CPLRP, EpsilonLRP, BlockwiseLRP)


def alarms(dtype: torch.dtype, seed: int, globs: Sequence[str]) -> dict[str, Any]:
    """Every check of the built-in explainers on these pairs whose tolerance is derived: counts, and the red ones."""
    explainers = list(builtin_explainers().values())
    counts, red, largest = Counter[str](), [], 0.0
    for pair in registered_pairs().values():
        if not any(fnmatch.fnmatch(pair.name, glob) for glob in globs):
            continue
        for name, axiom in AXIOMS.items():
            if not axiom.needs_explainer or axiom.tolerance is not None:
                continue
            for check in plan(name, explainers, [pair]):
                record = check.run(Settings(seed, dtype, reuse=True))
                counts[record.status] += 1
                if record.status in RED:
                    red.append(f"{record.id}: {record.gap}, {record.tol}, {record.detail}")
                elif record.status == "holds" and record.tol:
                    largest = max(largest, (record.gap or 0) / record.tol)
    return {"counts": counts, "red": red, "largest gap over tolerance": largest}


def wrong_rules(dtype: torch.dtype, method: LRP, most: int) -> dict[str, list[RuleFault]]:
    """The wrong rules that are looked at, by operation; of many, a sample from a fixed seed."""
    every = rule_faults.rule_faults(method)
    if dtype == torch.int8:
        met = operations_met(method)
        every = [fault for fault in every if fault.operation in met]
    by_operation: dict[str, list[RuleFault]] = {}
    for fault in random.Random(0).sample(every, min(most, len(every))):
        by_operation.setdefault(fault.operation, []).append(fault)
    return by_operation


def faults(dtype: torch.dtype, chosen: Sequence[RuleFault]) -> dict[str, Any]:
    """How these wrong rules fare in the type, by outcome; one that is not red in float64 either has none."""
    ids: dict[str, list[str]] = {outcome: [] for outcome in OUTCOMES}
    for fault in chosen:
        outcomes = set()
        with fault.applied() as wrong:
            for check in checks_of(dtype, wrong, fault.operation):
                precise = check.run(Settings())
                if precise.status in RED:
                    outcomes.add(outcome_of(precise, check.run(Settings(dtype=dtype))))
                if "found" in outcomes:
                    break
        if outcomes:
            ids[next(one for one in OUTCOMES if one in outcomes)].append(fault.id)
    counts = {outcome: len(found) for outcome, found in ids.items()}
    return {"counts": counts, "of": len(chosen), "missed": ids["missed"], "hidden": ids["hidden"]}


def checks_of(dtype: torch.dtype, method: LRP, operation: str) -> list[Check]:
    """Where a wrong rule is looked for: on the pairs of its operation; in int8, on pairs with weights to quantise."""
    if dtype != torch.int8:
        return rule_faults.checks(method, operation, rule_faults.BY_NAME)
    pairs = [registered_pairs()[name] for name in WITH_LINEAR_MAPS]
    return [check for axiom in rule_faults.BY_NAME for check in plan(axiom, [method], pairs)]


def operations_met(method: LRP) -> set[str]:
    """The operations on the pairs with weights to quantise for which the method has a rule."""
    return {rule for check in checks_of(torch.int8, method, "") for rule in check.run(Settings(reuse=True)).rules}


OUTCOMES = ("found", "missed", "hidden", "not measured")


def outcome_of(precise: Record, coarse: Record) -> str:
    """What one check of a wrong rule, red in float64, says in the type; see the top of this file."""
    if coarse.status in RED:
        return "found"
    if coarse.gap is None or coarse.tol is None or precise.gap is None:
        return "not measured"
    # Where theory predicts a violation, its size is no sign of the fault: how far the prediction errs is.
    moved = precise.gap if precise.prediction_error is None else precise.prediction_error
    return "missed" if moved > 2 * coarse.tol else "hidden"


def campaign(arguments: argparse.Namespace) -> str:
    """The state of the code and what is looked at: results of another campaign do not count."""
    return f"{state_of_the_code([rule_faults])} {arguments.pairs} {arguments.faults}"


def parts(dtype: torch.dtype, arguments: argparse.Namespace) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """The parts of the campaign in one type: the name of each, and what measures it."""
    for seed in range(arguments.seeds):
        yield f"seed {seed}", partial(alarms, dtype, seed, arguments.pairs.split(","))
    for method in METHODS if arguments.faults else ():
        for operation, chosen in wrong_rules(dtype, method(), arguments.faults).items():
            yield f"{method.__name__} {operation}", partial(faults, dtype, chosen)


def work(arguments: argparse.Namespace) -> None:
    """Measure what has no result yet, of one type."""
    torch.set_num_threads(1)
    dtype, state = getattr(torch, arguments.dtype), campaign(arguments)
    found = {(result["dtype"], result["part"]) for result in stored(RESULTS, state)}
    for part, measure in parts(dtype, arguments):
        if (arguments.dtype, part) in found:
            continue
        started = time.perf_counter()
        row = {"dtype": arguments.dtype, "part": part, **measure(), "seconds": time.perf_counter() - started}
        store(RESULTS, state, row)
        print(row, flush=True)


def sums(results: Sequence[dict[str, Any]]) -> dict[tuple[str, str], Counter[str]]:
    """The counts by type and by what was looked at: ``seed`` for false alarms, or the LRP method with wrong rules."""
    total: dict[tuple[str, str], Counter[str]] = {}
    for result in results:
        total.setdefault((result["dtype"], result["part"].split()[0]), Counter()).update(result["counts"])
    return total


def main() -> int:
    """Start a process for each type. Returns 1 if a check is red that should not be, or a wrong rule is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="how many (default: %(default)s)")
    parser.add_argument("--pairs", default="control.*", help="globs, separated by commas (default: %(default)s)")
    parser.add_argument("--faults", type=int, default=60, help="wrong rules of each method (default: %(default)s)")
    parser.add_argument("--dtype", choices=TYPES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.dtype:
        work(arguments)
        return 0
    commands = [[sys.executable, __file__, *sys.argv[1:], f"--dtype={dtype}"] for dtype in TYPES]
    ended = [process.wait() for process in [subprocess.Popen(command) for command in commands]]
    results = stored(RESULTS, campaign(arguments))
    for (dtype, part), counts in sums(results).items():
        print(dtype, part, dict(counts))
    return int(any(ended) or any(result.get("red") or result.get("missed") for result in results))


if __name__ == "__main__":
    sys.exit(main())
