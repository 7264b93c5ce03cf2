"""Quantised weights: torch computes their products without a gradient."""

from __future__ import annotations

from torch import nn

from faithcheck.explainers.last_layer import all_modules
from faithcheck.explainers.protocol import Unsupported
from faithcheck.explainers.running_modules import module_in_words


def refuse_quantised(model: nn.Module) -> None:
    """Refuse a model with quantised modules of torch: its gradient lacks every path through them, without an error.

    Raises:
        Unsupported: names the first of them.
    """
    for module in all_modules(model):
        if type(module).__module__.startswith("torch.ao.nn.quantized"):
            raise Unsupported(
                f"{module_in_words(model, module)} has quantised weights, which have no gradient: explain the model "
                "that it was made from, or use Leave-One-Out"
            )
