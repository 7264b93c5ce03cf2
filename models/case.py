"""A case: the inputs, the baseline and the target that an explainer gets besides the model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from faithcheck.models.offloaded_weights import offload_again


class InvalidOutput(ValueError):
    """The model returned something else than outputs ``(batch, outputs)``. The message says what, and what to do."""


NO_ANSWER = -1
"""What the forward argument ``answer`` has at a token of the prompt and at padding, see `faithcheck.models.targets`."""


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
        special_tokens_mask: optional ``(batch, features)`` bool, true at special tokens such as [CLS] and [SEP].
        forward_arguments: further keyword arguments of the model, tensors with a row per example. If they include an
            ``attention_mask`` ``(batch, features)``, it is 1 at features and 0 at padding.
        replacements: baselines of one feature by name ("zero", "mask", …), each shaped like one feature.
        feature_names: the names of each example's features in a report, such as the tokens of a text; a case of other
            examples, see `select`, has none.
        image_shape: rows and columns, where the features are the pixels or patches of an image.
        segments: the parts of a text by level ("word", "sentence", …): ``(batch, features)`` int64, the number of the
            part that each feature belongs to; see `faithcheck.models.pretrained.segments`.

    Raises:
        ValueError: the shapes, dtypes or devices do not fit together.
    """

    inputs: Tensor
    target: Tensor
    baseline: Tensor
    special_tokens_mask: Tensor | None = None
    forward_arguments: Mapping[str, Tensor] = field(default_factory=dict)
    replacements: Mapping[str, Tensor] = field(default_factory=dict)
    feature_names: Sequence[Sequence[str]] = ()
    image_shape: tuple[int, ...] = ()
    segments: Mapping[str, Tensor] = field(default_factory=dict)

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
            if not isinstance(value, Tensor) or value.dim() == 0 or len(value) != len(self.inputs):
                got = describe_tensor(value) if isinstance(value, Tensor) else repr(value)
                raise ValueError(
                    f"forward_arguments[{name!r}] must be a tensor with a row per example, got {got}: wrap the model "
                    "in a module that passes on what is the same for all examples"
                )
        if (mask := self.forward_arguments.get("attention_mask")) is not None:
            self._require_mask(mask)
        for name, value in self.replacements.items():
            if value.shape != self.inputs.shape[2:]:
                raise ValueError(
                    f"replacements[{name!r}] must be shaped like one feature, got {describe_tensor(value)}"
                )
        for name, value in self.segments.items():
            if value.shape != self.shape or value.dtype != torch.int64:
                raise ValueError(f"segments[{name!r}] must be int64 (batch, features), got {describe_tensor(value)}")
        tensors = [self.target, self.baseline, *self.forward_arguments.values(), *self.replacements.values()]
        tensors += self.segments.values()
        tensors += [] if self.special_tokens_mask is None else [self.special_tokens_mask]
        if any(t.device != self.inputs.device for t in tensors):
            raise ValueError(f"all tensors of a case must lie on one device, inputs are on {self.inputs.device}")

    def _require_mask(self, mask: Tensor) -> None:
        """Refuse what transformers and torch also call an attention mask, and what means something else."""
        meaning = "attention_mask is (batch, features), 1 at features and 0 at padding"
        if mask.shape != self.shape:
            raise ValueError(f"{meaning}, got {describe_tensor(mask)}: let the model make larger masks of it")
        outside = (mask < 0) | (mask > 1)  # between 0 and 1 a feature is removed in part, as the axioms do
        if bool(outside.any()):
            raise ValueError(
                f"{meaning}, got {float(mask[outside][0]):g}: an additive mask is 0 at features and very low at "
                "padding; give (mask == 0), and let the model make the additive one"
            )

    @property
    def shape(self) -> torch.Size:
        """The shape of an attribution: ``(batch, features)``."""
        return self.inputs.shape[:2]

    @property
    def unpadded(self) -> Tensor:
        """Which features are not padding: ``(batch, features)`` bool."""
        mask = self.forward_arguments.get("attention_mask")
        return torch.ones(self.shape, dtype=torch.bool, device=self.inputs.device) if mask is None else mask != 0

    @property
    def non_special(self) -> Tensor:
        """Which features are neither padding nor special: ``(batch, features)`` bool."""
        return self.unpadded if self.special_tokens_mask is None else self.unpadded & ~self.special_tokens_mask

    def run(self, model: nn.Module) -> Tensor:
        """The model's outputs on the inputs and forward arguments, ``(batch, outputs)``; `InvalidOutput` for others."""
        try:
            returned: object = model(self.inputs, **self.forward_arguments)
        except BaseException:  # an explainer that refuses an operation raises within the pass
            offload_again(model)
            raise
        with torch._C.DisableTorchFunction():  # a mode of the explainer's is for the operations of the model alone
            return _checked_outputs(returned, len(self.inputs))

    def copy(self) -> Case:
        """An equal case that shares no memory with this one."""
        replacements = {name: value.clone() for name, value in self.replacements.items()}
        return replace(self._with_rows(Tensor.clone), replacements=replacements, feature_names=self.feature_names)

    def to(self, dtype: torch.dtype) -> Case:
        """The case with its inputs, baseline, replacements and forward arguments in another floating-point type."""
        return self.with_numbers(lambda numbers: numbers.to(dtype))

    def with_numbers(self, of: Callable[[Tensor], Tensor]) -> Case:
        """The case with each of its floating-point tensors replaced by a function of it, of the same shape."""

        def changed(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: of(value) if value.is_floating_point() else value for name, value in values.items()}

        return replace(
            self,
            inputs=of(self.inputs),
            baseline=of(self.baseline),
            replacements=changed(self.replacements),
            forward_arguments=changed(self.forward_arguments),
        )

    def with_features(self, of: Callable[[Tensor], Tensor]) -> Case:
        """The case with ``of`` each tensor ``(batch, features, …)`` in its place, such as some of its columns.

        The target, the replacements and forward arguments of another shape stay; the features lose their names.
        """
        shape = self.shape
        return replace(
            self,
            inputs=of(self.inputs),
            baseline=of(self.baseline),
            special_tokens_mask=None if self.special_tokens_mask is None else of(self.special_tokens_mask),
            forward_arguments={
                name: of(value) if value.shape[:2] == shape else value for name, value in self.forward_arguments.items()
            },
            feature_names=(),
            segments={name: of(value) for name, value in self.segments.items()},
        )

    def first_features(self, count: int) -> Case:
        """The case with the first features alone, which share memory with it."""
        return self if count == self.shape[1] else self.with_features(lambda value: value[:, :count])

    def select(self, index: Tensor) -> Case:
        """A copy of the case with the examples of these indices, in this order; an index may occur more than once."""
        return self._with_rows(lambda tensor: tensor.index_select(0, index))

    def _with_rows(self, rows: Callable[[Tensor], Tensor]) -> Case:
        return replace(
            self,
            inputs=rows(self.inputs),
            target=rows(self.target),
            baseline=rows(self.baseline),
            special_tokens_mask=None if self.special_tokens_mask is None else rows(self.special_tokens_mask),
            forward_arguments={name: rows(value) for name, value in self.forward_arguments.items()},
            feature_names=(),
            segments={name: rows(value) for name, value in self.segments.items()},
        )


