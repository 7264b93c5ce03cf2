"""Dtype consistency: an attribution in float32 is that in float64, to float32's round-off.

The bound is that of Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. 2002, §3.1.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import torch
from torch import nn

from faithcheck.axioms.engine.verdicts import Measurement, relative_gap
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case

UNIT_ROUNDOFF = torch.finfo(torch.float32).eps / 2


def precision(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution in float32 is from that in float64.

    Weights and inputs are first rounded to float32, so that both work on the same numbers and differ by arithmetic.

    ``values`` is the attribution in float32 minus that in float64, ``(batch, features)``; ``gap`` is its largest entry
    relative to the example's largest attribution, in [0, 2]. The tolerance is nu/(1 − nu), see `additions`, with
    u = 2⁻²⁴: it bounds the round-off of n additions where no large terms cancel. An attribution beyond it is the
    difference of numbers much larger than itself, and in float32 not to be trusted.

    Raises:
        Unsupported, InvalidAttribution: from the explainer.
    """
    single = deepcopy(model).to(torch.float32)
    there = cast(case, torch.float32)
    coarse = attribution_of(explainer, single, there).double()
    fine = attribution_of(explainer, deepcopy(single).to(torch.float64), cast(there, torch.float64)).double()
    values, scale = coarse - fine, torch.cat([coarse, fine], 1)
    roundoff = additions(model, case) * UNIT_ROUNDOFF
    return Measurement(relative_gap(values, scale), roundoff / (1 - roundoff), values, scale)


def additions(model: nn.Module, case: Case) -> int:
    """n, the additions on the longest chain of a forward and a backward pass, one weight matrix behind the other.

    A matrix adds as many terms as it has columns forward and rows backward; an example's own numbers are added once
    each way. A layer's few other operations are fewer than its terms and are counted as one more addition each way. An
    `nn.Embedding` is looked up and not multiplied by, so that its table does not count, unless another layer shares it.
    """
    layers = [layer for layer in model.modules() if not isinstance(layer, nn.Embedding)]
    weights = {weight for layer in layers for weight in layer.parameters(recurse=False) if weight.dim() >= 2}
    matrices = [weight.flatten(1).shape for weight in weights]
    return sum(rows + columns + 2 for rows, columns in matrices) + 2 * case.inputs[0].numel()


def cast(case: Case, dtype: torch.dtype) -> Case:
    """The case with its inputs, and what can take their place, in another floating-point type."""
    return replace(
        case,
        inputs=case.inputs.to(dtype),
        baseline=case.baseline.to(dtype),
        replacements={name: value.to(dtype) for name, value in case.replacements.items()},
        forward_arguments={
            name: x.to(dtype) if x.is_floating_point() else x for name, x in case.forward_arguments.items()
        },
    )
