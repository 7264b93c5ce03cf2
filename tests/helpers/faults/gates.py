"""Faults of the gates: the derivatives by which Leave-One-Out is estimated."""

from __future__ import annotations

from faithcheck.tests.helpers.faults.fault import Constant, Fault, Line, around
from faithcheck.tests.helpers.gate_faults import GATE_FAULTS, MaskedOut

EFFECTS = "gates.gate_effects:gate_effects"
FINITE = "gates.gate_effects:finite_effect"
INPUT = "gates.gate:input_gate_effects"
GROUPED = "gates.grouped_mask_gate:GroupedMaskGate.attribute"
READOUT = "gates.readout_gate:ReadoutGate"
ONE_PASS = "gates.gate:OnePassGate.attribute"


def _fault(explainer: str, name: str, function: str, old: str, new: str, why: str) -> Fault:
    return Fault(name, explainer, Line(function, old, new), why)


MASK_GATE = [
    _fault("mask_gate", name, function, old, new, why)
    for name, function, old, new, why in (
        (
            "the sign, inputs",
            INPUT,
            "(case.inputs - case.baseline) * gradient",
            "(case.baseline - case.inputs) * gradient",
            "−(x − x′) ⊙ ∂f",
        ),
        (
            "half, inputs",
            INPUT,
            "(case.inputs - case.baseline) * gradient",
            "(case.inputs - case.baseline) * gradient / 2",
            "½",
        ),
        ("the baseline ignored", INPUT, "(case.inputs - case.baseline) * gradient", "case.inputs * gradient", "x ⊙ ∂f"),
        (
            "the gradient at the baseline",
            INPUT,
            "point = case.inputs.detach().clone()",
            "point = case.baseline.detach().clone()",
            "∂f(x′)",
        ),
        ("the sign, attention", EFFECTS, "at_logits if kind", "-at_logits if kind", "−A (S − Σ A S)"),
        ("half, attention", EFFECTS, "at_logits if kind", "at_logits / 2 if kind", "½"),
        ("1 % more, attention", EFFECTS, "at_logits if kind", "at_logits * 1.01 if kind", "1.01"),
        ("the absolute value, attention", EFFECTS, "at_logits if kind", "at_logits.abs() if kind", "no sign"),
        (
            "the weights not renormalised",
            EFFECTS,
            "torch.sub(gradient, at_logits.sum(-1, keepdim=True), out=at_logits)",
            "torch.sub(gradient, 0 * at_logits.sum(-1, keepdim=True), out=at_logits)",
            "A S without − A Σ A S",
        ),
        (
            "keys and queries swapped",
            "gates.attention_gates:attention_gate_effects",
            "return effects.sum(1)",
            "return effects.sum(2)",
            "the sum over keys, not over rows",
        ),
        (
            "the first layer alone",
            "gates.attention_gates:attention_gate_effects",
            "by_layer.sum(0)",
            "by_layer[0]",
            "other layers are forgotten",
        ),
        (
            "the last layer alone",
            "gates.attention_gates:attention_gate_effects",
            "by_layer.sum(0)",
            "by_layer[-1]",
            "other layers are forgotten",
        ),
        (
            "the first head alone",
            "gates.gate_effects:sum_over_heads",
            "values.sum(-3)",
            "values[..., 0, :, :]",
            "other heads are forgotten",
        ),
        (
            "the mean over heads",
            "gates.gate_effects:sum_over_heads",
            "values.sum(-3)",
            "values.mean(-3)",
            "a head counts less the more there are",
        ),
        (
            "always on the inputs",
            ONE_PASS,
            "not gates_attention(case, self.removal)",
            "True",
            "the wrong removal",
        ),
    )
]

