"""Linear maps with constant weights, x Wᵀ + b, as fast as the processor computes them.

LRP and the gates take this linear map in place of torch's, its plain twin. Values and gradients equal torch's up to
round-off. LRP's rule for linear maps is in `faithcheck.explainers.lrp.rules.linear_maps`.
"""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from faithcheck.explainers.fast.switch import is_fast
from faithcheck.explainers.modules import outermost_layers
from faithcheck.explainers.refused_modules import is_plain

MANY_ROWS = 32
"""From this number of rows on, rows are skipped. With 16 rows it gained nothing; 32 is a choice."""

MANY_MULTIPLICATIONS = 3 * 2**20
"""From this number on, rows times weights, oneDNN computes linear maps. Below, a backward pass in Python takes longer
than oneDNN saves: up to 2²¹ on one processor and up to 2²² on another; this is between them (docs/results/cost.md).
Without a backward pass, torch's maps are as fast there with threads that spin, and faster with passive ones."""

FEW_ROWS = range(9, 17)
"""Numbers of rows for which oneDNN computes W xᵀ faster than x Wᵀ, before which it copies W (docs/results/cost.md)."""

LINEAR_POINTWISE: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""oneDNN's linear map with an activation; None if this torch has none."""


def _is_by_intel() -> bool:
    """Whether Intel made the processor. Its maker, not a time measured here, decides: every run rounds alike."""
    try:
        with open("/proc/cpuinfo") as file:
            described = "".join(islice(file, 9))  # of the first core; the maker stands in the second line
    except OSError:  # not Linux
        described = platform.processor()
    return "GenuineIntel" in described


ONEDNN_IS_FASTER = LINEAR_POINTWISE is not None and not _is_by_intel()
"""Whether oneDNN's linear map is faster than torch's own, which is Intel's MKL (docs/results/cost.md)."""


def runs_on_onednn(*tensors: Tensor | None) -> bool:
    """Whether oneDNN computes linear maps of these tensors: plain ones of float32 on a CPU, without autocast.

    On a processor by Intel it computes none.
    """
    is_on = ONEDNN_IS_FASTER and torch._C._get_mkldnn_enabled() and not torch._C._is_any_autocast_enabled()
    return is_on and all(map(_fits_onednn, tensors))


def _fits_onednn(x: Tensor | None) -> bool:
    if x is None:
        return True
    return is_plain(x) and x.dtype is torch.float32 and x.is_cpu and x.layout is torch.strided and x.numel() > 0


def onednn_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: tuple[str, str] = ("none", "")
) -> Tensor:
    """An activation of x Wᵀ + b in one operation of oneDNN, which has no gradient.

    ``activation`` is its name and its variant in oneDNN.
    """
    name, variant = activation
    if name == "none" and weight.is_contiguous() and x.numel() // x.shape[-1] in FEW_ROWS:
        return _onednn_linear_of_few_rows(x, weight, bias)
    result: Tensor = LINEAR_POINTWISE(x, weight, bias, name, [], variant)
    return result


