"""The explainers on every model class of the installed `transformers`, each small and unmodified.

``make architectures`` runs it, and writes docs/results/architectures.md and its record,
docs/results/architectures.json. Two processes share the classes. The result of a class is one line of
``build/architectures.jsonl``, so a second run goes on where the first stopped. A class that kills its process is
recorded, and another process goes on with the rest. If what the record has no longer runs, or a check of it no longer
holds, the command says so, writes nothing and exits with 1; where this is meant, remove the record first.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers

from faithcheck.tests.helpers import architecture_checks, transformed_copies
from faithcheck.tests.helpers.architecture_checks import (
    CHECKS,
    EXPLAINERS,
    FLOAT64,
    holding,
    lost,
    measured,
    operation_of,
)
from faithcheck.tests.helpers.campaign_results import state_of_the_code, store, stored
from faithcheck.tests.helpers.installed.classes import MAPPINGS, installed_classes
from faithcheck.tests.helpers.installed.transforms import TRANSFORMS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "architectures.jsonl"
PAGE, RECORD = ROOT / "docs" / "results" / "architectures.md", ROOT / "docs" / "results" / "architectures.json"
SECONDS = 300  # of one class; on an idle processor the slowest takes ten
Result = Mapping[str, Any]


def work(state: str, names: Sequence[str]) -> None:
    """In a process of its own: measure these classes. Before each, a line says that it has begun."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    kinds = {str(kind): kind for kind in installed_classes()}
    for name in names:
        store(RESULTS, state, {"begun": name})
        signal.alarm(SECONDS)  # ends the process
        started = time.perf_counter()
        result = measured(kinds[name])
        store(RESULTS, state, {**result, "seconds": round(time.perf_counter() - started, 2)})


def share(state: str, names: Sequence[str]) -> None:
    """Measure these classes in a process, and the rest in another if a class ends it."""
    while left := sorted(set(names) - set(results(state)), key=names.index):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, __file__, "--state", state, "--work", *left]
        process = subprocess.run(command, env=environment, capture_output=True, text=True)
        begun = [row["begun"] for row in stored(RESULTS, state) if row.get("begun") in left]
        if not process.returncode:
            continue
        if not begun or begun[-1] in results(state):
            raise RuntimeError(f"a process failed outside of a class:\n{process.stderr[-2000:]}")
        died = signal.Signals(-process.returncode).name if process.returncode < 0 else process.stderr[-200:]
        store(RESULTS, state, {"class": begun[-1], "not_built": f"it ended its process: {died}", "ended": True})


def results(state: str) -> dict[str, Result]:
    """The results of this state of the code, by class."""
    return {row["class"]: row for row in stored(RESULTS, state) if "class" in row}


def page(found: Mapping[str, Result]) -> str:
    """docs/results/architectures.md."""
    lines = [
        "# Every architecture of transformers",
        "",
        f"**{'Every check holds' if not violations(found) else f'{len(violations(found))} checks do not hold'} where an"
        " explainer runs; what it cannot explain it refuses by name.**",
        "",
        "```sh",
        "make architectures    # tests/experiments/architectures.py; it writes this page and its record",
        "                      # some 470 s of processor time, in two processes",
        "```",
        "",
        f"The {len(found)} model classes that transformers {transformers.__version__} lists for causal language",
        "models, sequence classification, encoder-decoders and image classification. Each is built small, with random",
        "weights in float64 and eager attention, and the explainers run on it unmodified. The checks:",
        "",
        "- *after*: the model's outputs after the attribution are those before it, to the bit;",
        "- *during*: so are those of the explainer's own forward pass, to round-off (an explainer that runs other",
        "  rows, as Leave-One-Out does, has none);",
        "- *ledger*: the ledger of LRP balances; *removal*: the gate is the derivative of the output along the removal",
        "  by the attention mask, at whose end the output is that of Leave-One-Out;",
        "- *copy*: a deep copy of the model gets the same attribution; *transformed*: so does a copy with all the",
        "  transforms below that apply, and that the explainer does not refuse;",
        "- *batch*: an example gets the same attribution alone; *padding*: so it does without the two tokens of",
        "  padding that it has beside a longer one.",
        "",
        f"Round-off is at most {FLOAT64:g} of the largest value. Where parts of relevance cancel that are 10⁷ times as",
        "large as the map or more, the ledger knows the factor, and the map of a copy, of a batch or without padding",
        "may differ by so many times the round-off of float64: these are listed below, with the operation that",
        "shares a sum of nearly 0 among large operands.",
        "",
        *table(["task", "classes", "built", *(e.name for e in EXPLAINERS)], summary(found)),
        "",
        "An explainer's number: the classes on which it runs, and of these, on which every check holds.",
        "",
        *transforms(found),
        "## What is refused",
        "",
        *table(["operation or reason", *(e.name for e in EXPLAINERS)], refusals(found)),
        "",
        *(f"- {name}, {e}: {where_and_what(o)}" for name, e, o in each_outcome(found) if "refuses" in o),
        "",
        *section("What crashes", crashes(found)),
        *section("Checks that do not hold", violations(found)),
        *section("Maps that keep fewer digits", fewer_digits(found)),
        "## Models that depend on padding or the batch themselves",
        "",
        "Their outputs do; or, for Leave-One-Out, those without a token (DeBERTa's [CLS]: where the mask hides it, its",
        "row of attention is a mean over all positions); or their gradient, which torch 2.13 computes wrongly on a CPU",
        "for BatchNorm of one example whose channels lie next to each other in memory. In brackets: the explainers",
        "that read it.",
        "",
        *(f"- {line}" for line in by_model(found)),
        "",
        *section(
            "What was not built",
            [f"{n}: {r['not_built'].split('. ')[0]}" for n, r in found.items() if "not_built" in r],
        ),
        "## Each class",
        "",
        "✓: it runs, and every check holds. Else the checks that do not hold, or the operation or reason of a refusal.",
        "The removal is that of Leave-One-Out and of the gate: the attention mask, or the baseline where the model",
        "takes no mask or a 0 in it changes nothing.",
        "",
        *table(["class", "removal", *(e.name for e in EXPLAINERS)], rows(found)),
    ]
    return "\n".join(lines) + "\n"


