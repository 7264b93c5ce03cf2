"""Dtype consistency: the attribution in a type is that in float64, to the round-off of the type.

In float32 the bound is that of Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. 2002, §3.1. In coarse
types it is the round-off of the model. A number of bfloat16 has 8 bits, two to three decimal digits; one of float16 has
11 bits, three to four digits. With weights of 8 bits, the weights of each linear map are rounded to a grid of 256
numbers for each row, see `faithcheck.models.eight_bit_weights`; everything else is float32.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from faithcheck.axioms.fast.measured_once import measured_once
from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.coarse_types import (
    DEVIATIONS,
    copy_in,
    digits,
    refuse_weights,
    refusing_kernels,
    simulated,
    type_name,
)
from faithcheck.axioms.measure.measurement import Compared, Measurement, measured_difference
from faithcheck.axioms.measure.roundoff import additions
from faithcheck.axioms.measure.simulated_roundoff import numbers_of
from faithcheck.explainers.gradients import GradientTimesInput
from faithcheck.explainers.loo.leave_one_out import LeaveOneOut
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.explainers.refused_modules import offloaded, refuse_modules
from faithcheck.models.case import Case

UNIT_ROUNDOFF = torch.finfo(torch.float32).eps / 2


@axiom(
    "precision",
    "float32 gives the attribution of float64, to round-off",
    usual_cause="something is computed in float16 or bfloat16, or as the difference of two large numbers",
    tolerance="nu/(1 − nu) of n additions, u = 2⁻²⁴",
)
def precision(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution in float32 is from that in float64.

    Weights and inputs are first rounded to float32, so that both runs start from the same numbers.

    ``values`` is the attribution in float32 minus that in float64, ``(batch, features)``, see `measured_difference`.
    The tolerance is nu/(1 − nu), see `additions`, with u = 2⁻²⁴: it bounds the round-off of n additions if no large
    terms cancel. An attribution beyond it is the difference of numbers much larger than itself, and cannot be trusted
    in float32.

    Raises:
        Unsupported: accelerate offloads weights of the model.
    """
    refuse_modules(model, offloaded)
    single, rounded = deepcopy(model).to(torch.float32), case.to(torch.float32)
    coarse = attribution_of(explainer, single, rounded)
    fine = attribution_of(explainer, deepcopy(single).to(torch.float64), rounded.to(torch.float64))
    roundoff = additions(model, case) * UNIT_ROUNDOFF
    compared = Compared(coarse, fine, ("the map in float32", "the map in float64"))
    return measured_difference(compared, case, tol=roundoff / (1 - roundoff))


REFERENCES = LeaveOneOut(), GradientTimesInput()
"""Explainers that follow from the model's function alone: from its values, and from its derivative."""

of_coarse_type = partial(
    axiom,
    part_of="precision",
    subjects=("control.*",),
    tolerance="four times what simulated round-off moves Leave-One-Out and gradient × input by",
)


@of_coarse_type(
    "precision_bfloat16",
    "bfloat16 gives the attribution of float64, to the round-off of the model",
    usual_cause="the map is the difference of two large numbers, or ε is too small for bfloat16",
)
def precision_bfloat16(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution in bfloat16 is from that in float64, see `map_in`."""
    return map_in(torch.bfloat16, explainer, model, case)


@of_coarse_type(
    "precision_float16",
    "float16 gives the attribution of float64, to the round-off of the model",
    usual_cause="the map is the difference of two large numbers, or ε is too small for float16",
)
def precision_float16(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution in float16 is from that in float64, see `map_in`."""
    return map_in(torch.float16, explainer, model, case)


@of_coarse_type(
    "precision_int8",
    "weights of 8 bits give the attribution of float64, to the round-off of the model",
    usual_cause="the map reads single weights, or is the difference of two large numbers",
)
def precision_int8(explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far the attribution with weights of 8 bits is from that in float64, see `map_in`."""
    return map_in(torch.int8, explainer, model, case)


def map_in(dtype: torch.dtype, explainer: Explainer, model: nn.Module, case: Case) -> Measurement:
    """Measure how far an explainer's map in a coarse type is from its map in float64.

    No one bound holds for all models. The tolerance is `DEVIATIONS` times what simulated round-off does to the maps of
    `REFERENCES` on the same model and case: the values of the function and its derivative lose as much themselves. If
    the round-off of the explainer itself were simulated, the tolerance would forgive whatever the explainer loses.

    ``values`` is the map in the type minus that in float64, ``(batch, features)``, see `measured_difference`;
    ``detail`` has the number of decimal digits that are the same. Raises `UnmeasurableInType` as `measured_in` does,
    here if no digit of the references survives.
    """
    refuse_weights(dtype, [model])
    tol = max(tolerance_by(model, case, dtype, reference) for reference in REFERENCES)
    exact = attribution_of(explainer, model, case)
    with refusing_kernels(type_name(dtype)):
        coarse = attribution_of(explainer, copy_in(dtype, model), case.to(numbers_of(dtype)))
    compared = Compared(coarse, exact, (f"the map in {type_name(dtype)}", "the map in float64"))
    measured = measured_difference(compared, case, tol=tol)
    return replace(measured, detail={"digits": digits(measured.gap or 0.0)})


@measured_once
def tolerance_by(model: nn.Module, case: Case, dtype: torch.dtype, reference: Explainer) -> float:
    """The largest gap of the reference's map in a type that round-off explains."""

    def measure(models: Sequence[nn.Module], of: Case) -> Measurement:
        return Measurement(0.0, 0.0, attribution_of(reference, models[0], of).double())

    return DEVIATIONS[dtype] * simulated(dtype, measure, [model], case, measure([model], case))
