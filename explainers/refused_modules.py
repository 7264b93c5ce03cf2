"""Modules that an explainer must refuse before it runs: their gradient is missing, or no mode sees their operations.

What belongs here: what a module is, told from the module alone. Not here: what is found out while the model runs
(`faithcheck.explainers.lrp.recomputation`), and what quantised weights are (`faithcheck.explainers.quantised_weights`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import nn

from faithcheck.explainers.last_layer import all_modules
from faithcheck.explainers.protocol import Unsupported
from faithcheck.explainers.running_modules import module_in_words
from faithcheck.models.offloaded_weights import offloading_hook

Reason: TypeAlias = Callable[[nn.Module], str | None]
"""Why a module is refused, as the rest of a sentence that starts with its name; None if it is not."""


def refuse_modules(model: nn.Module, *reasons: Reason) -> None:
    """Refuse a model if a module of it is refused for one of these reasons.

    Raises:
        Unsupported: names the first such module, the reason, and the way out.
    """
    for module in all_modules(model):
        for reason in reasons:
            if why := reason(module):
                raise Unsupported(f"{module_in_words(model, module)} {why}")


def compiled(module: nn.Module) -> str | None:
    """A reason to refuse a module: `torch.compile` compiled it."""
    # By name: the class is in torch._dynamo, which takes seconds to import.
    if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
        return (
            "is compiled by torch.compile, and no rule sees the operations of a compiled graph: explain the module "
            "before it is compiled, which a compiled one keeps as _orig_mod"
        )
    return None


def flex_attention(module: nn.Module) -> str | None:
    """A reason to refuse a module of `transformers`: it computes attention by torch's flex attention."""
    # Not by `getattr` of the module, which searches parameters and submodules before it says that there is none.
    config = module.__dict__.get("config")
    if config is not None and getattr(config, "_attn_implementation", None) == "flex_attention":
        return (
            "computes flex attention, a compiled graph whose attention weights no explainer sees, and which has no "
            "gradient on a CPU: load the model with attn_implementation='sdpa' or 'eager', or use Leave-One-Out"
        )
    return None


def offloaded(module: nn.Module) -> str | None:
    """A reason to refuse a module where a copy gets other weights: accelerate brings its own whenever it runs."""
    if offloading_hook(module) is not None:
        return (
            "is offloaded by accelerate, which brings its weights whenever it runs, so that no copy of the model has "
            "other weights: load the model without a device_map, or on devices that hold all of it"
        )
    return None
