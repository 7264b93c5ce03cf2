"""The forward pass of LRP: a `TorchFunctionMode` that computes each operation by its rule in a table.

1. The mode sees every torch operation of the forward pass.
2. An operation carries relevance if its operands depend on the explained inputs. The mode computes it by the rule that
   the table has for it. All other operations run as they are.
3. A rule returns the operation's own value with a modified gradient (`modified_gradient` says why this is Eq. 1).

Nothing is patched, and nothing remains on the model. Values that the model computes under ``no_grad`` or detaches are
constants, for relevance as for any gradient.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import lru_cache
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from faithcheck.explainers.lrp.operation_call import OperationCall, Rule, tensors_with_relevance
from faithcheck.explainers.lrp.operation_table import operations_with
from faithcheck.explainers.lrp.operations import Trait, operation_name
from faithcheck.explainers.modules import all_modules, running_module
from faithcheck.explainers.protocol import Unsupported
from faithcheck.models.offloaded_weights import offloading_hook

IN_PLACE = operations_with(Trait.IN_PLACE)
WAYS_OUT = dict.fromkeys(
    ("grouped_mm", "_grouped_mm", "grouped_mm_fallback"), ": load the mixture with experts_implementation='eager'"
)
"""Operations without a rule, and how a user has the model compute the same by operations that have one."""
PRODUCTS_IN_PLACE: dict[str, Callable[..., Tensor]] = {"mul_": torch.mul, "div_": torch.div}


class Propagation(TorchFunctionMode):
    """Computes every operation that depends on ``point`` by its rule.

    ``point`` is the explained inputs, a leaf that requires grad. The stabiliser ε = 0 is the limit ε → 0; ``signed``
    says whether it has the sign of the value it is added to.
    """

    def __init__(self, rules: Mapping[str, Rule], epsilon: float, point: Tensor, signed: bool = True) -> None:
        super().__init__()
        self.rules, self.epsilon, self.point, self.signed = rules, epsilon, point, signed
        self.visible: set[Any] = set()  # the autograd nodes of all results that this mode has seen
        self.calls: Counter[str] = Counter()
        self.module_operation: nn.Module | None = None  # the running module that is treated as one operation
        self.has_offloaded_weights = False  # by accelerate

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if self.module_operation is not None:
            return func(*args, **(kwargs or {}))
        given, args, kwargs = args, self.without_parameters(args), self.without_parameters(kwargs or {})
        operands = tensors_with_relevance((args, kwargs))
        if operands:
            name = operation_name(func)
            if name in self.rules:  # an operation without a rule, such as a shape, may pass on nothing
                self.refuse_hidden(operands, name)
            return self.compute(self.call_of(name, func, args, kwargs, operands))
        if self.has_offloaded_weights and func.__name__ in ("__get__", "to") and args[0] is not given[0]:
            with torch.no_grad():  # accelerate moves a parameter, and asks whether it requires a gradient
                return func(*given, **kwargs)
        return func(*args, **kwargs)

    def compute(self, call: OperationCall) -> Any:
        """The value of an operation by its rule; that of an operation without a rule, such as a shape, as it is.

        Raises Unsupported if a value with relevance has no rule, or if an operand comes from a hidden operation.
        """
        rule = self.rules.get(call.name)
        if rule is None:
            result = call.value()
            if tensors_with_relevance(result):
                self.refuse_hidden(call.operands_with_relevance(), call.name)
                raise call.unsupported("no rule for this operation" + WAYS_OUT.get(call.name, ""))
            return result
        if call.name in IN_PLACE and (steps := written_out(call, self.visible)) is not None:
            return self.apply_steps(steps)
        result = self.apply_rule(rule, call)
        # setitem returns None, and writes to its operand.
        self.make_visible(call.args if result is None else result)
        return result

    def apply_rule(self, rule: Rule, call: OperationCall) -> Any:
        """Compute a call by its rule. Subclasses record the call here."""
        result = rule(call)
        return self.apply_steps(result) if callable(result) else result

    def apply_steps(self, steps: Callable[[], Tensor | None]) -> Tensor | None:
        """Compute an operation by several operations, each by its own rule."""
        if self.module_operation is not None:
            raise TypeError(f"{running_module()}: the rule of a class of modules must return the module's value")
        with self:
            return steps()

    def wrap_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments that a module treated as one operation runs on. Subclasses replace them by aliases here."""
        return args

    def refuse_hidden(self, values: list[Tensor], name: str) -> None:
        """Raise Unsupported for tensors that require a gradient, but come from no operation that this mode has seen.

        A `torch.autograd.Function`, TorchScript or vmap hides its operations.
        """
        for value in values:
            if value is not self.point and value.grad_fn not in self.visible:
                if value._is_view() and value._base is not None and value._base.grad_fn in self.visible:
                    self.visible.add(value.grad_fn)  # the base was overwritten: torch gave its view another node
                    continue
                raise Unsupported(
                    f"{name} in {running_module()}: an operand comes from {type(value.grad_fn).__name__}, which hides "
                    "its operations from torch functions (autograd.Function, TorchScript, vmap), or is a constant that "
                    "requires grad: write it in plain torch operations, or detach the constant"
                )

    def make_visible(self, result: Any) -> None:
        """Note that this mode has seen the operation which computed these tensors."""
        self.visible.update([x.grad_fn for x in tensors_with_relevance(result)])

    def call_of(
        self, name: str, operation: Callable[..., Any], args: Any, kwargs: Any, operands: list[Tensor]
    ) -> OperationCall:
        """The next call of an operation."""
        number = self.calls[name]
        self.calls[name] += 1
        call = OperationCall(name, operation, args, kwargs, self.epsilon, running_module, number, self.signed)
        call.operands = operands
        return call

    def without_parameters(self, value: Any) -> Any:
        """The value, with every leaf except the explained inputs detached: weights carry no relevance."""
        # Written out, because torch's pytree takes longer than a small operation.
        if isinstance(value, Tensor):
            is_constant = value.requires_grad and value.is_leaf and value is not self.point
            return self.detach_parameter(value) if is_constant else value
        if type(value) is tuple or type(value) is list:
            return type(value)([self.without_parameters(x) for x in value])
        if type(value) is dict:
            return {key: self.without_parameters(x) for key, x in value.items()}
        return value

    def detach_parameter(self, parameter: Tensor) -> Tensor:
        """A parameter as a constant. Subclasses record it here."""
        return parameter.detach()

    @contextmanager
    def treating_modules_as_operations(self, model: nn.Module) -> Iterator[None]:
        """Within the block, treat each module of a class with a rule as one operation.

        torch's global hooks see every module, also one that the model makes in its forward pass and does not list.
        """
        keys = tuple(key for key in self.rules if key[0] == "*" or key[0].isupper())
        self.has_offloaded_weights = any(offloading_hook(module) is not None for module in all_modules(model))
        thread = get_ident()  # the hooks see the modules that run in other threads, too

        # torch runs hooks under the mode, which is there for the operations of the model alone.
        def enter(module: nn.Module, args: Any) -> Any:
            key = key_of_module(module, keys)
            if key is None or self.module_operation is not None or get_ident() != thread:
                return None
            with torch._C.DisableTorchFunction():
                return self._enter(module, key, args)

        def leave(module: nn.Module, args: Any, output: Any) -> Any:
            key = key_of_module(module, keys)
            if key is None or self.module_operation not in (None, module) or get_ident() != thread:
                return output
            with torch._C.DisableTorchFunction():
                return self._leave(key, args, output)

        handles = (register_module_forward_pre_hook(enter), register_module_forward_hook(leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, key: str, args: Any) -> Any:
        """Begin a module that is treated as one operation, if its arguments carry relevance."""
        operands = [x for x in tensors_with_relevance(args) if x is self.point or not x.is_leaf]
        if not operands:  # a leaf is a constant, as for operations
            return None
        self.refuse_hidden(operands, key)
        self.module_operation = module
        return self.wrap_inputs(args)

    def _leave(self, key: str, args: Any, output: Any) -> Any:
        """The value of a module by its rule.

        Raises Unsupported if the module got its operands by keyword: torch's hooks receive positional arguments only.
        """
        if self.module_operation is None:
            if tensors_with_relevance(output):
                raise Unsupported(f"{running_module()}: no rule for a call with keyword arguments alone")
            return output
        call = self.call_of(key, lambda *_: output, args, {}, tensors_with_relevance(args))
        result = self.apply_rule(self.rules[key], call)
        self.make_visible(result)
        self.module_operation = None
        return result


def written_out(call: OperationCall, visible: set[Any]) -> Callable[[], Tensor | None] | None:
    """Steps that compute an operation in place which no rule follows; None: a rule follows it.

    1. A product of data is a new tensor, which then overwrites the first operand.
    2. A part of another tensor (``whole[..., :n].copy_(x)``) is computed as a new tensor, and then the whole is: its
       old values with the part in their place. Otherwise the whole would depend on an operation that no rule saw.
       Another view of the whole is from then on a view of the new whole.
    """
    target, *others = call.args
    whole, product = target._base, PRODUCTS_IN_PLACE.get(call.name)
    if product is not None and len(call.operands_with_relevance()) > 1:
        return lambda: target.copy_(product(target.clone(), *others, **call.kwargs))
    if whole is None or not whole.is_contiguous() or target.numel() == whole.numel():
        return None
    if whole.requires_grad and whole.grad_fn not in visible:  # an inner tensor, which the model does not read
        return None
    shape, strides, offset = target.size(), target.stride(), target.storage_offset()
    places = torch.arange(whole.numel(), device=whole.device).as_strided(shape, strides, offset).flatten()

    def steps() -> Tensor | None:
        part = target.clone()
        result = call.operation(part, *others, **call.kwargs)
        whole.copy_(whole.flatten().scatter(0, places, part.flatten()).view(whole.shape))
        return None if result is None else whole.as_strided(shape, strides, offset)

    return steps


def key_of_module(module: nn.Module, keys: tuple[str, ...]) -> str | None:
    """The first of these keys that fits the name of the module's class; None if the module is several operations.

    It is if it contains other modules, or has a bias, as an RMSNorm with a gate has.
    """
    key = key_of_class(type(module).__name__, keys)
    several = key is not None and (bool(module._modules) or getattr(module, "bias", None) is not None)
    return None if several else key


@lru_cache(maxsize=256)
def key_of_class(kind: str, keys: tuple[str, ...]) -> str | None:
    """The first of these keys that fits the name of a class of modules."""
    return next((key for key in keys if fnmatchcase(kind, key)), None)
