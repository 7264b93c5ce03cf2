"""No trace: an attribution leaves nothing behind, on the model or in the process, even if the model fails.

What is compared before and after is listed in `faithcheck.axioms.engine.left_behind`.
"""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import nn

from faithcheck.axioms.engine.axiom import axiom
from faithcheck.axioms.engine.left_behind import restored
from faithcheck.axioms.engine.verdicts import Measurement
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case


@axiom("trace", "an attribution leaves nothing behind", mandatory=True)
def trace(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Count what one attribution leaves behind, and another during which the model fails after its first forward pass.

    ``gap`` is the number of kinds of traces; the tolerance is 0.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    with restored(model) as left_behind:
        attribution_of(explainer, model, case)

    def fail(*_: object) -> None:
        raise _Failure

    handle = model.register_forward_hook(fail)
    try:
        # The explainer may raise anything here: only what it leaves behind counts.
        with restored(model) as left_by_failure, suppress(Exception):
            attribution_of(explainer, model, case)
    finally:
        handle.remove()
    only_by_failure = [f"{line}, when the model failed" for line in left_by_failure if line not in left_behind]
    traces = [*left_behind, *only_by_failure]
    detail = {"left behind": "; ".join(traces)} if traces else {}
    return Measurement(float(len(traces)), 0.0, torch.tensor([float(len(traces))]), detail=detail)


class _Failure(RuntimeError):
    """The model fails, as a user's model might."""

    def __init__(self) -> None:
        super().__init__("the model fails on purpose, to see what the explainer then leaves behind")
