"""False alarms: how often a correct explainer is red, over seeds, types, threads and instruction sets.

``make alarms`` runs it. The pairs are dealt to `PARTS` parts. The checks of one seed, type and part are one line of
``build/alarms.jsonl``, so a second run goes on where the first stopped. A turn is a quarter of the campaign: each seed
and type meets one part, in the next turn another, so that one turn has met every pair, seed, type and setting.
Each process has one setting of threads and instructions, which torch reads when it starts.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import torch

from faithcheck.axioms import AXIOMS
from faithcheck.axioms.measure import statuses
from faithcheck.axioms.measure.record import Record
from faithcheck.explainers.builtin import builtin_explainers
from faithcheck.models import registered_pairs
from faithcheck.plan import plan
from faithcheck.request import Settings
from faithcheck.tests.helpers import rewritings
from faithcheck.tests.helpers.campaign_results import state_of_the_code, store, stored

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "alarms.jsonl"
TYPES = ("float64", "float32")
PARTS = 4

Run = tuple[int, str, int]
"""A seed, a type and a part of the pairs."""


def settings() -> list[dict[str, str]]:
    """The environments: one or two threads, with each instruction set that the processor has."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    instructions = [name for name, flag in (("avx2", "avx2"), ("avx512", "avx512f")) if flag in flags] or ["default"]
    return [
        {"OMP_NUM_THREADS": threads, "ATEN_CPU_CAPABILITY": name} for threads in ("1", "2") for name in instructions
    ]


def runs(seeds: int, turn: int) -> Iterator[tuple[Run, dict[str, str]]]:
    """One turn: every seed with both types and one part. Each setting meets every type and part."""
    environments = settings()
    for seed, (index, dtype) in product(range(seeds), enumerate(TYPES)):
        yield (seed, dtype, (seed + turn) % PARTS), environments[(seed // PARTS + turn + index) % len(environments)]


def check_all(seed: int, dtype: str, part: int, pattern: str) -> dict[str, Any]:
    """Run every check of the built-in explainers and the re-writings: the counts, the red ones, the least margins."""
    explainers = [*builtin_explainers().values(), *rewritings.rewritings()]
    settings = Settings(seed, getattr(torch, dtype))
    counts, margins, red = Counter[str](), dict[str, float](), []
    pairs = [pair for name, pair in list(registered_pairs().items())[part::PARTS] if fnmatch.fnmatch(name, pattern)]
    order = {pair.name: position for position, pair in enumerate(pairs)}
    checks = [check for axiom in AXIOMS for check in plan(axiom, explainers, pairs)]
    for check in sorted(checks, key=lambda check: order[check.pair.name]):  # so that a pair is built once
        record = check.run(settings)
        counts[record.status] += 1
        if record.status in statuses.RED:
            red.append({"check": record.id, "gap": record.gap, "tol": record.tol})
        else:
            margins[check.axiom] = min(margins.get(check.axiom, math.inf), margin(record))
    return {"counts": counts, "margins": margins, "red": red}


def margin(record: Record) -> float:
    """The tolerance, or the ceiling, divided by the gap, of a closed form by its error; a check below 1 is red.

    It is infinite where the gap is 0, and where theory gives no limit that round-off could exceed.
    """
    limit, measured = record.tol, record.prediction_error
    if measured is None and record.status == "holds":
        limit, measured = max(record.tol or 0, record.ceiling or 0), record.gap
    return limit / measured if limit and measured else math.inf


def work(arguments: argparse.Namespace) -> None:
    """In a process of one setting: the runs of a turn that have this setting and no result yet."""
    mine = {name: os.environ[name] for name in settings()[0]}
    state = campaign(arguments.pairs)
    found = {(result["seed"], result["dtype"], result["part"]) for result in stored(RESULTS, state)}
    for (seed, dtype, part), environment in runs(arguments.seeds, arguments.turn):
        if environment == mine and (seed, dtype, part) not in found:
            started = time.perf_counter()
            result = check_all(seed, dtype, part, arguments.pairs)
            seconds = time.perf_counter() - started
            row = {"seed": seed, "dtype": dtype, "part": part, **environment, **result, "seconds": seconds}
            store(RESULTS, state, row)


def campaign(pattern: str) -> str:
    """The state of the code and the pairs that are looked at: results of another campaign do not count."""
    return f"{state_of_the_code([rewritings])} {pattern}"


def report(results: Sequence[Mapping[str, Any]]) -> str:
    """How many checks ran, how many were red, and the least margin of every axiom, by type."""
    margins: dict[tuple[str, str], float] = {}
    counts = Counter[str]()
    for result in results:
        counts.update(result["counts"])
        for axiom, margin in result["margins"].items():
            margins[axiom, result["dtype"]] = min(margins.get((axiom, result["dtype"]), math.inf), margin)
    red = [{**alarm, "seed": result["seed"], "dtype": result["dtype"]} for result in results for alarm in result["red"]]
    lines = [f"{len(results)} runs, {sum(counts.values())} checks: {dict(counts)}; {len(red)} false alarms", ""]
    lines += [f"- red: {json.dumps(alarm)}" for alarm in red]
    lines += ["| axiom | least tolerance ÷ gap, float64 | float32 |", "|---|---|---|"]
    for axiom in sorted({axiom for axiom, _ in margins}):
        lines.append(f"| {axiom} | " + " | ".join(f"{margins.get((axiom, t), math.inf):.3g}" for t in TYPES) + " |")
    return "\n".join(lines)


def main() -> int:
    """Start two processes at a time, one a turn and setting, and print the table. Returns 1 if a check is red."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many (default: %(default)s)")
    parser.add_argument("--pairs", default="*", help="only the pairs that match (default: all)")
    parser.add_argument("--turns", type=int, default=PARTS, help="quarters of the campaign (default: all)")
    parser.add_argument("--turn", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.turn is not None:
        work(arguments)
        return 0

    def start(turn: int, environment: dict[str, str]) -> None:
        command = [sys.executable, __file__, *sys.argv[1:], f"--turn={turn}"]
        subprocess.run(command, env={**os.environ, **environment}, check=True)

    with ThreadPoolExecutor(2) as processes:
        turns = product(range(arguments.turns), settings())
        list(processes.map(start, *zip(*turns, strict=True)))  # raises what start raises
    results = stored(RESULTS, campaign(arguments.pairs))
    print(report(results))
    return int(any(result["red"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
