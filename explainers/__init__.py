"""Explainers: their protocol, the built-in explainers, and adapters for explainers of other libraries and of users.

A new explainer is one module here or in a subpackage: `loo` (Leave-One-Out and removals), `gates` (gates on features
that approximate Leave-One-Out in few passes), `lrp` (Layer-wise Relevance Propagation), `peers` (other libraries').
What is explained belongs in `faithcheck.models`; what should hold of an explainer belongs in `faithcheck.axioms`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from faithcheck.explainers.adapters import NotAnExplainer, as_explainer, from_captum, from_function
    from faithcheck.explainers.attention_rollout import AttentionRollout
    from faithcheck.explainers.builtin import builtin_explainers
    from faithcheck.explainers.deeplift import DeepLiftRescale
    from faithcheck.explainers.gradients import GradientTimesInput, IntegratedGradients
    from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
    from faithcheck.explainers.lrp.attnlrp import AttnLRP
    from faithcheck.explainers.lrp.cplrp import CPLRP
    from faithcheck.explainers.lrp.engine import LRP
    from faithcheck.explainers.lrp.epsilon_lrp import EpsilonLRP
    from faithcheck.explainers.protocol import (
        Explainer,
        InvalidAttribution,
        Unsupported,
        describe_settings,
        display_label,
    )
    from faithcheck.explainers.registry import load_explainer

__all__ = [
    "CPLRP",
    "LRP",
    "AttentionRollout",
    "AttnLRP",
    "DeepLiftRescale",
    "EpsilonLRP",
    "Explainer",
    "GradientTimesInput",
    "IntegratedGradients",
    "InvalidAttribution",
    "LeaveOneOut",
    "NotAnExplainer",
    "Unsupported",
    "as_explainer",
    "builtin_explainers",
    "describe_settings",
    "display_label",
    "from_captum",
    "from_function",
    "load_explainer",
]

_HOMES = {
    "AttentionRollout": "attention_rollout",
    "AttnLRP": "lrp.attnlrp",
    "CPLRP": "lrp.cplrp",
    "DeepLiftRescale": "deeplift",
    "EpsilonLRP": "lrp.epsilon_lrp",
    "Explainer": "protocol",
    "GradientTimesInput": "gradients",
    "IntegratedGradients": "gradients",
    "InvalidAttribution": "protocol",
    "LRP": "lrp.engine",
    "LeaveOneOut": "loo.leave_one_out",
    "NotAnExplainer": "adapters",
    "Unsupported": "protocol",
    "as_explainer": "adapters",
    "builtin_explainers": "builtin",
    "describe_settings": "protocol",
    "display_label": "protocol",
    "from_captum": "adapters",
    "from_function": "adapters",
    "load_explainer": "registry",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `loo.removal_names` must be importable without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """What is defined here and imported so far, with the public names."""
    return sorted({*globals(), *__all__})
