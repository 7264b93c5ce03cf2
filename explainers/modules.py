"""The modules of a model: all of them, the layers of a Transformer, and the module whose forward pass is running."""

from collections.abc import Callable, Iterator
from functools import partial
from inspect import currentframe

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from faithcheck.explainers.protocol import Unsupported


def all_modules(model: nn.Module) -> list[nn.Module]:
    """The model and its submodules, each once, in the order of `nn.Module.modules`, whose recursion is slow."""
    found: dict[nn.Module, None] = {}
    pending: list[nn.Module | None] = [model]
    while pending:
        module = pending.pop()
        if module is not None and module not in found:
            found[module] = None
            pending += reversed(module._modules.values())
    return list(found)


def outermost_layers(model: nn.Module) -> nn.ModuleList | None:
    """The model's outermost first `nn.ModuleList`, the layers of a Transformer; None if it has none.

    A parametrization of a weight is a list of modules for torch, and no layers.
    """
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return next((modules for modules in lists if not isinstance(modules, ParametrizationList)), None)


def transformer_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a Transformer, in order: the entries of its outermost first `nn.ModuleList`; else Unsupported."""
    layers = outermost_layers(model)
    if layers is None:
        raise Unsupported(
            f"{type(model).__name__} has no nn.ModuleList of layers: bypass one set of layers at a time with "
            "attnlrp_with_bypassed_softmax, or use finite_mask_gate"
        )
    return list(layers)


def running_modules() -> Iterator[nn.Module]:
    """The modules whose forward pass is running, the innermost first, by the Python stack.

    Hooks on every module would tell the same, but take 7 % of a plain forward and backward pass of 16 tokens.
    """
    frame = currentframe()
    while frame is not None:
        if frame.f_code is nn.Module._call_impl.__code__:
            yield frame.f_locals["self"]
        frame = frame.f_back


def running_module() -> str:
    """The innermost module whose forward pass is running, by the name that the outermost one has for it."""
    return remembered_module()()


def remembered_module() -> Callable[[], str]:
    """As `running_module`, but the name is found when the result is called: that takes longer than an operation."""
    running = list(running_modules())
    return partial(module_in_words, running[-1], running[0]) if running else lambda: "the model"


def module_in_words(model: nn.Module, module: nn.Module) -> str:
    """A module, by the name that the model has for it, and its class."""
    name = next((name for name, other in model.named_modules() if other is module), "")
    return f"{name or 'the model'} ({type(module).__name__})"
