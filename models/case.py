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
    special_tokens_mask: Tensor | None = None
    forward_arguments: Mapping[str, Tensor] = field(default_factory=dict)
    replacements: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.inputs.dim() < 2 or not self.inputs.is_floating_point():
            raise ValueError(f"inputs must be floating point (batch, features, …), got {describe_tensor(self.inputs)}")
        if self.baseline.shape != self.inputs.shape:
            raise ValueError(f"baseline must be shaped like inputs, got {describe_tensor(self.baseline)}")
        if self.target.shape != self.inputs.shape[:1] or self.target.dtype != torch.int64:
            raise ValueError(f"target must be int64 (batch,), got {describe_tensor(self.target)}")
        if self.special_tokens_mask is not None and (
            self.special_tokens_mask.shape != self.shape or self.special_tokens_mask.dtype != torch.bool
        ):
            raise ValueError(
                f"special_tokens_mask must be bool (batch, features), got {describe_tensor(self.special_tokens_mask)}"
            )
        for name, value in self.forward_arguments.items():
            if len(value) != len(self.inputs):
                raise ValueError(
                    f"forward_arguments[{name!r}] must have a row per example, got {describe_tensor(value)}"
                )
        for name, value in self.replacements.items():
            if value.shape != self.inputs.shape[2:]:
                raise ValueError(
                    f"replacements[{name!r}] must be shaped like one feature, got {describe_tensor(value)}"
                )
        others = [self.target, self.baseline, *self.forward_arguments.values(), *self.replacements.values()]
        others += [] if self.special_tokens_mask is None else [self.special_tokens_mask]
        if any(t.device != self.inputs.device for t in others):
            raise ValueError(f"all tensors of a case must lie on one device, inputs are on {self.inputs.device}")

    @property
    def shape(self) -> torch.Size:
        """The shape of an attribution: ``(batch, features)``."""
        return self.inputs.shape[:2]

    @property
    def unpadded(self) -> Tensor:
        """Which features are there: ``(batch, features)`` bool, false at padding."""
        mask = self.forward_arguments.get("attention_mask")
        return torch.ones(self.shape, dtype=torch.bool, device=self.inputs.device) if mask is None else mask != 0

    @property
    def non_special(self) -> Tensor:
        """Which features are there and not special: ``(batch, features)`` bool."""
        return self.unpadded if self.special_tokens_mask is None else self.unpadded & ~self.special_tokens_mask

    def run(self, model: nn.Module) -> Tensor:
        """What the model makes of the inputs in their context: ``(batch, outputs)``."""
        output: Tensor = model(self.inputs, **self.forward_arguments)
        return output

    def select(self, index: Tensor) -> Case:
        """A copy of the case with these examples, in this order; an example may come more than once."""
        return self._of(lambda tensor: tensor.index_select(0, index))

    def repeat(self, times: int) -> Case:
        """The case with its one example so often, in memory that the rows share: to be read, not written to."""
        return self._of(lambda tensor: tensor.expand(times, *tensor.shape[1:]))

    def _of(self, rows: Callable[[Tensor], Tensor]) -> Case:
        return replace(
            self,
            inputs=rows(self.inputs),
            target=rows(self.target),
            baseline=rows(self.baseline),
            special_tokens_mask=None if self.special_tokens_mask is None else rows(self.special_tokens_mask),
            forward_arguments={name: rows(value) for name, value in self.forward_arguments.items()},
        )


def select_target(output: Tensor, target: Tensor) -> Tensor:
    """The explained entry of each row: ``(batch, outputs)`` and ``(batch,)`` to ``(batch,)``."""
    return output.gather(1, target.unsqueeze(1)).squeeze(1)


def input_gradient(model: nn.Module, case: Case) -> Tensor:
    """The gradient of each example's explained output at its inputs, shaped like ``inputs``; touches no ``.grad``."""
    with torch.enable_grad():
        point = case.inputs.detach().clone().requires_grad_()
        output = replace(case, inputs=point).run(model)
        return torch.autograd.grad(select_target(output, case.target).sum(), point)[0]


@torch.no_grad()
def output_difference(model: nn.Module, case: Case) -> Tensor:
    """f(x) − f(x′), what the features add to each example's explained output over the baseline: ``(batch,)``."""
    without = replace(case, inputs=case.baseline)
    return select_target(case.run(model), case.target) - select_target(without.run(model), case.target)


def describe_tensor(tensor: Tensor) -> str:
    """A tensor's dtype, shape and device, for error messages."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} on {tensor.device}"
