"""The power of the suite: which checks each seeded fault turns red, and the table of it in docs/results/power.md.

Each fault runs once, by every check of every axiom. The measurements are then judged in three ways:

1. by name: by what theory expects of the built-in explainer that has the fault;
2. by claims: under a foreign name, by the explainer's claims alone, limits that it states for itself included;
3. by default: under a foreign name, by the axioms of ``faithcheck check`` without options.

Violations of the correct explainer that theory predicts count by name alone.

``python -m faithcheck.tests.helpers.power RESULTS PAGE`` writes the page from the results of ``make power``.
"""

from __future__ import annotations

import fnmatch
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch

import faithcheck.tests.helpers.faults
from faithcheck import built_pairs
from faithcheck.axioms.measure.expectations import claims_of
from faithcheck.axioms.measure.measurement import Measurement
from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.registry import AXIOMS
from faithcheck.axioms.measure.settling import settle
from faithcheck.axioms.measure.statuses import BY_LABEL, RED, Status
from faithcheck.check import Check
from faithcheck.models.pair import Pair, registered_pairs
from faithcheck.plan import default_axioms, plan
from faithcheck.request import Settings
from faithcheck.tests.helpers import gate_faults
from faithcheck.tests.helpers.campaign_results import state_of_the_code, stored
from faithcheck.tests.helpers.faults.catalogue import FAMILIES, UNCHANGED
from faithcheck.tests.helpers.faults.fault import Fault, foreign

WAYS = ("name", "claims", "default")
LEAST = {"name": 0.98, "claims": 0.90}
"""The least share of faults that must be red in a way."""

ENOUGH = 3
"""So many red checks of an axiom are counted; then its other checks are left out."""

REPEATED = ("basis", "batching", "permutation", "rescaling", "sharing")
LEFT_OUT = (
    "*_bert_trained",
    "*_roberta",
    "product.n5_*",
    *(f"{t}.*_{m}" for t in REPEATED for m in ("gpt2", "llama", "vit")),
)
"""The pairs that repeat others at length: the same transforms of further base models, and longer products."""

Red = dict[str, dict[str, int]]
"""The number of red checks, by way and axiom, up to `ENOUGH`."""


def subjects() -> list[Pair]:
    """The pairs of the campaign."""
    pairs = registered_pairs().items()
    return [pair for name, pair in pairs if not any(fnmatch.fnmatchcase(name, glob) for glob in LEFT_OUT)]


@contextmanager
def models_kept() -> Iterator[None]:
    """Keep the models of all pairs: a campaign runs every check many times."""
    with mock.patch.object(built_pairs, "CAPACITY", len(registered_pairs()) + 1):
        yield


def red_checks(fault: Fault, axioms: Iterable[str], pairs: Sequence[Pair], settings: Settings) -> Red:
    """The checks of these axioms and pairs that a fault turns red."""
    red: dict[str, Counter[str]] = {way: Counter() for way in WAYS}
    with fault.faulty() as explainer, models_kept():
        unknown = foreign(explainer)
        by_default = default_axioms(unknown, pairs)
        for axiom in axioms:
            statuses, applies = set[Status](), AXIOMS[axiom].not_applicable(unknown) is None
            for check in plan(axiom, [explainer], pairs):
                record, judged = check.run(settings), replace(check, explainer=unknown)
                is_stated = applies and judged.expectation.verdict != "UNCLAIMED"
                status = judged_anew(record, judged)
                statuses.add(status)
                red["name"][axiom] += record.status in RED
                if status.label in RED:
                    red["claims"][axiom] += is_stated
                    red["default"][axiom] += axiom in by_default
                if red["name"][axiom] >= ENOUGH and (not is_stated or red["claims"][axiom] >= ENOUGH):
                    break
            if axiom in claims_of(unknown) and statuses == {Status.UNSUPPORTED}:
                red["claims"][axiom] += 1  # a claim that nothing measures fails the run
                red["default"][axiom] += axiom in by_default
    return {way: dict(+counts) for way, counts in red.items()}


def judged_anew(record: Record, check: Check) -> Status:
    """The status that a measurement has under a foreign name; ``check`` is the check under that name.

    A violation that theory predicts of the correct explainer is no news: its author writes it down.
    """
    expectation = check.expectation
    if record.expected == "VIOLATES" and check.explicit_expectation is None:
        return Status.RECORDED
    if record.gap is not None and record.tol is not None:
        assert expectation.predict is None
        values = torch.empty(0)
        return settle(Measurement(record.gap, record.tol, values), expectation, None)[0]
    refused = "the explainer refused, although" in str(record.detail.get("error", ""))
    return Status.UNSUPPORTED if refused else BY_LABEL[record.status]


def axioms_of_explainers() -> list[str]:
    """The axioms that measure an explainer."""
    return [name for name, axiom in AXIOMS.items() if axiom.needs_explainer]


