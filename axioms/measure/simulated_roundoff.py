"""The round-off of a coarse type, simulated in float64: each result of an operation is rounded to a number of the type.

A result is rounded up or down at random, up as often as it lies near the upper neighbour, so that the errors have mean
0 and many draws show what round-off can do (stochastic rounding: Croci et al. 2022, doi 10.1098/rsos.211631; as a way
to measure round-off: Parker 1997, Monte Carlo Arithmetic). Which way is a function of the number and the draw alone:
two models that compute the same numbers round them alike, as they do on a processor.

A kernel of a coarse type adds in float32 and rounds its result once. So does this: in float64, then once.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from faithcheck.models.case import Case
from faithcheck.models.eight_bit_weights import put_on_grid

Numbers: TypeAlias = NDArray[np.float64]
Bits: TypeAlias = NDArray[np.uint64]

INCREMENT, FACTORS = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Of SplitMix64 (Steele et al. 2014, doi 10.1145/2660193.2660195)."""

IN_CACHE = 2**15
"""So many numbers are rounded at once that all steps find them in the cache of the processor."""


class SimulatedRoundoff(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
    """Within the block, a float64 result is rounded to a number of a coarser type; every ``draw`` rounds otherwise."""

    def __init__(self, dtype: torch.dtype, draw: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtype, self.draw = dtype, draw

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation, and round what it computed in place; a view of an operand is rounded already."""
        results = func(*args, **(kwargs or {}))
        if not returns_a_view(func):
            for result in tree_leaves(results):
                if isinstance(result, Tensor) and result.dtype == torch.float64 and result.layout == torch.strided:
                    result.copy_(rounded(result, self.dtype, self.draw))
        return results


@cache
def returns_a_view(operation: Any) -> bool:
    """Whether an operation returns numbers of its operand as they are; of that in a matrix product torch says no."""
    returned: Sequence[Any] = operation._schema.returns
    is_view = any(one.alias_info and not one.alias_info.is_write for one in returned)
    return is_view or operation is torch.ops.aten._unsafe_view.default


def rounded(numbers: Tensor, dtype: torch.dtype, draw: int) -> Tensor:
    """Each float64 number as one of its two neighbours in the type, or as itself; infinite beyond the largest."""
    result = numbers.detach().resolve_neg().cpu().numpy().flatten()  # a copy
    for start in range(0, len(result), IN_CACHE):
        _round(result[start : start + IN_CACHE], dtype, draw)
    return torch.from_numpy(result).view(numbers.shape).to(numbers.device)


def _round(numbers: Numbers, dtype: torch.dtype, draw: int) -> None:
    """Round numbers in place, ``(n,)`` float64: add random bits, and drop the bits that the type does not have."""
    limits = torch.finfo(dtype)
    dropped = 52 + round(math.log2(limits.eps))  # of the 52 bits of float64
    random = (random_bits(numbers, draw) >> (64 - dropped)).view(np.int64)
    is_nan = np.isnan(numbers)
    # Below the least normal number all distances are equal, and the same as up to twice this number: move there.
    moved = np.copysign((np.abs(numbers) < limits.tiny) * limits.tiny, numbers)
    numbers += moved
    bits = numbers.view(np.int64)
    # Where a number goes up, towards +∞, the sum of a positive number carries, and that of a negative number does not.
    random ^= ~(bits >> 63)
    bits += random & (2**dropped - 1)
    bits &= -(2**dropped)
    numbers -= moved
    numbers[np.abs(numbers) > limits.max] *= np.inf
    numbers[is_nan] = np.nan


def uniform(numbers: Tensor, draw: int) -> Tensor:
    """A number of [0, 1) for each float64 number, see `random_bits`."""
    bits = random_bits(numbers.detach().cpu().numpy().flatten(), draw)
    return torch.from_numpy((bits >> 11) * 2.0**-53).view(numbers.shape).to(numbers.device)


def random_bits(numbers: Numbers, draw: int) -> Bits:
    """64 random bits for each float64 number, a function of its bits without the sign, and of the draw.

    Without the exponent too: a number and twice the number round alike, as on a processor.
    """
    bits: Bits = numbers.view(np.uint64) & np.uint64(2**52 - 1)
    bits += (draw + 1) * INCREMENT % 2**64
    for shift, factor in zip((30, 27), FACTORS, strict=True):
        bits ^= bits >> shift
        bits *= factor
    bits ^= bits >> 31
    return bits


def numbers_of(dtype: torch.dtype) -> torch.dtype:
    """The floating-point type that a model in this type computes in: with weights of 8 bits, that is float32."""
    return torch.float32 if dtype == torch.int8 else dtype


def rounded_model(model: nn.Module, dtype: torch.dtype, draw: int) -> nn.Module:
    """A copy of a float64 model whose weights and buffers are numbers of the type.

    In int8 a weight of a linear map is one of its two neighbours on the grid of its row, at random like all the others.
    """
    copied = deepcopy(model)
    if dtype == torch.int8:
        put_on_grid(copied, lambda weights: whole(weights, draw))
    with torch.no_grad():
        for tensor in [*copied.parameters(), *copied.buffers()]:
            if tensor.dtype == torch.float64:
                tensor.copy_(rounded(tensor, numbers_of(dtype), draw))
    return copied


def whole(numbers: Tensor, draw: int) -> Tensor:
    """Each number as one of its two neighbours among the whole numbers, in float64; −x as minus that of x."""
    numbers = numbers.double()
    sizes = numbers.abs()
    below = sizes.floor()
    return (below + (uniform(numbers, draw) < sizes - below)).copysign(numbers)


def rounded_case(case: Case, dtype: torch.dtype, draw: int) -> Case:
    """A float64 case whose numbers are numbers of the type."""

    def round_one(numbers: Tensor) -> Tensor:
        return rounded(numbers, dtype, draw) if numbers.dtype == torch.float64 else numbers

    return case.with_numbers(round_one)


def draws_of(measure: Callable[[int], Tensor], least: int, numbers: int) -> list[Tensor]:
    """What is measured in each draw: at least so many draws, and so many numbers in all."""
    results = [measure(draw) for draw in range(least)]
    while sum(result.numel() for result in results) < numbers and results[0].numel():
        results.append(measure(len(results)))
    return results
