"""Checks in a coarse type: their tolerance is derived from what the round-off of the type does to each measurement.

An axiom is measured in the type and in float64, and several times in float64 with simulated round-off: each result of
an operation, each weight and each input is rounded at random to a number of the type (`simulated_roundoff`). What these
draws move is round-off. The tolerance is `DEVIATIONS` times as much, so that a model whose numbers cancel has a
tolerance of its own.

A draw errs by up to one unit in the last place and a processor by half a unit, so that the variance of a draw is twice
that of a processor. The same holds on the grid of weights of 8 bits. In float32, kernels also add in float32, which the
draws do not show: there the tolerance is twice as large. In float32 and with weights of 8 bits it is at least what n
`additions` lose.
"""

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from faithcheck.axioms.measure.axiom import UnmeasurableInType
from faithcheck.axioms.measure.measurement import Measurement, relative_gap
from faithcheck.axioms.measure.roundoff import additions, tolerance_is
from faithcheck.axioms.measure.settling import settle
from faithcheck.axioms.measure.simulated_roundoff import (
    SimulatedRoundoff,
    draws_of,
    numbers_of,
    rounded_case,
    rounded_model,
)
from faithcheck.axioms.measure.statuses import Status
from faithcheck.explainers.protocol import InvalidAttribution, Unsupported
from faithcheck.explainers.refused_modules import offloaded, refuse_modules
from faithcheck.models.case import Case
from faithcheck.models.eight_bit_weights import linear_maps, quantised
from faithcheck.models.expectation import Expectation

Measure = Callable[[Sequence[nn.Module], Case], Measurement]
"""Measures an axiom on models and a case of one type."""

DEVIATIONS = {torch.float32: 8, torch.bfloat16: 4, torch.float16: 4, torch.int8: 4}
"""The largest gap that is still round-off, in multiples of the largest simulated round-off, by type."""
DRAWS, NUMBERS = 3, 24
"""The least number of draws, and of numbers in all draws: a measurement of one number needs many draws."""

NO_KERNEL = "not implemented for|not supported for|unsupported dtype|unsupported scalar type|expected scalar type"
"""Torch's error messages where it has no kernel of a type."""
MIXED_TYPES = "must have the same dtype|should be the same|expected .* to have (the )?same dtype|Expected both dtypes"
"""Torch's error messages where a kernel gets operands of several types."""


@dataclass(frozen=True)
class InType:
    """An axiom measured in a coarse type."""

    dtype: torch.dtype
    exact: Measurement  # in float64
    in_type: Measurement
    roundoff: float  # by how much draws moved it, relative to its scale: the most, but at least the unit round-off

    @property
    def tol(self) -> float:
        """The largest gap that round-off explains."""
        return DEVIATIONS[self.dtype] * self.roundoff


def measured_in(dtype: torch.dtype, measure: Measure, models: Sequence[nn.Module], case: Case) -> InType:
    """Measure an axiom in float64, under simulated round-off, and in the type, a key of `DEVIATIONS`.

    ``models``, which are copied, and ``case`` are in float64. Raises `UnmeasurableInType` where torch has no kernel of
    the type for an operation or no digit of the measurement survives, and as `refuse_weights` does.
    """
    refuse_weights(dtype, models)
    exact = measure(models, case)
    if exact.gap is None:
        return InType(dtype, exact, exact, 0.0)
    result = InType(dtype, exact, exact, simulated(dtype, measure, models, case, exact))
    numbers = numbers_of(dtype)
    with refusing_kernels(type_name(dtype)), tolerance_is(result.tol, numbers):
        return replace(result, in_type=measure([copy_in(dtype, model) for model in models], case.to(numbers)))