def _checked_outputs(returned: object, rows: int) -> Tensor:
    """What a model returned for a case of this many examples, if it is ``(batch, outputs)``."""
    if isinstance(returned, Tensor) and returned.dim() == 2 and len(returned) == rows and returned.is_floating_point():
        return returned
    got, way_out = f"a {type(returned).__name__}", "a tensor"
    if isinstance(returned, Tensor):
        got, way_out = describe_tensor(returned), "a row of outputs for each example"
        if not returned.is_floating_point():
            way_out = "real numbers that have a gradient, such as the logits"
        elif returned.shape == (rows,):
            way_out = ".unsqueeze(1) of it"
        elif returned.dim() > 2 and len(returned) == rows:
            way_out = "the outputs at one token, such as [:, 0] of it"
    elif getattr(returned, "logits", None) is not None:
        way_out = ".logits of it"
    elif isinstance(returned, Mapping):
        got, way_out = f"{got} of {', '.join(map(repr, returned))}", "one entry of it"
    elif isinstance(returned, tuple | list):
        kinds = [describe_tensor(one) if isinstance(one, Tensor) else f"a {type(one).__name__}" for one in returned]
        got, way_out = f"{got} of {', '.join([*kinds[:3], '…'][: len(kinds)])}", "one entry of it, or its tensor"
    raise InvalidOutput(
        f"the model returned {got}, and its outputs must be one floating-point tensor ({rows} examples, outputs): give "
        f"{way_out}, by a module around the model"
    )