def _onednn_linear_of_few_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b as the transpose of W xᵀ, in the layout of x Wᵀ."""
    rows = x.flatten(0, -2).contiguous()  # oneDNN takes milliseconds to copy rows with other strides
    product: Tensor = LINEAR_POINTWISE(weight, rows, None, "none", [], "").mT
    result = product if bias is None else product + bias
    return result.contiguous().view(*x.shape[:-1], len(weight))


class ConstantLinear(torch.autograd.Function):
    """A linear map with constant weights, by oneDNN where it runs.

    Its backward pass can skip rows with a zero gradient: in a Transformer's last layer, most rows but one.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, bias: Tensor | None, skips_rows: bool, by_onednn: bool
    ) -> Tensor:
        """The linear map, ``(…, rows, inputs)`` to ``(…, rows, outputs)``."""
        ctx.save_for_backward(weight)
        ctx.skips_rows, ctx.by_onednn = skips_rows, by_onednn
        return onednn_linear(values, weight, bias) if by_onednn else linear(values, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        """The gradient at the values; none at weight and bias, which are not asked for."""
        (weight,) = ctx.saved_tensors
        rows = gradient.any(-1) if ctx.skips_rows else None
        if rows is None or rows.all():  # keys and values have a gradient in all rows
            return _times(gradient, weight, ctx.by_onednn), None, None, None, None
        at_values = gradient.new_zeros(*gradient.shape[:-1], weight.shape[1])
        at_values[rows] = _times(gradient[rows], weight, ctx.by_onednn)
        return at_values, None, None, None, None


def _times(gradient: Tensor, weight: Tensor, by_onednn: bool) -> Tensor:
    """The product of ``(…, outputs)`` with ``(outputs, inputs)``: ``(…, inputs)``."""
    if by_onednn and _fits_onednn(gradient):
        return onednn_linear(gradient, weight.mT)
    return gradient @ weight.to(gradient)


def constant_linear(skips_rows: bool, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear` by a `ConstantLinear`; ``skips_rows`` if most rows may have a zero gradient.

    By torch alone if the map is small, if weight or bias are computed and may need a gradient, or if the weight is
    quantised.
    """
    skips_rows = skips_rows and input.dim() > 1 and input.shape[-2] >= MANY_ROWS
    is_large = input.numel() * len(weight) >= MANY_MULTIPLICATIONS
    are_constants = is_plain(weight) and weight.is_leaf and (bias is None or bias.is_leaf)
    if are_constants and (skips_rows or is_large):
        by_onednn = runs_on_onednn(input, weight, bias)
        if skips_rows or by_onednn:
            result: Tensor = ConstantLinear.apply(  # type: ignore[no-untyped-call]
                input, weight, bias, skips_rows, by_onednn
            )
            return result
    return linear(input, weight, bias)


ACTIVATIONS: dict[tuple[str, str], Callable[[Tensor], Tensor]] = {
    ("none", ""): lambda x: x,
    ("gelu", "none"): gelu,
    ("gelu", "tanh"): partial(gelu, approximate="tanh"),
}
"""The activations that run in one operation with a linear map, by their names in oneDNN, whose ReLU of NaN is 0."""


def linear_without_gradient(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: tuple[str, str] = ("none", "")
) -> Tensor:
    """An activation of x Wᵀ + b where no backward pass follows, by oneDNN if the map is large.

    ``activation`` is a key of `ACTIVATIONS`.
    """
    if is_fast() and input.numel() * len(weight) >= MANY_MULTIPLICATIONS and runs_on_onednn(input, weight, bias):
        return onednn_linear(input, weight, bias, activation)
    return ACTIVATIONS[activation](linear(input, weight, bias))


@contextmanager
def following_last_layer(model: nn.Module, enter: Callable[[], None], leave: Callable[[], None]) -> Iterator[None]:
    """Within the block, call these functions before and after each forward pass of the model's last layer."""
    handles: list[Any] = []
    try:
        for layer in list(outermost_layers(model) or ())[-1:]:
            handles.append(layer.register_forward_pre_hook(lambda *_: enter()))
            handles.append(layer.register_forward_hook(lambda *_: leave()))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def computing_linear_maps(model: nn.Module, take: Callable[[Callable[..., Tensor]], None]) -> Iterator[None]:
    """Within the block, hand over what computes linear maps: now, and before and after the model's last layer runs.

    It is `constant_linear`, for one backward pass: it looks at values, so that several passes cannot be batched. Its
    plain twin is `torch.nn.functional.linear`.
    """
    if not is_fast():
        take(linear)
        yield
        return
    in_last_layer, elsewhere = partial(constant_linear, True), partial(constant_linear, False)
    take(elsewhere)
    with following_last_layer(model, partial(take, in_last_layer), partial(take, elsewhere)):
        yield
