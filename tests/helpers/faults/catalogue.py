"""All seeded faults, by family: those that change a line of an explainer are a table, ``lines.tsv``."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from faithcheck.explainers.registry import builtin_explainers
from faithcheck.tests.helpers.faults import gates, gradients, loo, lrp, results, states
from faithcheck.tests.helpers.faults.fault import Fault, Line, Unchanged


def changed_lines(family: str) -> list[Fault]:
    """The faults of a family in the table."""
    with Path(__file__).with_name("lines.tsv").open(encoding="utf-8", newline="") as table:
        rows = csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True)
        return [
            Fault(
                row["name"], row["explainer"], Line(row["function"], row["old"], row["new"]), row["why"], row["escapes"]
            )
            for row in rows
            if row["family"] == family
        ]


FAMILIES: Mapping[str, Sequence[Fault]] = {
    family: [*changed_lines(family), *others]
    for family, others in {
        "gradients": gradients.FAULTS,
        "LRP": lrp.FAULTS,
        "gates": gates.FAULTS,
        "Leave-One-Out and rollout": loo.FAULTS,
        "results": results.FAULTS,
        "states": states.FAULTS,
    }.items()
}

UNCHANGED = [Fault("unchanged", name, Unchanged(), "correct") for name in builtin_explainers()]
"""The correct explainers: no check may be red."""

FAULTS = [fault for family in FAMILIES.values() for fault in family]
