"""Faulty gates in the attention and faulty Leave-One-Out by the attention mask, as data.

Each is a built-in explainer with one fault, under a name of its own. It keeps the claims of the correct one, and the
least correlation with Leave-One-Out that the correct one claims; closed forms of the correct one are not among them.
So a check of it is red by a claim alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from faithcheck.explainers.gates import gate_effects, readout_gate
from faithcheck.explainers.gates.attention_gates import GatedAttention, output_without
from faithcheck.explainers.gates.finite_mask_gate import FiniteMaskGate
from faithcheck.explainers.gates.gate_effects import sum_over_heads
from faithcheck.explainers.gates.grouped_mask_gate import GroupedMaskGate
from faithcheck.explainers.gates.mask_gate import MaskGate
from faithcheck.explainers.gates.readout_copies import CopiedRowsAttention
from faithcheck.explainers.gates.readout_gate import ReadoutGate
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.loo.removal import AttentionMask
from faithcheck.models import Case, Expectation, select_target

Patch = tuple[Any, str, Any]


@dataclass
class Faulty:
    """A correct explainer, with a fault in what it is given, in what it calls, or in what it returns."""

    correct: Any
    fault: str
    change_map: Callable[[Tensor, Case], Tensor] = lambda attribution, case: attribution
    change_case: Callable[[Case], Case] = lambda case: case
    patches: tuple[Patch, ...] = ()
    claims: frozenset[str] = field(init=False)
    expected: Mapping[tuple[str, str], Expectation] = field(init=False)

    def __post_init__(self):
        self.claims = self.correct.claims
        stated = getattr(self.correct, "expected", {})
        self.expected = {key: expectation for key, expectation in stated.items() if expectation.ceiling is not None}

    @property
    def name(self):
        return f"{self.correct.name}_with_{self.fault}".replace(" ", "_")

    def attribute(self, model, case):
        with ExitStack() as stack:
            for place, name, faulty in self.patches:
                stack.enter_context(patch.object(place, name, faulty))
            return self.change_map(self.correct.attribute(model, self.change_case(case)), case)


class MaskedOut(LeaveOneOut):
    """Leave-One-Out by the attention mask through `GatedAttention`, in which faults can be put."""

    like = "loo"

    def attribute(self, model, case):
        if "attention_mask" not in case.forward_arguments:
            return super().attribute(model, case)
        whole, features = select_target(case.run(model), case.target).detach(), case.shape[1]
        alone = torch.eye(features, dtype=torch.bool).unsqueeze(1).expand(-1, len(whole), -1)
        return torch.stack([whole - output_without(model, case, removed) for removed in alone], 1) * case.unpadded


# --- faults of what is given or returned, of every explainer ----------------------------------------------------------


def read_padding(case: Case) -> Case:
    ones = torch.ones_like(case.forward_arguments["attention_mask"])
    return replace(case, forward_arguments={**case.forward_arguments, "attention_mask": ones})


def without_special(attribution: Tensor, case: Case) -> Tensor:
    return attribution if case.special_tokens_mask is None else attribution * ~case.special_tokens_mask


def next_token(attribution: Tensor, case: Case) -> Tensor:
    return attribution.roll(1, 1) * case.unpadded


OF_EVERY_EXPLAINER: dict[str, dict[str, Any]] = {
    "the wrong sign": {"change_map": lambda attribution, case: -attribution},
    "half of it": {"change_map": lambda attribution, case: attribution / 2},
    "the absolute value": {"change_map": lambda attribution, case: attribution.abs()},
    "the next token": {"change_map": next_token},
    "special tokens left out": {"change_map": without_special},
    "padding not excluded": {
        "change_case": lambda case: read_padding(case) if "attention_mask" in case.forward_arguments else case
    },
}

# --- faults of the gates' effects -------------------------------------------------------------------------------------

correct_effects, all_effects, attend = gate_effects.gate_effects, GatedAttention.effects, CopiedRowsAttention.attend


def of_another_row(kinds, buffer, weights, gradient, at_logits=None):
    return correct_effects(kinds, buffer, weights, gradient.roll(1, -2))


def of_another_head(kinds, buffer, weights, gradient, at_logits=None):
    return correct_effects(kinds, buffer, weights, gradient.flip(-3))


def of_transposed_weights(kinds, buffer, weights, gradient, at_logits=None):
    return correct_effects(kinds, buffer, weights.mT.contiguous(), gradient)


def not_renormalised(kinds, buffer, weights, gradient, at_logits=None):
    return [sum_over_heads(weights * gradient) for _ in kinds]


def of_all_layers_but_the_first(attention, output, *kinds):
    return tuple(torch.cat([torch.zeros_like(kind[:1]), kind[1:]]) for kind in all_effects(attention, output, *kinds))


OF_EFFECTS: dict[str, tuple[Patch, ...]] = {
    "a layer left out": ((GatedAttention, "effects", of_all_layers_but_the_first),),
    "the wrong row": ((gate_effects, "gate_effects", of_another_row),),
    "heads in another order": ((gate_effects, "gate_effects", of_another_head),),
    "a transposed mask": ((gate_effects, "gate_effects", of_transposed_weights),),
    "weights not renormalised": ((gate_effects, "gate_effects", not_renormalised),),
}

# --- faults of the readout gate's copied rows -------------------------------------------------------------------------


def attends_everywhere_in_the_first_layer(self, logits, softmax):
    first = self.layer.hidden is self.case.inputs or torch.equal(self.layer.hidden, self.case.inputs)
    return softmax(logits) if first else attend(self, logits, softmax)


def in_one_head(self, logits, softmax):
    return torch.cat([attend(self, logits, softmax)[:, :1], softmax(logits)[:, 1:]], 1)


def in_its_own_row(self, logits, softmax):
    own = (self.copies.rows == self.copies.feature_position.unsqueeze(-1)).flatten(1)[:, None, :, None]
    return torch.where(own, attend(self, logits, softmax), softmax(logits))


def zeroed(self, logits, softmax):
    removed = attend(self, logits, softmax) == 0
    return softmax(logits).masked_fill(removed, 0)


def position_after(gradient):
    return (correct_position(gradient) + 1) % gradient.shape[1]


correct_position = readout_gate.readout_position
OF_COPIES: dict[str, tuple[Patch, ...]] = {
    "a layer left out": ((CopiedRowsAttention, "attend", attends_everywhere_in_the_first_layer),),
    "the wrong row": ((readout_gate, "readout_position", position_after),),
    "one head alone": ((CopiedRowsAttention, "attend", in_one_head),),
    "a transposed mask": ((CopiedRowsAttention, "attend", in_its_own_row),),
    "weights not renormalised": ((CopiedRowsAttention, "attend", zeroed),),
}

# --- faults of Leave-One-Out by the attention mask --------------------------------------------------------------------

remove_features = GatedAttention.remove_features


def keys_of(attention, logits):
    """The removed keys, to broadcast against the logits."""
    return attention.removed.reshape(len(logits), *(1,) * (logits.dim() - 2), -1)


def whole_in_the_first_layer(attention, logits, softmax):
    return 2 * (softmax(logits),) if not attention.weights else remove_features(attention, logits, softmax)


def removed_from_inner_rows(attention, logits, softmax):
    inner = torch.zeros(logits.shape[-2], 1, dtype=torch.bool)
    inner[1:-1] = True
    return 2 * (softmax(logits.masked_fill(keys_of(attention, logits) & inner, torch.finfo(logits.dtype).min)),)


def removed_in_one_head(attention, logits, softmax):
    weights = remove_features(attention, logits, softmax)[0]
    return 2 * (torch.cat([weights[:, :1], softmax(logits)[:, 1:]], 1),)


def removed_from_its_own_row(attention, logits, softmax):
    own = torch.eye(logits.shape[-1], dtype=torch.bool)
    return 2 * (softmax(logits.masked_fill(keys_of(attention, logits) & own, torch.finfo(logits.dtype).min)),)


def removed_without_renormalising(attention, logits, softmax):
    return 2 * (softmax(logits).masked_fill(keys_of(attention, logits), 0),)


OF_REMOVAL: dict[str, tuple[Patch, ...]] = {
    "a layer left out": ((GatedAttention, "remove_features", whole_in_the_first_layer),),
    "the wrong row": ((GatedAttention, "remove_features", removed_from_inner_rows),),
    "one head alone": ((GatedAttention, "remove_features", removed_in_one_head),),
    "a transposed mask": ((GatedAttention, "remove_features", removed_from_its_own_row),),
    "weights not renormalised": ((GatedAttention, "remove_features", removed_without_renormalising),),
}


def half_of_the_mask(self: AttentionMask, case: Case, removed: Tensor, draw: int = 0) -> Case:
    mask = case.forward_arguments["attention_mask"]
    return replace(
        case, forward_arguments={**case.forward_arguments, "attention_mask": torch.where(removed, mask / 2, mask)}
    )


# --- all of them ------------------------------------------------------------------------------------------------------

GATES = MaskGate(), FiniteMaskGate(), GroupedMaskGate(), ReadoutGate()
CORRECT = *GATES, LeaveOneOut(), MaskedOut()
"""The correct explainers: nothing may be red of them."""


def special_in_groups(case: Case) -> Case:
    return replace(case, special_tokens_mask=None)


_faulty = [
    *(Faulty(correct, fault, **change) for correct in CORRECT[:-1] for fault, change in OF_EVERY_EXPLAINER.items()),
    *(Faulty(gate, fault, patches=patches) for gate in GATES[:-1] for fault, patches in OF_EFFECTS.items()),
    *(Faulty(ReadoutGate(), fault, patches=patches) for fault, patches in OF_COPIES.items()),
    *(Faulty(MaskedOut(), fault, patches=patches) for fault, patches in OF_REMOVAL.items()),
    Faulty(LeaveOneOut(), "half of the mask", patches=((AttentionMask, "remove", half_of_the_mask),)),
    Faulty(GroupedMaskGate(), "special tokens in groups", change_case=special_in_groups),
]

GATE_FAULTS: list[tuple[str, Callable[[], Faulty]]] = [
    (faulty.name, lambda faulty=faulty: faulty) for faulty in _faulty
]
"""The name of each fault, and a function that returns the faulty explainer."""
