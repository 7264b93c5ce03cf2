"""Gradient checkpointing: operations that run again in the backward pass, where no torch-function mode follows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from faithcheck.explainers.modules import module_in_words
from faithcheck.explainers.protocol import Unsupported

RECOMPUTED = (
    "gradient checkpointing runs its operations again in the backward pass, where no rule applies: switch it off, in "
    "transformers by model.activation_checkpointing_disable()"
)


@contextmanager
def refusing_recomputation(model: nn.Module) -> Iterator[None]:
    """Refuse gradient checkpointing by a model that runs in this context.

    Its second forward pass runs without the mode, so that tensors saved by the operations take the place of those that
    the rules saved. torch finds this out only where shapes differ.

    Raises:
        Unsupported: names the innermost module that asked for it.
    """
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks(RECOMPUTED):
            yield
    except RuntimeError as error:
        if RECOMPUTED not in str(error):
            raise
        raise Unsupported(f"{module_in_words(model, _innermost(model, error))}: {RECOMPUTED}") from error


def _innermost(model: nn.Module, error: RuntimeError) -> nn.Module:
    """The innermost module whose forward pass raised an error."""
    running, trace = model, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is nn.Module._call_impl.__code__:
            running = trace.tb_frame.f_locals["self"]
        trace = trace.tb_next
    return running