@torch.no_grad()
def refuse_outputs_not_finite(model: nn.Module, case: Case) -> None:
    """Raise `InvalidOutput` if the model gives NaN or infinite outputs on a case: no map of it has a meaning."""
    outputs = case.run(model)
    if count := int((~outputs.isfinite()).sum()):
        narrow = outputs.dtype in (torch.float16, torch.bfloat16)
        raise InvalidOutput(
            f"the model returned {describe_tensor(outputs)}, of which {count} of {outputs.numel()} values are NaN or "
            f"infinite: {'run it in float32' if narrow else 'mend it, or give it other inputs'}"
        )


def select_target(output: Tensor, target: Tensor) -> Tensor:
    """The explained entry of each row: ``(batch, outputs)`` and ``(batch,)`` to ``(batch,)``.

    Raises:
        InvalidOutput: the model has no output of a target's number.
    """
    try:
        return output.gather(1, target.unsqueeze(1)).squeeze(1)
    except RuntimeError as error:
        count = output.shape[1]
        if bool(((target < 0) | (target >= count)).any()):
            raise InvalidOutput(
                f"the model returned {count} outputs, and the case explains the outputs {target.tolist()[:8]}: give "
                f"targets from 0 to {count - 1}"
            ) from error
        raise


def input_gradient(model: nn.Module, case: Case) -> Tensor:
    """The gradient of each example's explained output at its inputs, shaped like ``inputs``; touches no ``.grad``.

    It is 0 where the output does not depend on the inputs, or depends on them by operations without a gradient alone.
    """
    return output_and_input_gradient(model, case)[1]


@torch.enable_grad()
def output_and_input_gradient(model: nn.Module, case: Case) -> tuple[Tensor, Tensor]:
    """The explained output of each example, ``(batch,)``, and `input_gradient`, from the same pass."""
    point = case.inputs.detach().clone().requires_grad_()
    try:
        outputs = replace(case, inputs=point).run(model)
    except RuntimeError as error:
        if "in-place operation" not in str(error):
            raise
        # Autograd forbids writes to a leaf, and torch.compile warns of an input that is none: so a copy only here.
        outputs = replace(case, inputs=point.clone()).run(model)
    output = select_target(outputs, case.target)
    if not output.requires_grad:
        return output.detach(), torch.zeros_like(case.inputs)
    return output.detach(), torch.autograd.grad(output.sum(), point, materialize_grads=True)[0]


@torch.no_grad()
def output_difference(model: nn.Module, case: Case) -> Tensor:
    """f(x) − f(x′), the explained output of each example minus that of its baseline: ``(batch,)``."""
    # Cloned: a model may write to its input.
    at_inputs, at_baseline = (
        select_target(replace(case, inputs=inputs.clone()).run(model), case.target)
        for inputs in (case.inputs, case.baseline)
    )
    return at_inputs - at_baseline


def describe_tensor(tensor: Tensor) -> str:
    """A tensor's dtype, shape and device, for error messages."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} on {tensor.device}"


def digest(tensor: Tensor) -> str:
    """SHA-256 of a tensor's dtype, shape and values."""
    content = tensor.detach().cpu().contiguous()
    hashed = hashlib.sha256(f"{content.dtype}{tuple(content.shape)}".encode())
    hashed.update(content.flatten().view(torch.uint8).numpy().data)
    return hashed.hexdigest()
