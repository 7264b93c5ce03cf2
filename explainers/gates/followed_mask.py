"""The attention mask where a model multiplies by it: real numbers, the gates, in place of its ones."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from faithcheck.explainers.lrp.operations import operation_name

Form: TypeAlias = tuple[Tensor, Tensor]
"""A tensor that is a form of the mask, and the same with the gates in place of the ones."""

CASTS = frozenset("to bool float double half bfloat16 int long type type_as".split())
"""Operations that give the mask another type: its real counterpart stays as it is."""
REAL = frozenset(
    "getitem contiguous unsqueeze squeeze expand view reshape transpose clone sum cumsum clamp sub rsub".split()
)
"""Operations that its real counterpart goes through as well."""
ONE = {"eq": 1, "ne": 0, "gt": 0}
"""Comparisons with a number that are true at the ones of the mask."""
PRODUCTS = frozenset("mul mul_ div div_".split())


class FollowedMask:
    """Follows the attention mask through a forward pass, and puts the gates in its place where data are multiplied.

    A state-space model, for one, multiplies its hidden states by the mask, and a mean over tokens divides by its sum.
    Many models leave this out if the mask has no 0: by `compute`, they are told that it has one. A mask that is
    multiplied by a number is about to be added to logits, and is followed no further.

    ``mask`` is the tensor ``(batch, features)`` that the model is called with. ``is_used`` says whether it met data, or
    itself, in an operation: then it does more than mask keys of attention.
    """

    def __init__(self, mask: Tensor, gates: Tensor) -> None:
        self.is_used = False
        # By id; the tensors are held, so that an id stays that of its tensor.
        self._forms: dict[int, Form] = {id(mask): (mask, mask * gates)}

    def is_among(self, operands: tuple[Any, ...]) -> bool:
        """Whether one of the first two operands is the mask in some form."""
        forms = self._forms
        return bool(operands) and (id(operands[0]) in forms or (len(operands) > 1 and id(operands[1]) in forms))

    def compute(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of an operation that has the mask among its first two operands."""
        forms = [self._forms.get(id(operand)) for operand in args[:2]]
        name = operation_name(func)
        meets_data = name not in CASTS and any(map(is_data, args[:2], forms))  # mask.to(data) reads a type alone
        self.is_used |= meets_data or (len(forms) == 2 and all(forms))
        if meets_data and name in PRODUCTS:
            dtype = torch.result_type(*args[:2])
            return func(*(x if form is None else form[1].to(dtype) for x, form in zip(args, forms, strict=True)))
        result = func(*args, **kwargs)
        if name == "all":
            return torch.zeros_like(result)
        counterpart = self._counterpart(name, func, args, kwargs, forms)
        if counterpart is not None:
            self._forms[id(result)] = result, counterpart
        return result

    def _counterpart(
        self, name: str, func: Callable[..., Any], args: Any, kwargs: Any, forms: list[Form | None]
    ) -> Tensor | None:
        """The real counterpart of an operation's result; None if the result is no form of the mask."""
        if forms[0] is None:
            return None
        if name in CASTS or (name in ONE and type(args[1]) in (int, float) and args[1] == ONE[name]):
            return forms[0][1]
        both = len(forms) == 2 and forms[1] is not None
        if name in REAL or (name == "mul" and both):
            of_mask = [value if form is None else form[1] for value, form in zip(args[:2], forms, strict=True)]
            result: Tensor = func(*of_mask, *args[2:], **kwargs)
            return result
        return None


def is_data(operand: Any, form: Form | None) -> bool:
    """Whether an operand is no form of the mask, but a tensor of real numbers, and not a single number."""
    return form is None and isinstance(operand, Tensor) and operand.is_floating_point() and operand.dim() > 1
