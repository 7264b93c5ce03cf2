"""Models that run one operation for each output, by itself or by other operations: what LRP's rules are measured on.

Output k is y_k = w_k · φ_k(u), with u the inputs and φ_k one operation of torch. Example k explains output k, so a rule
that is wrong moves the map of one model, and not that of the model with the same values by other operations. All
numbers are multiples of 1/64, so that sums, selections and casts to float32 are exact.
"""

from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from faithcheck.models.case import Case
from faithcheck.models.expectation import Expectations, with_invariance
from faithcheck.models.pair import Pair, register, seeded

FEATURES = 8
Operation: TypeAlias = Callable[[Tensor], Tensor]
"""A function of ``(batch, 8)`` to ``(batch, …)`` that treats each example alike; a module, if it has weights."""


@dataclass(frozen=True)
class Written:
    """One operation, and the same values by others; if there is no reference, by the matrix of an affine operation."""

    operation: Operation
    reference: Operation | None = None


class AffineMap(nn.Module):
    """An operation that is affine in its inputs, as one linear map: ``(batch, 8)`` to ``(batch, outputs)``."""

    weight: Tensor
    bias: Tensor

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        eye = torch.eye(FEATURES, dtype=torch.float64)
        at_zero = operation(torch.zeros_like(eye)).reshape(FEATURES, -1)
        self.register_buffer("weight", (operation(eye).reshape(FEATURES, -1) - at_zero).t().contiguous())
        self.register_buffer("bias", at_zero[0].clone() if at_zero.any() else None)

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs, self.weight, self.bias)


class OperationByOperation(nn.Module):
    """``(batch, 8)`` to ``(batch, operations)``: output k is w_k · φ_k(u), and ``prepare`` makes u of the inputs."""

    def __init__(self, functions: list[Operation], prepare: Operation) -> None:
        super().__init__()
        self.functions, self.prepare = functions, prepare
        self.modules_among_functions = nn.ModuleList(f for f in functions if isinstance(f, nn.Module))
        with torch.no_grad():
            values = [function(prepare(torch.ones(1, FEATURES, dtype=torch.float64))) for function in functions]
        self.readouts = nn.ParameterList(multiples_of_a_64th(1, value.numel()) for value in values)

    def forward(self, inputs: Tensor) -> Tensor:
        u = self.prepare(inputs)
        outputs = [
            functional.linear(function(u).reshape(len(u), -1), readout)
            for function, readout in zip(self.functions, self.readouts, strict=True)
        ]
        return torch.cat(outputs, 1)


def multiples_of_a_64th(*shape: int) -> Tensor:
    """Random multiples of 1/64 in ±[½, 1½], float64."""
    sign = torch.randint(0, 2, shape).double() * 2 - 1
    return sign * torch.randint(32, 97, shape).double() / 64


def as_it_is(inputs: Tensor) -> Tensor:
    return inputs


def operation_pair(
    name: str,
    operations: Mapping[str, Written],
    why: str,
    *expected: Expectations,
    prepare: Operation = as_it_is,
    axioms: Collection[str] = ("invariance",),
) -> None:
    """Register the pair ``operation.name``: these operations, and the same values by other operations.

    Operations have the names that tables of rules use; ``prepare`` makes their operand of the inputs. ``expected`` is
    what is expected besides `INVARIANT_BY_DEFINITION`.
    """
    build, case = partial(both_models, list(operations.values()), prepare), partial(one_example_each, len(operations))
    expectations = with_invariance(*expected)
    pair = register(Pair(f"operation.{name}", build, case, why, expected=expectations, axioms=frozenset(axioms)))
    for operation in operations:
        PAIRS_OF_OPERATIONS.setdefault(operation, []).append(pair)


PAIRS_OF_OPERATIONS: dict[str, list[Pair]] = {}
"""The pairs of each operation, by the name that tables of rules use."""


def both_models(
    written: list[Written], prepare: Operation, seed: int, dtype: torch.dtype, device: torch.device
) -> tuple[nn.Module, nn.Module]:
    """The model of the operations and the model of their references, with the same weights."""
    with seeded(seed):
        operations: list[Operation] = [deepcopy(row.operation) for row in written]
        references = [AffineMap(row.operation) if row.reference is None else deepcopy(row.reference) for row in written]
        f, g = (OperationByOperation(functions, prepare) for functions in (operations, references))
    g.readouts.load_state_dict(f.readouts.state_dict())
    return f.to(device, dtype).eval(), g.to(device, dtype).eval()


def one_example_each(operations: int, seed: int, dtype: torch.dtype, device: torch.device) -> Case:
    with seeded(seed):
        inputs = multiples_of_a_64th(operations, FEATURES).to(device, dtype)
    return Case(inputs, torch.arange(operations, device=device), torch.zeros_like(inputs))
