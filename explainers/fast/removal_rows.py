"""Rows of one model without some of their features, faster than by plain passes, and equal to them up to round-off.

This file decides when the fast parts are used, and checks that they compute what their plain twin does:
`faithcheck.models.case.Case.run`.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from faithcheck.explainers.fast.outer_layers import spared_outer_layers
from faithcheck.explainers.fast.shared_prefix import SharedPrefixes
from faithcheck.explainers.fast.switch import is_fast
from faithcheck.explainers.protocol import only_observes
from faithcheck.models.case import Case

LEAST_NUMBERS = 2**17
"""Passes over fewer numbers of inputs are run as they are: the check below takes longer than the fast parts save."""

ROUND_OFF = 512
"""How far outputs may be apart, in units of the type's epsilon times the largest output: other orders of the same sums.
Measured are at most 40."""


def runner(model: nn.Module) -> Callable[[Case], Tensor]:
    """A function from rows to the outputs of the model on them ``(rows, outputs)``, up to round-off."""
    if not is_fast() or not may_be_fast(model):
        return lambda case: case.run(model)
    return FastRows(model).outputs


def may_be_fast(model: nn.Module) -> bool:
    """Whether a model is a Transformer of `transformers` in eval mode, and nobody else interferes with its modules.

    A compiled module does not see hooks. Other hooks would see fewer tokens than they expect.
    """
    if torch_module._has_any_global_hook() or transformer_in(model) is None:  # type: ignore[no-untyped-call]
        return False
    for module in model.modules():
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        is_compiled = isinstance(module, torch.jit.ScriptModule) or module._compiled_call_impl is not None
        is_replaced = "forward" in vars(module) or "_orig_mod" in module._modules
        if module.training or is_compiled or is_replaced or not all(map(only_observes, hooks)):
            return False
    return True


def transformer_in(model: nn.Module) -> nn.Module | None:
    """The outermost `transformers` model in a model; None if it has none."""
    transformers = sys.modules.get("transformers")  # a model of transformers has imported it
    if transformers is None:
        return None
    return next((module for module in model.modules() if isinstance(module, transformers.PreTrainedModel)), None)


class FastRows:
    """Runs a Transformer on rows without some of their features.

    Two rows of the first pass are run in both ways: ``is_right`` says whether the outputs are equal up to round-off. If
    they are not, or the fast parts fail on this model, all rows are run plainly. On the CPU alone: a GPU takes about as
    long for a small pass as for a large one.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        transformer: Any = transformer_in(model)
        is_decoder = transformer is not None and transformer.can_generate()
        self.prefixes = SharedPrefixes(model, transformer) if is_decoder else None
        self.is_right: bool | None = None

    def outputs(self, case: Case) -> Tensor:
        """The outputs ``(rows, outputs)``, under `torch.no_grad`, of rows of which neighbours should begin alike."""
        if self.is_right is False or not is_worthwhile(case):
            return case.run(self.model)
        if self.is_right is None:
            self.is_right = self.agrees(case.select(torch.arange(len(case.inputs) - 2, len(case.inputs))))
            return self.outputs(case)
        outputs = self.fast(case)
        if outputs is None or not outputs.isfinite().all():
            self.is_right = False
            return case.run(self.model)
        return outputs

    def agrees(self, case: Case) -> bool:
        """Whether the outputs of both ways are equal up to round-off; the random state stays as it is."""
        with torch.random.fork_rng(devices=[]):
            outputs = self.fast(case)
        with torch.random.fork_rng(devices=[]):
            expected = case.run(self.model)
        if outputs is None or outputs.shape != expected.shape:
            return False
        tolerance = ROUND_OFF * torch.finfo(expected.dtype).eps * expected.abs().max()
        return bool((outputs - expected).abs().max() <= tolerance)

    def fast(self, case: Case) -> Tensor | None:
        """The outputs; None if the fast parts cannot run this model."""
        try:
            return self.whole_rows(case) if self.prefixes is None else self.prefixes.outputs(case, self.whole_rows)
        except Exception:  # if it is the model's own, its plain pass raises it again
            return None

    def whole_rows(self, case: Case) -> Tensor:
        """The outputs of one pass."""
        with spared_outer_layers(self.model, position_read(case)):
            return case.run(self.model)


def is_worthwhile(case: Case) -> bool:
    """Whether the fast parts are made for these rows, and save more time than the check takes."""
    inputs = case.inputs
    is_made_for = inputs.device.type == "cpu" and inputs.dtype in (torch.float32, torch.float64) and inputs.dim() == 3
    return is_made_for and len(inputs) > 1 and inputs.numel() >= LEAST_NUMBERS


def position_read(case: Case) -> Tensor | None:
    """The position at which each row is read ``(rows,)``, as far as a case says it; None for several positions.

    Without ``last`` it is the first, where classifiers have [CLS]. A model that reads another one gives NaN.
    """
    if "answer" in case.forward_arguments:
        return None
    return case.forward_arguments.get("last", torch.zeros(len(case.inputs), dtype=torch.int64))