def transforms(found: Mapping[str, Result]) -> list[str]:
    """The function-preserving transforms: on how many classes each holds, and where and why one does not apply."""
    built = {name: result["transforms"] for name, result in found.items() if "transforms" in result}
    lines = [
        "## Function-preserving transforms",
        "",
        "Those that ask for no module by its name, each in every place where it applies. A module of the project,",
        "`tests/helpers/installed/transforms.py`, has them and says why the maps stay the same. A copy of a model has",
        "all that apply. Its outputs, those without any one token where the model takes a mask, and its gradient",
        "are the model's; and where a transform asks for an operation, the copy runs it more often. Where an",
        "explainer refuses that copy, or its map differs, each transform is looked at alone.",
        "",
        "An explainer's number: of the classes on which it runs and to which the transform applies, those on which its",
        "map stays the same; and in brackets those on which it refuses the copy with it. All others would be listed",
        "under *Checks that do not hold*.",
        "",
        *table(
            ["transform", "the copy", "applies to", *(e.name for e in EXPLAINERS)],
            [
                [t.name, t.summary, sum(not r[t.name] for r in built.values()), *under(t.name, found)]
                for t in TRANSFORMS
            ],
        ),
        "",
        "The readout gate runs a layer again by itself, which adds to a cache a second time; and it takes another",
        "product of data for the attention. It refuses both, and says so.",
        "",
        "Why a transform does not apply:",
        "",
    ]
    for transform in TRANSFORMS:
        why = Counter(reasons[transform.name] for reasons in built.values() if reasons[transform.name])
        lines += [f"- {transform.name}: {reason} ({count})" for reason, count in why.most_common()]
    return [*lines, ""]


def under(transform: str, found: Mapping[str, Result]) -> Iterable[str]:
    """For each explainer, the classes on which its map stays the same under a transform, and those that it refuses."""
    for explainer in EXPLAINERS:
        ran = [o for _, name, o in each_outcome(found) if name == explainer.name and "checks" in o]
        held = sum(transform in holding({"": outcome})[""] for outcome in ran)
        refused = sum(transform in outcome["refused"] for outcome in ran)
        yield f"{held} ({refused})" if refused else str(held)


