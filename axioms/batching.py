"""Batch and padding independence: an example's attribution is the same alone as in a batch, and 0 at padding.

The examples of a `Case` are independent. An attribution that depends on the other examples of its batch is wrong: a
common bug of batched runs (inseq issue 110).
"""

import torch
from torch import Tensor, nn

from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import (
    Compared,
    Measurement,
    measured_difference,
    nothing_to_measure,
    relative_gap,
)
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case, select_target


@axiom(
    "batching",
    "an example gets the same attribution alone as in a batch",
    usual_cause=(
        "the map mixes the examples of a batch (a mean, a maximum or a norm over the wrong axis), or it reads padding"
    ),
)
def batching(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far attributions in the batch are from those of each example alone, without its padding.

    ``values`` is the attribution in the batch minus that alone, which is 0 at padding, ``(batch, features)``; ``gap``
    is None for a single example without padding. ``detail`` has the same gap of the target outputs: if it exceeds
    round-off, the model itself reads padding (for example padding on the left, without ``position_ids`` in the forward
    arguments that skip it).
    """
    in_batch = attribution_of(explainer, model, case).double()
    alone, outputs = torch.zeros_like(in_batch), outputs_of(model, case)
    outputs_alone = outputs.clone()
    for i in case.unpadded.any(1).nonzero():
        example = without_padding(case.select(i))
        alone[i, case.unpadded[i].squeeze(0)] = attribution_of(explainer, model, example).double()
        outputs_alone[i] = outputs_of(model, example)
    padding = int((~case.unpadded).sum())
    if len(alone) == 1 and not padding:
        return nothing_to_measure(case, "one example, no padding: nothing to compare")
    outputs_gap = relative_gap(outputs - outputs_alone, outputs, outputs_alone)
    compared = Compared(in_batch, alone, ("the map in the batch", "the map alone"), places={"padding": ~case.unpadded})
    detail = {"padding features": padding, "gap, outputs": outputs_gap}
    return measured_difference(compared, case, model, detail=detail)


@torch.no_grad()
def outputs_of(model: nn.Module, case: Case) -> Tensor:
    """The target output of each example, ``(batch,)``."""
    return select_target(case.run(model), case.target).double()


def without_padding(example: Case) -> Case:
    """One example without its padding; forward arguments with one column per feature lose the same columns."""
    keep = example.unpadded[0]
    return example.with_features(lambda value: value[:, keep])
