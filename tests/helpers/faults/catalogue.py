"""All seeded faults, by family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from faithcheck.explainers.registry import builtin_explainers
from faithcheck.tests.helpers.faults import gates, gradients, loo, lrp, results, states
from faithcheck.tests.helpers.faults.fault import Fault, Unchanged

FAMILIES: Mapping[str, Sequence[Fault]] = {
    "gradients": gradients.FAULTS,
    "LRP": lrp.FAULTS,
    "gates": gates.FAULTS,
    "Leave-One-Out and rollout": loo.FAULTS,
    "results": results.FAULTS,
    "states": states.FAULTS,
}

UNCHANGED = [Fault("unchanged", name, Unchanged(), "correct") for name in builtin_explainers()]
"""The correct explainers: no check may be red."""

FAULTS = [fault for family in FAMILIES.values() for fault in family]
