"""What an explainer is given besides the model: inputs, a baseline and the output to explain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """A batch of independent examples.

    Axis 0 counts examples and axis 1 counts features; any further axes (a token's embedding, say) belong to that
    feature. So a model maps ``(batch, features, …)`` to ``(batch, outputs)``, and an attribution is always
    ``(batch, features)``.

    Attributes:
        inputs: floating-point tensor ``(batch, features, …)``.
        target: ``(batch,)`` int64, the output explained in each example.
        baseline: shaped like ``inputs``: the value that a removed feature takes.
        special: optional ``(batch, features)`` bool, true at special positions such as [CLS] and [SEP].
        context: what else the model is called with, by keyword; tensors with a row per example. Where it has an
            ``attention_mask`` ``(batch, features)``, features with a 0 there are padding.
        references: named values that a removed feature can take ("zero", "[MASK]", …), each shaped like one feature.

    Raises:
        ValueError: the shapes, dtypes or devices do not fit together.
    """

    inputs: Tensor
    target: Tensor
    baseline: Tensor
    special: Tensor | None = None
    context: Mapping[str, Tensor] = field(default_factory=dict)
    references: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.inputs.dim() < 2 or not self.inputs.is_floating_point():
            raise ValueError(f"inputs must be floating point (batch, features, …), got {describe(self.inputs)}")
        if self.baseline.shape != self.inputs.shape:
            raise ValueError(f"baseline must be shaped like inputs, got {describe(self.baseline)}")
        if self.target.shape != self.inputs.shape[:1] or self.target.dtype != torch.int64:
            raise ValueError(f"target must be int64 (batch,), got {describe(self.target)}")
        if self.special is not None and (self.special.shape != self.shape or self.special.dtype != torch.bool):
            raise ValueError(f"special must be bool (batch, features), got {describe(self.special)}")
        for name, value in self.context.items():
            if len(value) != len(self.inputs):
                raise ValueError(f"context[{name!r}] must have a row per example, got {describe(value)}")
        for name, value in self.references.items():
            if value.shape != self.inputs.shape[2:]:
                raise ValueError(f"references[{name!r}] must be shaped like one feature, got {describe(value)}")
        others = [self.target, self.baseline, *self.context.values(), *self.references.values()]
        others += [] if self.special is None else [self.special]
        if any(t.device != self.inputs.device for t in others):
            raise ValueError(f"all tensors of a case must lie on one device, inputs are on {self.inputs.device}")

    @property
    def shape(self) -> torch.Size:
        """The shape of an attribution: ``(batch, features)``."""
        return self.inputs.shape[:2]

    @property
    def present(self) -> Tensor:
        """Which features are there: ``(batch, features)`` bool, false at padding."""
        mask = self.context.get("attention_mask")
        return torch.ones(self.shape, dtype=torch.bool, device=self.inputs.device) if mask is None else mask != 0

    @property
    def ordinary(self) -> Tensor:
        """Which features are there and not special: ``(batch, features)`` bool."""
        return self.present if self.special is None else self.present & ~self.special

    def run(self, model: nn.Module) -> Tensor:
        """What the model makes of the inputs in their context: ``(batch, outputs)``."""
        output: Tensor = model(self.inputs, **self.context)
        return output

    def rows(self, index: Tensor) -> Case:
        """A copy of the case with these examples, in this order; an example may come more than once."""
        return self._of(lambda tensor: tensor.index_select(0, index))

    def repeated(self, times: int) -> Case:
        """The case with its one example so often, in memory that the rows share: to be read, not written to."""
        return self._of(lambda tensor: tensor.expand(times, *tensor.shape[1:]))

    def _of(self, rows: Callable[[Tensor], Tensor]) -> Case:
        return replace(
            self,
            inputs=rows(self.inputs),
            target=rows(self.target),
            baseline=rows(self.baseline),
            special=None if self.special is None else rows(self.special),
            context={name: rows(value) for name, value in self.context.items()},
        )


def explained(output: Tensor, target: Tensor) -> Tensor:
    """The explained entry of each row: ``(batch, outputs)`` and ``(batch,)`` to ``(batch,)``."""
    return output.gather(1, target.unsqueeze(1)).squeeze(1)


def input_gradient(model: nn.Module, case: Case) -> Tensor:
    """The gradient of each example's explained output at its inputs, shaped like ``inputs``; touches no ``.grad``."""
    with torch.enable_grad():
        point = case.inputs.detach().clone().requires_grad_()
        output = replace(case, inputs=point).run(model)
        return torch.autograd.grad(explained(output, case.target).sum(), point)[0]


@torch.no_grad()
def change(model: nn.Module, case: Case) -> Tensor:
    """f(x) − f(x′), what the features add to each example's explained output over the baseline: ``(batch,)``."""
    without = replace(case, inputs=case.baseline)
    return explained(case.run(model), case.target) - explained(without.run(model), case.target)


def describe(tensor: Tensor) -> str:
    """A tensor's dtype, shape and device, for error messages."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} on {tensor.device}"
