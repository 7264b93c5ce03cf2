"""The mask gate: the first-order effect of removing each feature, in one forward and one backward pass."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from faithcheck.explainers.attention_observer import OtherAttention
from faithcheck.explainers.builtin import builtin
from faithcheck.explainers.gates.attention_gates import attention_gate_effects
from faithcheck.explainers.gates.expectations import FIRST_ORDER
from faithcheck.explainers.gates.followed_mask import FollowedMask
from faithcheck.explainers.gates.gate import GATE_CLAIMS, OnePassGate
from faithcheck.explainers.gates.gated_mask import mask_derivatives
from faithcheck.explainers.gates.sinks import is_sink, sink_shares
from faithcheck.explainers.modules import all_modules
from faithcheck.models.case import Case
from faithcheck.models.expectation import Expectations


@builtin("gate")
@dataclass(frozen=True)
class MaskGate(OnePassGate):
    """∂f/∂m_i at m = 1: one forward and one backward pass. Derived in `faithcheck.explainers.gates`.

    It stays the derivative at attention sinks, where it says little about removal: there it warns.
    """

    label: ClassVar[str] = "Mask gate"
    summary: ClassVar[str] = "first-order effect on the output of removing a token from the attention; derived here"
    on_masked_models: ClassVar[Expectations] = FIRST_ORDER

    name: str = "mask_gate"
    claims: frozenset[str] = GATE_CLAIMS | {"linearity", "additivity", "antisymmetry", "local_limit"}

    def attention_effects(self, model: nn.Module, case: Case) -> Tensor:
        """The derivatives, ``(batch, features)``; raises as `attention_gate_effects` and `mask_derivatives` do."""
        mask = case.forward_arguments.get("attention_mask")
        if mask is None:
            return derivatives(model, case)
        if not has_decoder(model):
            try:
                followed = FollowedMask(mask, torch.ones_like(mask, dtype=case.inputs.dtype))
                effects = derivatives(model, case, followed)
                if not followed.is_used:
                    return effects
            except OtherAttention:
                pass
        return mask_derivatives(model, case)


def derivatives(model: nn.Module, case: Case, mask: FollowedMask | None = None) -> Tensor:
    """The first-order effects, ``(batch, features)``; warns of sinks."""
    effects, _, weights = attention_gate_effects(model, case, "first-order", mask=mask)
    is_sink(case, sink_shares(weights, case), "has its derivative, which is far from Leave-One-Out: take loo")
    return effects


def has_decoder(model: nn.Module) -> bool:
    """Whether the model has a decoder beside its encoder, whose tokens may be as many as the features."""
    # Not by `getattr` of the module, which searches parameters and submodules before it says that there is none.
    configurations = (module.__dict__.get("config") for module in all_modules(model))
    return any(getattr(configuration, "is_encoder_decoder", False) for configuration in configurations)
