"""Batch and padding independence: an example's attribution is the same alone as in a batch, and 0 at padding.

Examples are independent (`Case`), so an attribution that hangs on its neighbours explains something else; a common bug
of users' batched runs (inseq #110).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from faithcheck.axioms.verdicts import Measurement, relative_gap, tolerance
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case


def batching(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far attributions in the batch are from those of each example alone, without its padding.

    ``values`` is the attribution in the batch minus that alone, which is 0 at padding, ``(batch, features)``; ``gap``
    is its largest entry relative to the example's largest attribution, in [0, 2]; None where there is one example
    without padding.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    together, tol = attribution_of(explainer, model, case).double(), tolerance(case.inputs)
    alone = torch.zeros_like(together)
    for i in range(len(alone)):
        example = without_padding(case.rows(torch.tensor([i], device=alone.device)))
        alone[i, : example.shape[1]] = attribution_of(explainer, model, example)[0]
    padding = int((~case.present).sum())
    values, scale = together - alone, torch.cat([together, alone], 1)
    if len(alone) == 1 and not padding:
        return Measurement(None, tol, values, detail={"reason": "one example, no padding: nothing to compare"})
    return Measurement(relative_gap(values, scale), tol, values, scale, {"padding features": padding})


def without_padding(example: Case) -> Case:
    """One example without the padding at its end; what the context has a column per feature of loses the same."""
    length = int(example.present[0].nonzero().max()) + 1
    shape = example.shape
    return replace(
        example,
        inputs=example.inputs[:, :length],
        baseline=example.baseline[:, :length],
        special=None if example.special is None else example.special[:, :length],
        context={
            name: value[:, :length] if value.shape[:2] == shape else value for name, value in example.context.items()
        },
    )