def table(head: Sequence[str], body: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    return [f"| {' | '.join(str(cell) for cell in row)} |" for row in (head, ["---"] * len(head), *body)]


def section(title: str, lines: Sequence[str]) -> list[str]:
    """A list with a title."""
    return [f"## {title}", "", *(f"- {line}" for line in lines or ["None."]), ""]


def summary(found: Mapping[str, Result]) -> list[list[object]]:
    """By task: the classes, those built, and for each explainer those it runs on and those where all checks hold."""
    lines: list[list[object]] = []
    for task in (*MAPPINGS, "all"):
        mine = [result for name, result in found.items() if task in ("all", name.split("/")[0])]
        built = [result["outcomes"] for result in mine if "outcomes" in result]
        cells = []
        for explainer in EXPLAINERS:
            ran = [outcomes[explainer.name] for outcomes in built if "checks" in outcomes[explainer.name]]
            cells.append(f"{len(ran)}, {sum(not failing(outcome) for outcome in ran)}")
        lines.append([task.replace("_", " "), len(mine), len(built), *cells])
    return lines


def failing(outcome: Result) -> list[str]:
    """The checks of an outcome that do not hold."""
    held = holding({"": outcome})[""]
    return [check for check in CHECKS if check in outcome["checks"] and check not in held]


def each_outcome(found: Mapping[str, Result]) -> Iterable[tuple[str, str, Result]]:
    """Class, explainer and outcome."""
    for name, result in found.items():
        for explainer, outcome in result.get("outcomes", {}).items():
            yield name, explainer, outcome


def refusals(found: Mapping[str, Result]) -> list[list[object]]:
    """By operation, the most frequent first: the classes that each explainer refuses for it."""
    counts = Counter((operation_of(o["refuses"]), e) for _, e, o in each_outcome(found) if "refuses" in o)
    totals = Counter[str]()
    for (operation, _), count in counts.items():
        totals[operation] += count
    return [[operation, *(counts[operation, e.name] for e in EXPLAINERS)] for operation, _ in totals.most_common()]


def where_and_what(outcome: Result) -> str:
    """A refusal without its end, the way out."""
    return ": ".join(outcome["refuses"].split(": ")[:2])


def crashes(found: Mapping[str, Result]) -> list[str]:
    """Errors other than refusals."""
    return [f"{name}, {e}: {o['crashes']}" for name, e, o in each_outcome(found) if "crashes" in o]


def violations(found: Mapping[str, Result]) -> list[str]:
    """Checks that do not hold."""
    ran = ((name, e, o) for name, e, o in each_outcome(found) if "checks" in o)
    return [f"{name}, {e}: {check}" for name, e, o in ran for check in failing(o)]


def fewer_digits(found: Mapping[str, Result]) -> list[str]:
    """Maps whose round-off, by the relevance that flows within the model, is above that of the type."""
    ran = ((name, e, o) for name, e, o in each_outcome(found) if "cancels" in o)
    return [f"{name}, {explainer}: {o['tolerance']:.0e}, by {o['cancels']}" for name, explainer, o in ran]


def by_model(found: Mapping[str, Result]) -> list[str]:
    """Classes of which what an explainer reads depends on padding or the batch, with these explainers."""
    explainers: dict[tuple[str, str], list[str]] = {}
    for name, explainer, outcome in each_outcome(found):
        for check in outcome.get("model", ()):
            explainers.setdefault((name, check), []).append(explainer)
    return [f"{name}: {check} ({', '.join(names)})" for (name, check), names in explainers.items()]


def rows(found: Mapping[str, Result]) -> Iterable[list[str]]:
    """One row a class that was built."""
    for name, result in found.items():
        if "outcomes" in result:
            yield [name, result["removal"], *(cell(result["outcomes"][explainer.name]) for explainer in EXPLAINERS)]


def cell(outcome: Result) -> str:
    """An outcome in a word or two."""
    if "checks" in outcome:
        return ", ".join(failing(outcome)) or "✓"
    return "crashes" if "crashes" in outcome else operation_of(outcome["refuses"])


def main() -> int:
    """Measure what has no result yet, compare with the record, and write the page and the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", help=argparse.SUPPRESS)
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.state, arguments.work)
        return 0
    state = f"{state_of_the_code([architecture_checks, transformed_copies])} {transformers.__version__}"
    started = time.perf_counter()
    names = [str(kind) for kind in installed_classes()]
    measure: Callable[[Sequence[str]], None] = lambda part: share(state, part)  # noqa: E731
    with ThreadPoolExecutor(2) as processes:
        list(processes.map(measure, (names[::2], names[1::2])))  # raises what share raises
    done = results(state)
    found = {name: done[name] for name in names}
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{time.perf_counter() - started:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processor time")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    now = {name: holding(result["outcomes"]) for name, result in found.items() if "outcomes" in result}
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if gone := lost(record.get("classes", {}), now):
        print(*gone, f"{len(gone)} lost: mend them, or remove {RECORD.name} and run again", sep="\n")
        return 1
    PAGE.write_text(page(found))
    classes = ",\n".join(f"{json.dumps(name)}: {json.dumps(held)}" for name, held in now.items())
    RECORD.write_text(f'{{"transformers": "{transformers.__version__}", "classes": {{\n{classes}\n}}}}\n')
    print(*("  ".join(map(str, line)) for line in summary(found)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
