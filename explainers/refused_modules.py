"""Modules that an explainer must refuse before it runs: their gradient is missing, or no mode sees their operations.

Some products with quantised weights are computed without a gradient. The gradient then lacks every path through them,
without an error: where a residual connection leads around them, a map made from it looks like any other.

Gradient checkpointing is found out only while the model runs: `refusing_recomputation`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from faithcheck.explainers.modules import all_modules, module_in_words
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.offloaded_weights import offloading_hook

Reason: TypeAlias = Callable[[nn.Module], str | None]
"""Why a module is refused, as the rest of a sentence that starts with its name; None if it is not."""

COARSE = 2**-5
"""The largest error of a sum in bfloat16, relative to what is added; a missing gradient errs by all of it."""

PLAIN = frozenset({Tensor, nn.Parameter})


def refuse_modules(model: nn.Module, *reasons: Reason) -> None:
    """Raise Unsupported if a module is refused for one of these reasons.

    The message names the first such module, the reason, and the way out.
    """
    for module in all_modules(model):
        for reason in reasons:
            if why := reason(module):
                raise Unsupported(f"{module_in_words(model, module)} {why}")


def compiled(module: nn.Module) -> str | None:
    """A reason to refuse a module: `torch.compile`, `torch.jit` or `torch.export` made a graph of it."""
    if isinstance(module, torch.jit.ScriptModule):
        return (
            "is TorchScript, and no rule sees the operations of its graph: explain the module that it was made from, "
            "or use Leave-One-Out"
        )
    if isinstance(module, torch.fx.GraphModule) and any(is_of_aten(node.target) for node in module.graph.nodes):
        return (
            "is a graph of torch.export, whose operations are those below torch's functions, for which there are no "
            "rules: explain the module that it was made from, or use Leave-One-Out"
        )
    # By name: the class is in torch._dynamo, which takes seconds to import.
    if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
        return (
            "is compiled by torch.compile, and no rule sees the operations of a compiled graph: explain the module "
            "before it is compiled, which a compiled one keeps as _orig_mod"
        )
    return None


def is_of_aten(operation: object) -> bool:
    """Whether this is an operation of ATen, which torch's functions call."""
    return isinstance(operation, torch._ops.OpOverload)


def flex_attention(module: nn.Module) -> str | None:
    """A reason to refuse a module of `transformers`: it computes attention by torch's flex attention."""
    # Not by `getattr` of the module, which searches parameters and submodules before it says that there is none.
    config = module.__dict__.get("config")
    if config is not None and getattr(config, "_attn_implementation", None) == "flex_attention":
        return (
            "computes flex attention, a compiled graph whose attention weights no explainer sees, and which has no "
            "gradient on a CPU: load the model with attn_implementation='sdpa' or 'eager', or use Leave-One-Out"
        )
    return None


def offloaded(module: nn.Module) -> str | None:
    """A reason to refuse a module where a copy gets other weights: accelerate brings its own whenever it runs."""
    if offloading_hook(module) is not None:
        return (
            "is offloaded by accelerate, which brings its weights whenever it runs, so that no copy of the model has "
            "other weights: load the model without a device_map, or on devices that hold all of it"
        )
    return None


def quantised_weights(module: nn.Module) -> str | None:
    """A reason to refuse a module: its quantised weights, if products with them have no gradient.

    Those are quantised modules of torch, and weights of torchao that round the inputs to whole numbers, too. Weights of
    torchao that leave the inputs as they are have the right gradient, and are not refused.
    """
    # TorchScript's table of parameters has no `get`; its graph refuses what it has no gradient of.
    weight = None if isinstance(module, torch.jit.ScriptModule) else module._parameters.get("weight")
    of_torch = type(module).__module__.startswith("torch.ao.nn.quantized")
    if of_torch or (weight is not None and is_of_torchao(weight) and not has_gradient(weight)):
        return (
            "has quantised weights, which have no gradient: explain the model that it was made from, or use "
            "Leave-One-Out"
        )
    return None


def parts_of(tensor: Tensor) -> list[Tensor]:
    """The tensors that a tensor of a class of its own is made of, which can be compared; of any other, itself."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    return [tensor] if flatten is None else [part for name in flatten()[0] for part in parts_of(getattr(tensor, name))]


def is_of_torchao(weight: Tensor) -> bool:
    """Whether a weight is of a class of torchao, which is not imported for that."""
    if is_plain(weight):  # asked first: each attribution looks at every module
        return False
    return any(kind.__module__.partition(".")[0] == "torchao" for kind in type(weight).__mro__)


def has_gradient(weight: Tensor) -> bool:
    """Whether the linear map of a weight ``(outputs, inputs)`` has a gradient: that of Σ Wx at x = 1 sums up to Σ W."""
    if weight.dim() != 2:
        return False
    with torch.enable_grad():
        ones = torch.ones(1, weight.shape[1], dtype=weight.dtype, device=weight.device, requires_grad=True)
        total = linear(ones, weight).sum()
        (gradient,) = torch.autograd.grad(total, ones, allow_unused=True) if total.requires_grad else (None,)
        return gradient is not None and bool((gradient.sum() - total).abs() <= COARSE * gradient.abs().sum())


def is_plain(x: Tensor) -> bool:
    """Whether a tensor is of no class of its own; quantised weights are, and have few operations besides torch's."""
    return type(x) in PLAIN


RECOMPUTED = (
    "gradient checkpointing runs its operations again in the backward pass, where no rule applies: switch it off, in "
    "transformers by model.activation_checkpointing_disable()"
)


@contextmanager
def refusing_recomputation(model: nn.Module) -> Iterator[None]:
    """Refuse gradient checkpointing by a model that runs in this context; Unsupported names the innermost module.

    Its second forward pass runs without the mode, so that tensors saved by the operations take the place of those that
    the rules saved. torch finds this out only where shapes differ.
    """
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks(RECOMPUTED):
            yield
    except RuntimeError as error:
        if RECOMPUTED not in str(error):
            raise
        raise Unsupported(f"{module_in_words(model, _innermost(model, error))}: {RECOMPUTED}") from error


def _innermost(model: nn.Module, error: RuntimeError) -> nn.Module:
    """The innermost module whose forward pass raised an error."""
    running, trace = model, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is nn.Module._call_impl.__code__:
            running = trace.tb_frame.f_locals["self"]
        trace = trace.tb_next
    return running
