"""Faults of the gates: the derivatives by which Leave-One-Out is estimated."""

from __future__ import annotations

from faithcheck.tests.helpers.faults.fault import Constant, Fault, around
from faithcheck.tests.helpers.gate_faults import GATE_FAULTS, MaskedOut

GROUPED_MASK_GATE = [
    Fault(
        "other weights of the groups",
        "grouped_mask_gate",
        Constant("gates.grouped_mask_gate:OWN_GROUP_WEIGHT", 0.5),
        "½ and ½",
    ),
    Fault(
        "1 % in the weights of the groups",
        "grouped_mask_gate",
        Constant("gates.grouped_mask_gate:OWN_GROUP_WEIGHT", 0.606),
        "0.606 and 0.394",
    ),
    Fault(
        "the own group alone", "grouped_mask_gate", Constant("gates.grouped_mask_gate:OWN_GROUP_WEIGHT", 1.0), "φ(½)"
    ),
]


UNDER_A_MASK = [
    Fault(
        f"under a mask: {faulty.fault}",
        faulty.correct.name,
        around(lambda explainer, model, case, faulty=faulty: faulty.attribute(model, case)),
        "a fault of the gates by the attention mask",
    )
    for faulty in (make() for _, make in GATE_FAULTS)
    if type(faulty.correct) is not MaskedOut
]

FAULTS = [*UNDER_A_MASK, *GROUPED_MASK_GATE]