def state() -> str:
    """The state of everything that decides what is red."""
    return state_of_the_code([faithcheck.tests.helpers.faults, gate_faults, sys.modules[__name__]])


# --- the page --------------------------------------------------------------------------------------------------------


def share_red(results: Mapping[str, Red], way: str) -> float:
    """The share of the catalogue's faults that are red in a way."""
    faults = [fault for family in FAMILIES.values() for fault in family]
    return sum(bool(results[fault.id][way]) for fault in faults) / len(faults)


def page(results: Mapping[str, Red]) -> str:
    """docs/results/power.md, from the results of all faults."""
    faults = [fault for family in FAMILIES.values() for fault in family]
    by_way = {way: [fault for fault in faults if results[fault.id][way]] for way in WAYS}
    single = [fault for fault in faults if sum(results[fault.id]["name"].values()) == 1]
    alarms = [fault for fault in UNCHANGED if any(results[fault.id].values())]
    lines = [
        "# What the suite catches",
        "",
        f"**Of {len(faults)} seeded faults, {len(by_way['name'])} are red by name, and {len(by_way['claims'])} by"
        " claims.**",
        "",
        "```sh",
        "make power    # tests/experiments/test_power.py; it writes this page",
        "```",
        "",
        f"{len(faults)} faults, each one change of a correct built-in explainer (tests/helpers/faults), are run by the",
        f"checks of all axioms. The {len(UNCHANGED)} explainers without a fault are run in the same way: "
        f"{'none is red' if not alarms else f'{len(alarms)} are red'}.",
        "",
        "- *by name*: the fault is in the built-in explainer, which is held to what theory expects of it.",
        "- *by claims*: the same explainer under a foreign name, held to its claims alone, those about single subjects",
        "  included (`expected`: what it says holds there).",
        "- *by default*: the same under a foreign name, held to what `faithcheck check` measures without options.",
        "",
        f"Violations of the correct explainer that theory predicts count by name alone. Of each axiom at most {ENOUGH}",
        "red checks are counted.",
        "",
        "| family | faults | red by name | by claims | by default |",
        "|---|--:|--:|--:|--:|",
        *(_counts(family, members, by_way) for family, members in FAMILIES.items()),
        _counts("**all**", faults, by_way),
        "",
        "## Not red by name",
        "",
        *_list(f"{fault.id}: {fault.why}. {fault.escapes}" for fault in faults if fault not in by_way["name"]),
        "",
        "## Red by one check alone",
        "",
        *_list(f"{fault.id}: {', '.join(results[fault.id]['name'])}" for fault in single),
        "",
        "## Red by name, and not by claims",
        "",
        "Under a foreign name these are other explainers, which keep all that they claim.",
        "",
        *_list(f"{fault.id}: {fault.why}" for fault in by_way["name"] if fault not in by_way["claims"]),
    ]
    for family, members in FAMILIES.items():
        lines += [
            "",
            f"## Faults: {family}",
            "",
            "| explainer | fault | checks red by name | by claims | by default | axioms |",
            "|---|---|--:|--:|--:|---|",
            *(_row(fault, results[fault.id]) for fault in members),
        ]
    return "\n".join(lines) + "\n"


def _counts(label: str, faults: Sequence[Fault], by_way: Mapping[str, Sequence[Fault]]) -> str:
    shares = []
    for way in WAYS:
        number = sum(fault in by_way[way] for fault in faults)
        shares.append(f"{number} ({number / len(faults):.1%})")
    return f"| {label} | {len(faults)} | {' | '.join(shares)} |"


def _row(fault: Fault, red: Red) -> str:
    sums = " | ".join(str(sum(red[way].values())) for way in WAYS)
    axioms = ", ".join(f"{name} {count}" for name, count in sorted(red["name"].items(), key=lambda item: -item[1]))
    return f"| {fault.explainer} | {fault.name} | {sums} | {axioms or '—'} |"


def _list(lines: Iterable[str]) -> list[str]:
    return [f"- {line}" for line in lines] or ["None."]


def main(results: Path, document: Path) -> int:
    """Write the page. Returns the exit code: 1 if a fault has no result or a share falls short, else 0."""
    found = {row["fault"]: row["red"] for row in stored(results, state())}
    faults = [*UNCHANGED, *(fault for family in FAMILIES.values() for fault in family)]
    if missing := [fault.id for fault in faults if fault.id not in found]:
        print(f"{len(missing)} faults have no result in {results}, such as {missing[0]}: run make power again")
        return 1
    document.write_text(page(found))
    shares = {way: share_red(found, way) for way in WAYS}
    print(f"{document}: " + ", ".join(f"{share:.1%} red by {way}" for way, share in shares.items()))
    return int(any(shares[way] < least for way, least in LEAST.items()))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
