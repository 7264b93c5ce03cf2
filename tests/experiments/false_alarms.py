"""False alarms: how often a correct explainer is red, over seeds, types, threads and instruction sets.

``make alarms`` runs it; the checks of one seed and type are one line of ``build/alarms.jsonl``, so a second run goes on
where the first stopped. Each process has one setting of threads and instructions, which torch reads when it starts.
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
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "alarms.jsonl"
TYPES = ("float64", "float32")


def settings() -> list[dict[str, str]]:
    """The environments: one or two threads, with each instruction set that the processor has."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    instructions = [name for name, flag in (("avx2", "avx2"), ("avx512", "avx512f")) if flag in flags] or ["default"]
    return [
        {"OMP_NUM_THREADS": threads, "ATEN_CPU_CAPABILITY": name} for threads in ("1", "2") for name in instructions
    ]


def runs(seeds: int) -> list[tuple[int, str, dict[str, str]]]:
    """Every seed with both types; the settings take turns, so that each meets every type."""
    environments = settings()
    return [
        (seed, dtype, environments[(seed + index) % len(environments)])
        for seed in range(seeds)
        for index, dtype in enumerate(TYPES)
    ]


def check_all(seed: int, dtype: str, pattern: str) -> dict[str, Any]:
    """Run every check of the built-in explainers and the re-writings: the counts, the red ones and the margins.

    The margin of an axiom is its least tolerance divided by gap, over the checks in which it holds; above 1 is green.
    """
    import torch

    from faithcheck.axioms import AXIOMS, plan
    from faithcheck.axioms.engine import statuses
    from faithcheck.axioms.engine.check import Settings
    from faithcheck.explainers.builtin import builtin_explainers
    from faithcheck.models import registered_pairs
    from faithcheck.tests.helpers.rewritings import rewritings

    explainers = [*builtin_explainers().values(), *rewritings()]
    settings = Settings(seed, getattr(torch, dtype))
    counts, margins, red = Counter[str](), dict[str, float](), []
    pairs = registered_pairs()
    for name, axiom in product(fnmatch.filter(pairs, pattern), AXIOMS):
        for check in plan(axiom, explainers, [pairs[name]]):
            record = check.run(settings)
            counts[record.status] += 1
            if record.status in statuses.RED:
                red.append({"check": record.id, "gap": record.gap, "tol": record.tol})
            elif record.status == "holds" and record.gap:
                margins[axiom] = min(margins.get(axiom, math.inf), record.tol / record.gap)
    return {"counts": counts, "margins": margins, "red": red}


def work(arguments: argparse.Namespace) -> None:
    """In a process of one setting: the runs that have this setting and no result yet."""
    mine = {name: os.environ[name] for name in settings()[0]}
    for seed, dtype, environment in runs(arguments.seeds):
        if environment == mine and (seed, dtype) not in done():
            started = time.perf_counter()
            result = check_all(seed, dtype, arguments.pairs)
            line = {"seed": seed, "dtype": dtype, **environment, **result, "seconds": time.perf_counter() - started}
            with RESULTS.open("a") as file:
                file.write(json.dumps(line) + "\n")


def done() -> set[tuple[int, str]]:
    """The runs that have a result."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {(result["seed"], result["dtype"]) for result in map(json.loads, lines)}


def report() -> str:
    """How many checks ran, how many were red, and the least margin of every axiom, by type."""
    results = [json.loads(line) for line in RESULTS.read_text().splitlines()]
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


def main() -> None:
    """Start two processes at a time, one for each setting, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many (default: %(default)s)")
    parser.add_argument("--pairs", default="*", help="only the pairs that match (default: all)")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments)
        return
    RESULTS.parent.mkdir(exist_ok=True)
    with ThreadPoolExecutor(2) as processes:
        command = [sys.executable, __file__, *sys.argv[1:], "--work"]
        for ended in processes.map(lambda e: subprocess.run(command, env={**os.environ, **e}), settings()):
            ended.check_returncode()
    print(report())


if __name__ == "__main__":
    main()
