"""No trace: an attribution leaves nothing behind, on the model or in the process, and it fails if the model fails.

What is compared before and after is listed in `faithcheck.axioms.traces`: `process_snapshot` and `model_snapshot`.
"""

import hashlib
import random
from contextlib import suppress

import numpy as np
import torch
from torch import nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Measurement
from faithcheck.axioms.traces.model_snapshot import restored
from faithcheck.explainers.protocol import Explainer, ForwardPassesFailed, attribution_of, observed_forward_passes
from faithcheck.models.case import Case
from faithcheck.models.pair import seed_torch


@axiom(
    "trace",
    "an attribution leaves nothing behind",
    usual_cause=("a hook, a mode or a setting is put back only where all goes well: put it back in a finally block"),
    mandatory=True,
    tolerance=0.0,
)
def trace(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Count what one attribution leaves behind, and another during which the model fails after its first forward pass.

    ``gap`` is the number of kinds of traces; the tolerance is 0.
    """
    with restored():
        _seed_privately()
        with restored(model) as left_behind:
            attribution_of(explainer, model, case)
        left_by_failure = _left_by_failure(explainer, model, case)
    only_by_failure = [f"{line}, when the model failed" for line in left_by_failure if line not in left_behind]
    traces = [*left_behind, *only_by_failure]
    detail = {"left behind": "; ".join(traces)} if traces else {}
    return Measurement(float(len(traces)), 0.0, torch.tensor([float(len(traces))]), detail=detail)


def _seed_privately() -> None:
    """Seed all random numbers with a number that no explainer seeds with by chance, so that a reseeding is seen."""
    digest = hashlib.sha256(f"faithcheck trace {torch.initial_seed()}".encode()).digest()
    private = int.from_bytes(digest[:4], "big")
    seed_torch(private)
    random.seed(private)
    np.random.seed(private)


def _left_by_failure(explainer: Explainer, model: nn.Module, case: Case) -> list[str]:
    """What an attribution leaves behind whose forward passes fail; a map that it returns all the same is a trace."""

    def fail() -> None:
        raise _Failure

    returned = []
    failing = observed_forward_passes(model, lambda: None, fail)
    # The explainer may raise anything here: only what it leaves behind counts, and that it raises.
    with failing, restored(model) as left_behind, suppress(Exception):
        try:
            attribution_of(explainer, model, case)
        except ForwardPassesFailed:
            returned = ["an attribution instead of an error"]
    return [*left_behind, *returned]


class _Failure(RuntimeError):
    """The model fails, as a user's model might."""

    def __init__(self) -> None:
        super().__init__("the model fails on purpose, to see what the explainer then leaves behind")