FINITE_MASK_GATE = [
    _fault("finite_mask_gate", name, function, old, new, why)
    for name, function, old, new, why in (
        (
            "the first order",
            FINITE,
            "torch.sub(1, weights, out=effect)",
            "torch.sub(1, 0 * weights, out=effect)",
            "not over 1 − A",
        ),
        (
            "over 1 + A",
            FINITE,
            "torch.sub(1, weights, out=effect)",
            "torch.add(1, weights, out=effect)",
            "the sign of A",
        ),
        ("over A", FINITE, "torch.sub(1, weights, out=effect)", "torch.add(0, weights, out=effect)", "A, not 1 − A"),
        (
            "the own row counts",
            "gates.attention_gates:attention_gate_effects",
            'if kind == "finite"',
            'if kind == "none"',
            "its own row is read by nobody",
        ),
        (
            "the own row of the readout is left out",
            "gates.gate_effects:clear_own_rows",
            "~readout_rows[:, queries - features :]",
            "torch.ones_like(readout_rows[:, queries - features :])",
            "the readout row is read",
        ),
        ("all rows are read", "gates.gate_effects:rows_with_gradient", "size >", "size > -", "every own row counts"),
        (
            "the last own row counts",
            "gates.gate_effects:clear_own_rows",
            "own_rows.masked_fill_(~readout_rows[:, queries - features :], 0)",
            "own_rows[..., :-1].masked_fill_(~readout_rows[:, queries - features : -1], 0)",
            "one feature's own row is left as it is",
        ),
        (
            "the sign, attention",
            ONE_PASS,
            "(self.attention_effects(model, case)",
            "(-self.attention_effects(model, case)",
            "−φ",
        ),
    )
]

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
    *(
        _fault("grouped_mask_gate", name, function, old, new, why)
        for name, function, old, new, why in (
            (
                "own and others swapped",
                "gates.grouped_mask_gate:combine_own_and_others",
                "OWN_GROUP_WEIGHT * own + (1 - OWN_GROUP_WEIGHT) * others",
                "OWN_GROUP_WEIGHT * others + (1 - OWN_GROUP_WEIGHT) * own",
                "0.6 and 0.4 swapped",
            ),
            (
                "the sum of the others",
                "gates.grouped_mask_gate:own_and_other_groups",
                " / (~halfway).sum(-2)",
                "",
                "Σ, not the mean",
            ),
            (
                "neighbours in one group",
                "gates.grouped_mask_gate:assign_groups",
                "(features.cumsum(1) - 1) % groups",
                "(features.cumsum(1) - 1) * groups // features.shape[1]",
                "blocks of neighbours, which interact",
            ),
            (
                "removed whole",
                "gates.gate:input_gate_effects",
                "(point + case.baseline) / 2",
                "case.baseline + 0 * point",
                "s = 1, not ½",
            ),
            (
                "a quarter of the way",
                "gates.gate:input_gate_effects",
                "(point + case.baseline) / 2",
                "(3 * point + case.baseline) / 4",
                "s = ¼, not ½",
            ),
            ("the full way back", GROUPED, ".sum(2) / 4", ".sum(2) / 2", "½ Σ ½ (…) is a quarter"),
            (
                "special features are dealt too",
                GROUPED,
                "assign_groups(case.non_special,",
                "assign_groups(case.unpadded,",
                "they disturb their group",
            ),
            (
                "the sign of special features",
                GROUPED,
                "output[example] - self._outputs_without(model, case, example, feature)",
                "self._outputs_without(model, case, example, feature) - output[example]",
                "f without i − f",
            ),
            (
                "strength of 1 in attention",
                "gates.grouped_mask_gate:GroupedMaskGate._effects",
                '"finite", halfway, 0.5',
                '"finite", halfway, 0.9',
                "s = 0.9, not ½",
            ),
        )
    ),
]

READOUT_GATE = [
    _fault("readout_gate", name, function, old, new, why)
    for name, function, old, new, why in (
        (
            "the sign of the exact part",
            f"{READOUT}._exact_effects",
            "without_removal - copies.split_groups(states)",
            "copies.split_groups(states) - without_removal",
            "the output rises where it falls",
        ),
        (
            "half of the exact part",
            f"{READOUT}.attention_effects",
            "+= exact - by_gates",
            "+= exact / 2 - by_gates",
            "½",
        ),
        (
            "gates are not replaced",
            f"{READOUT}.attention_effects",
            "+= exact - by_gates",
            "+= exact",
            "direct effects count twice",
        ),
        (
            "the exact part is forgotten",
            f"{READOUT}.attention_effects",
            "+= exact - by_gates",
            "-= by_gates",
            "indirect effects alone",
        ),
        (
            "first order in place of the mean",
            f"{READOUT}._gates_from",
            "(finite + first_order) / 2",
            "first_order",
            "not the mean of both",
        ),
        (
            "the sum of both gates",
            f"{READOUT}._gates_from",
            "(finite + first_order) / 2",
            "finite + first_order",
            "twice the mean",
        ),
        (
            "the wrong readout row",
            "gates.readout_recording:readout_position",
            "return read.byte().argmax(1)",
            "return (read.byte().argmax(1) + 1) % read.shape[1]",
            "off by one",
        ),
        (
            "the removed key stays",
            "gates.readout_copies:CopiedRows.removed_keys",
            "self.first_layer <= layer",
            "self.first_layer + 10**6 <= layer",
            "nothing is removed from the copies",
        ),
        (
            "one layer late",
            "gates.readout_copies:CopiedRows.removed_keys",
            "self.first_layer <= layer",
            "self.first_layer < layer",
            "the first layer is left as it is",
        ),
        (
            "the copies' own change is forgotten",
            "gates.readout_copies:CopiedRowsAttention.output",
            "return of_unchanged + (among_copies @ change).flatten(-3, -2)",
            "return of_unchanged",
            "copies read the unchanged values",
        ),
    )
]

ONE_PASS_GATES = [
    *(
        _fault(
            gate,
            "padding attributed",
            ONE_PASS,
            "(model, case) * case.unpadded",
            "(model, case) + ~case.unpadded",
            "values at padding",
        )
        for gate in ("mask_gate", "finite_mask_gate", "readout_gate")
    ),
    *(
        _fault(
            gate,
            "the sign, inputs",
            "gates.gate:gradient_times_difference",
            "return per_feature(",
            "return -per_feature(",
            "−(x − x′) ⊙ ∂f",
        )
        for gate in ("finite_mask_gate", "readout_gate")
    ),
]
"""Faults of what the gates of one pass have in common."""

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

FAULTS = [*UNDER_A_MASK, *MASK_GATE, *FINITE_MASK_GATE, *GROUPED_MASK_GATE, *READOUT_GATE, *ONE_PASS_GATES]
