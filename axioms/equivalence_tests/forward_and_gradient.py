"""One run of a model of a pair: its outputs, and the input gradient of one output of each example."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case, InvalidOutput, describe_tensor, select_target
from faithcheck.models.pair import NotAPair


class Computed(NamedTuple):
    """What a model computes on a case."""

    outputs: Tensor  # (batch, outputs)
    gradient: Tensor  # of each example's target output, shaped like the inputs

    def to(self, dtype: torch.dtype) -> Computed:
        """In another floating-point type."""
        return Computed(self.outputs.to(dtype), self.gradient.to(dtype))


@contextmanager
def refused(doing: str) -> Iterator[None]:
    """Turn an error of a model into a `NotAPair` that says what failed, ``f fails on …``."""
    try:
        yield
    except NotAPair:
        raise
    except InvalidOutput as error:
        raise NotAPair(f"{doing}: {error}") from error
    except Exception as error:  # an error of the model: its message is passed on
        raise NotAPair(f"{doing}: {type(error).__name__}: {error}") from error


def forward_and_gradient(which: str, model: nn.Module, case: Case) -> Computed:
    """The outputs, and the input gradient of each example's target output.

    Raises `NotAPair` if a pass fails, or the output is not ``(batch, outputs)`` of the inputs' dtype.
    """
    with refused(f"{which} fails on {describe_tensor(case.inputs)}"), torch.enable_grad():
        point = case.inputs.detach().clone().requires_grad_()
        outputs = replace(case, inputs=point).run(model)
        if outputs.dtype != point.dtype:
            raise NotAPair(
                f"{which} gives {describe_tensor(outputs)} for {describe_tensor(point)}: expected (batch, outputs)"
            )
        explained = select_target(outputs, case.target).sum()
        return Computed(outputs.detach(), torch.autograd.grad(explained, point)[0])
