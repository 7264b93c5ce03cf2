"""A forward pass whose inputs are pairs of a token and its position: positions carry relevance, too.

Bakish, Zimerman, Chefer & Wolf 2025, arXiv 2506.02138, make the input space of an explanation of such pairs. Where a
constant that is made of position embeddings meets a tensor with relevance, it becomes an operand with relevance. The
method's own rule of that operation then says what the position gets:

1. Added, z = x + p: p gets p ⊙ G, with G the gradient at z that the rules give, and x gets what it had.
2. Rotary, z = h ⊙ c with c = cos or sin of the angles of a position: the product rule halves, so that c and h get half
   of the relevance of z each, ½ z ⊙ G (Eqs. 3–4 of arXiv 2510.18810). Only half goes on to what h was computed from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from faithcheck.explainers.lrp.constant_names import POSITIONS, NamingConstants
from faithcheck.explainers.lrp.engine import LRP, SinglePassPropagation
from faithcheck.explainers.lrp.operation_call import tensors_with_relevance
from faithcheck.explainers.lrp.operations import operation_name
from faithcheck.explainers.lrp.recorded_operation import is_float, relevance
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.case import Case


class AddedPositions(NamingConstants, SinglePassPropagation):
    """A `Propagation` in which position embeddings carry relevance where they are added. Arguments as there.

    Attributes:
        joining: the names of constants that become operands with relevance, by the operation that joins them.
        positions: these operands, leaves of the shape of the result that they are joined to, ``(batch, …)``.
        varying: of each, the axes along which the constant varies; other axes repeat it.
    """

    joining: ClassVar[Mapping[str, re.Pattern[str]]] = dict.fromkeys(("add", "add_"), POSITIONS)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.positions: list[Tensor] = []
        self.varying: list[frozenset[int]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        names = self.joining.get(operation_name(func))
        if names is not None and self.module_operation is None and torch.is_grad_enabled():
            operands = [x for x in tensors_with_relevance((args, kwargs)) if not self._is_constant(x)]
            if len(operands) == 1:
                args, kwargs = tree_map(lambda value: self._joined(value, operands[0], names), (args, kwargs))
        return super().__torch_function__(func, types, args, kwargs)

    def _is_constant(self, x: Tensor) -> bool:
        return not x.requires_grad or (x.is_leaf and x is not self.point)

    def _joined(self, value: Any, operand: Tensor, names: re.Pattern[str]) -> Any:
        """An operand with relevance in place of a constant of these names; any other value as it is."""
        if not is_float(value) or not self._is_constant(value):
            return value
        if not any(names.search(name) for name in self.constant_names(value)):
            return value
        shape = torch.broadcast_shapes(value.shape, operand.shape)
        leaf = value.detach().expand(shape).clone().requires_grad_()
        first = len(shape) - value.dim()
        self.positions.append(leaf)
        self.varying.append(frozenset(first + axis for axis, size in enumerate(value.shape) if size > 1))
        alias = leaf.view_as(leaf)
        self.visible.add(alias.grad_fn)
        return alias

    def relevances(self, output: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The gradient at the inputs, shaped like them, and the relevance of each of `positions`, in float64."""
        point, *gradients = torch.autograd.grad(output.sum(), [self.point, *self.positions], allow_unused=True)
        assert point is not None
        return point, [relevance(p, g).expand(p.shape) for p, g in zip(self.positions, gradients, strict=True)]


def position_relevance(lrp: LRP, model: nn.Module, case: Case) -> Tensor:
    """What the position embeddings that a model adds keep of each example's relevance, ``(batch,)``.

    Raises:
        Unsupported: the model adds none; or see `LRP.attribute`.
    """
    pairs, output = lrp.propagate(model, case, AddedPositions)
    assert isinstance(pairs, AddedPositions)
    if not pairs.positions:
        raise Unsupported("the model adds no position embeddings")
    _, relevances = pairs.relevances(output)
    examples = len(case.inputs)
    if any(len(each) % examples for each in relevances):
        raise Unsupported("the model adds position embeddings to a tensor whose first axis is not the batch")
    return torch.stack([each.reshape(examples, -1).sum(1) for each in relevances]).sum(0)
