"""Batch and padding independence: an example's attribution is the same alone as in a batch, and 0 at padding.

Examples are independent (`Case`), so an attribution that hangs on its neighbours explains something else; a common bug
of users' batched runs (inseq #110).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from faithcheck.axioms.engine.verdicts import Measurement, relative_gap, tolerance
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case, select_target


def batching(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far attributions in the batch are from those of each example alone, without its padding.

    ``values`` is the attribution in the batch minus that alone, which is 0 at padding, ``(batch, features)``; ``gap``
    is its largest entry relative to the example's largest attribution, in [0, 2]; None where there is one example
    without padding. ``detail`` has the same gap of the explained outputs: where that is no round-off the model itself
    reads padding (positions behind padding on the left, say, without ``position_ids`` in the context that start there).

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    together, tol = attribution_of(explainer, model, case).double(), tolerance(case.inputs)
    alone, outputs = torch.zeros_like(together), outputs_of(model, case)
    outputs_alone = outputs.clone()
    for i in case.unpadded.any(1).nonzero():
        example = without_padding(case.select(i))
        alone[i, case.unpadded[i].squeeze(0)] = attribution_of(explainer, model, example).double()
        outputs_alone[i] = outputs_of(model, example)
    padding = int((~case.unpadded).sum())
    values, scale = together - alone, torch.cat([together, alone], 1)
    if len(alone) == 1 and not padding:
        return Measurement(None, tol, values, detail={"reason": "one example, no padding: nothing to compare"})
    moved = relative_gap(outputs - outputs_alone, outputs, outputs_alone)
    detail = {"padding features": padding, "gap, outputs": moved}
    return Measurement(relative_gap(values, scale), tol, values, scale, detail)


@torch.no_grad()
def outputs_of(model: nn.Module, case: Case) -> Tensor:
    """The explained output of each example, ``(batch,)``."""
    return select_target(case.run(model), case.target).double()


def without_padding(example: Case) -> Case:
    """One example without padding, wherever it stands; what the context has a column per feature of loses the same."""
    here, shape = example.unpadded[0], example.shape
    return replace(
        example,
        inputs=example.inputs[:, here],
        baseline=example.baseline[:, here],
        special_tokens_mask=None if example.special_tokens_mask is None else example.special_tokens_mask[:, here],
        forward_arguments={
            name: value[:, here] if value.shape[:2] == shape else value
            for name, value in example.forward_arguments.items()
        },
    )