def simulated(
    dtype: torch.dtype, measure: Measure, models: Sequence[nn.Module], case: Case, exact: Measurement
) -> float:
    """By how much simulated round-off moves a measurement; raises `UnmeasurableInType` if no digit of it survives."""
    name, numbers = type_name(dtype), numbers_of(dtype)

    def moved(draw: int) -> Tensor:
        with tolerance_is(math.inf, numbers), SimulatedRoundoff(numbers, draw):
            values = measure([rounded_model(m, dtype, draw) for m in models], rounded_case(case, numbers, draw)).values
        if values.shape != exact.values.shape:
            raise UnmeasurableInType(f"under the round-off of {name} the axiom measures another number of values")
        return values - exact.values

    try:
        moves = draws_of(moved, DRAWS, NUMBERS)
    except InvalidAttribution as error:
        raise UnmeasurableInType(f"in {name} numbers of the model overflow: {error}") from error
    scale = exact.values if exact.scale is None else exact.scale
    unit = torch.full_like(exact.values, exact.unit)
    roundoff = max(
        least_roundoff(dtype, models, case), *(relative_gap(move, exact.values, scale, unit) for move in moves)
    )
    if not DEVIATIONS[dtype] * roundoff < 1:
        raise UnmeasurableInType(
            f"no digit survives in {name}: round-off alone moves the measurement by {roundoff:.2g}"
        )
    return roundoff


def least_roundoff(dtype: torch.dtype, models: Sequence[nn.Module], case: Case) -> float:
    """The least relative round-off of a map in a type, which the draws may miss.

    A map is rounded to the type at least once. Kernels add in float32: where that is the type of the numbers, n
    `additions` with random signs lose √n times as much, of which `DEVIATIONS` of float32 allows a multiple.
    """
    numbers = numbers_of(dtype)
    rounding = torch.finfo(numbers).eps / 2
    if numbers != torch.float32:
        return rounding
    n = max(additions(model, case) for model in models)
    return DEVIATIONS[numbers] / DEVIATIONS[dtype] * math.sqrt(n) * rounding


def copy_in(dtype: torch.dtype, model: nn.Module) -> nn.Module:
    """A copy of a model in the type, in int8 with the weights of its linear maps on a grid."""
    return quantised(model) if dtype == torch.int8 else deepcopy(model).to(dtype)


def refuse_weights(dtype: torch.dtype, models: Sequence[nn.Module]) -> None:
    """Raise `UnmeasurableInType` if accelerate offloads weights, or in int8 there are none to quantise."""
    try:
        for model in models:
            refuse_modules(model, offloaded)
    except Unsupported as refusal:
        raise UnmeasurableInType(str(refusal)) from None
    if dtype == torch.int8 and not any(map(linear_maps, models)):
        raise UnmeasurableInType("there is nothing to quantise to 8 bits: no nn.Linear holds weights of its own")


def type_name(dtype: torch.dtype) -> str:
    """The name of a type, as ``--dtype`` takes it."""
    return str(dtype).removeprefix("torch.")


@contextmanager
def refusing_kernels(name: str) -> Iterator[None]:
    """Within the block, torch's error that a kernel is missing in a type is a refusal that names the type."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "ComplexHalf support is experimental")  # its round-off is measured
            yield
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        if not re.search(f"{NO_KERNEL}|{MIXED_TYPES}", str(error)):
            raise
        first = str(error).splitlines()[0]
        raise UnmeasurableInType(f"it does not run in {name}: {first}") from error


def settle_in(
    measured: InType, expectation: Expectation, predicted: Tensor | None
) -> tuple[Measurement, Status, float | None]:
    """The measurement in the type with its derived tolerance, and how it settles against what theory expects.

    Raises `UnmeasurableInType` where the violation that theory expects is no larger than the round-off of the type.
    """
    in_type = replace(measured.in_type, tol=measured.tol)
    in_type = replace(in_type, detail={**in_type.detail, "digits": digits(measured.roundoff)})
    exact = measured.exact.gap or 0.0
    if expectation.verdict == "HOLDS" and in_type.gap is not None and exact > max(in_type.gap, measured.tol):
        # Numbers that overflow in the type may hide a violation that float64 shows and that is no round-off.
        in_type = replace(in_type, gap=exact, detail={**in_type.detail, "gap in the type": in_type.gap})
    if expectation.verdict == "VIOLATES" and measured.exact.gap is not None and measured.exact.gap <= 2 * measured.tol:
        raise UnmeasurableInType(
            f"round-off hides the violation: it is {measured.exact.gap:.2g} in float64, and round-off explains "
            f"{measured.tol:.2g}"
        )
    status, error = settle(in_type, expectation, predicted)
    return in_type, status, error


def digits(roundoff: float) -> float | None:
    """How many decimal digits survive round-off of this relative size; None where it moves nothing."""
    return max(0.0, -math.log10(roundoff)) if roundoff > 0 else None
