"""Layer-wise Relevance Propagation over operations, for any unmodified torch model.

1. A `TorchFunctionMode` sees every torch operation of the forward pass.
2. An operation carries relevance if its operands depend on the explained inputs. The mode computes it by the rule that
   the method's table has for it. All other operations run as they are.
3. A rule returns the operation's own value with a modified gradient (`modified_gradient` says why this is Eq. 1).
4. One backward pass then gives relevance = inputs ⊙ gradient.

Nothing is patched, and nothing remains on the model. Values that the model computes under ``no_grad`` or detaches are
constants, for relevance as for any gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from faithcheck.explainers.fast.linear_map import computing_linear_maps
from faithcheck.explainers.lrp.operation_call import HOLDING_NO_TENSOR, OperationCall, Rule, tensors_with_relevance
from faithcheck.explainers.lrp.operations import Trait, operation_name, operations, operations_with
from faithcheck.explainers.lrp.recomputation import refusing_recomputation
from faithcheck.explainers.lrp.rules.attention import attention_rule, fused_attention
from faithcheck.explainers.lrp.rules.norms import layer_norm_rule
from faithcheck.explainers.lrp.rules_met import record_rules
from faithcheck.explainers.modules import all_modules, running_module, running_modules
from faithcheck.explainers.protocol import Unsupported, per_feature
from faithcheck.explainers.refused_modules import compiled, flex_attention, quantised_weights, refuse_modules
from faithcheck.models.case import Case, select_target
from faithcheck.models.expectation import ON_LINEAR_MODELS, Expectations
from faithcheck.models.offloaded_weights import offloading_hook

ONE_VALUE, IN_PLACE = operations_with(Trait.ONE_VALUE), operations_with(Trait.IN_PLACE)
WAYS_OUT = dict.fromkeys(
    ("grouped_mm", "_grouped_mm", "grouped_mm_fallback"), ": load the mixture with experts_implementation='eager'"
)
"""Operations without a rule, and how a user has the model compute the same by operations that have one."""
PRODUCTS_IN_PLACE: dict[str, Callable[..., Tensor]] = {"mul_": torch.mul, "div_": torch.div}


class Propagation(TorchFunctionMode):
    """Computes every operation that depends on ``point`` by its rule.

    Args:
        rules: ``{operation or class of modules: rule}``.
        epsilon: the stabiliser ε ≥ 0; 0 is the limit ε → 0.
        point: the explained inputs, a leaf that requires grad.
        signed: whether the stabiliser has the sign of the value it is added to.
    """

    def __init__(self, rules: Mapping[str, Rule], epsilon: float, point: Tensor, signed: bool = True) -> None:
        super().__init__()
        self.rules, self.epsilon, self.point, self.signed = rules, epsilon, point, signed
        self.visible: set[Any] = set()  # the autograd nodes of all results that this mode has seen
        self.calls: Counter[str] = Counter()
        self.linear: Callable[..., Tensor] | None = None  # in place of torch's, see `SinglePassPropagation`
        self.calls_every_rule = epsilon > 0  # a `plain_gradient` is one in the limit alone
        self._known: dict[Any, tuple[str, Rule | None, int]] = {}  # see `_look_up`
        self.modules: dict[nn.Module, str | None] = {}  # the model's, each with its key among the rules
        self.keys_without_hooks: tuple[str, ...] = ()  # the rules' classes, if others of them have no hooks
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
        operands: list[Tensor] = []
        given = args
        args = self._without_parameters(args, operands)
        if kwargs:
            kwargs = dict(zip(kwargs, self._without_parameters((*kwargs.values(),), operands), strict=True))
        if not operands:
            if self.has_offloaded_weights and func.__name__ in ("__get__", "to") and args[0] is not given[0]:
                # A parameter as it is: accelerate asks whether it requires a gradient, and moves it.
                with torch.no_grad():
                    return func(*given, **(kwargs or {}))
            return func(*args, **(kwargs or {}))
        name, rule, operands_of_plain_gradient = self._known.get(func) or self._look_up(func)
        self.refuse_hidden(operands, name)
        if name == "linear" and self.linear is not None:
            func = self.linear
        if len(operands) > operands_of_plain_gradient:
            call = self._call(name, func, args, kwargs or {})
            call.operands = operands
            return self.by_rule(rule, call)
        self.calls[name] += 1
        result = func(*args, **kwargs) if kwargs else func(*args)
        self.make_visible(args if result is None else result)
        return result

    def _look_up(self, func: Callable[..., Any]) -> tuple[str, Rule | None, int]:
        """An operation's name and rule, and up to how many operands the rule is the `plain_gradient`."""
        name = operation_name(func)
        rule = self.rules.get(name)
        by_rule = self.calls_every_rule or name in ONE_VALUE or name in IN_PLACE
        plain = 0 if by_rule else getattr(rule, "operands_of_plain_gradient", 0)
        self._known[func] = name, rule, plain
        return self._known[func]

    def by_rule(self, rule: Rule | None, call: OperationCall) -> Any:
        """The value of an operation by its rule; that of an operation without a rule, such as a shape, as it is.

        Raises:
            Unsupported: there is no rule, and the value carries relevance.
        """
        if rule is None:
            result = call.value()
            if tensors_with_relevance(result):
                raise call.unsupported("no rule for this operation" + WAYS_OUT.get(call.name, ""))
            return result
        if call.name in ONE_VALUE:
            self.find_unregistered()
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

    def wrap_inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments that a module treated as one operation runs on. Subclasses replace them by aliases here."""
        return args

    def refuse_hidden(self, values: list[Tensor], name: str) -> None:
        """Refuse tensors that require a gradient but come from no operation that this mode has seen.

        Raises:
            Unsupported: `torch.autograd.Function`, TorchScript or vmap hid the operation.
        """
        for value in values:
            if value is not self.point and value.grad_fn not in self.visible:
                if value._is_view() and value._base is not None and value._base.grad_fn in self.visible:
                    self.visible.add(value.grad_fn)  # a view of what was overwritten: torch has made it anew
                    continue
                raise Unsupported(
                    f"{name} in {running_module()}: an operand comes from {type(value.grad_fn).__name__}, which hides "
                    "its operations from torch functions (autograd.Function, TorchScript, vmap), or is a constant that "
                    "requires grad: write it in plain torch operations, or detach the constant"
                )

    def make_visible(self, result: Any) -> None:
        """Note that this mode has seen the operation which computed these tensors."""
        if isinstance(result, Tensor):  # written out: it runs for every operation
            if result.requires_grad:
                self.visible.add(result.grad_fn)
            return
        for x in tensors_with_relevance(result):
            self.visible.add(x.grad_fn)

    def apply_steps(self, steps: Callable[[], Tensor | None]) -> Tensor | None:
        """Compute an operation by several operations, each by its own rule."""
        if self.module_operation is not None:
            raise TypeError(f"{running_module()}: the rule of a class of modules must return the module's value")
        with self:
            return steps()

    def _call(self, name: str, operation: Callable[..., Any], args: Any, kwargs: Any) -> OperationCall:
        number = self.calls[name]
        self.calls[name] += 1
        return OperationCall(name, operation, args, kwargs, self.epsilon, running_module, number, self.signed)

    def _without_parameters(self, values: tuple[Any, ...], operands: list[Tensor]) -> tuple[Any, ...]:
        """The values, with every leaf except the explained inputs detached: weights carry no relevance.

        Adds the tensors that carry relevance to ``operands``. One loop does both: it runs for every operation.
        """
        constants: dict[int, Any] = {}
        for place, value in enumerate(values):
            if isinstance(value, Tensor):
                if value.requires_grad:
                    if value.is_leaf and value is not self.point:
                        constants[place] = self.detach_parameter(value)
                    else:
                        operands.append(value)
            elif (kind := type(value)) in HOLDING_NO_TENSOR:
                pass
            elif kind is tuple or kind is list:
                constants[place] = kind(self._without_parameters((*value,), operands))
            elif kind is dict:
                constants[place] = dict(zip(value, self._without_parameters((*value.values(),), operands), strict=True))
            else:
                operands += tensors_with_relevance(value)
        if not constants:
            return values
        return tuple([constants.get(place, value) for place, value in enumerate(values)])

    def detach_parameter(self, parameter: Tensor) -> Tensor:
        """A parameter as a constant. Subclasses record it here."""
        return parameter.detach()

    @contextmanager
    def treating_modules_as_operations(self, model: nn.Module, unregistered: bool = False) -> Iterator[None]:
        """Treat each module of a class with a rule as one operation, by hooks that are removed at the end.

        Args:
            model: the model that runs.
            unregistered: whether the model may call such modules without listing them among its own. They are found by
                global hooks only, which take 7 % of a plain forward and backward pass of 16 tokens.
        """
        keys = tuple(key for key in self.rules if key[0] == "*" or key[0].isupper())
        self.modules = modules = {module: key_of_module(module, keys) for module in all_modules(model)}
        self.has_offloaded_weights = any(offloading_hook(module) is not None for module in modules)
        unregistered = unregistered or not operations().keys() >= set(keys)  # `find_unregistered` knows those alone
        self.keys_without_hooks = () if unregistered else keys

        def key_of(module: nn.Module) -> str | None:
            return modules.get(module) or key_of_module(module, keys)

        # torch runs hooks under the mode, which is there for the operations of the model alone.
        def enter(module: nn.Module, args: Any) -> Any:
            key = key_of(module)
            if self.module_operation is not None or key is None:
                return None
            with torch._C.DisableTorchFunction():
                operands = [x for x in tensors_with_relevance(args) if x is self.point or not x.is_leaf]
                if not operands:  # a leaf is a constant, as for operations
                    return None
                self.refuse_hidden(operands, key)
                self.module_operation = module
                return self.wrap_inputs(args)

        def leave(module: nn.Module, args: Any, output: Any) -> Any:
            key = key_of(module)
            if key is None or self.module_operation not in (None, module):
                return output
            with torch._C.DisableTorchFunction():
                if self.module_operation is module:
                    result = self.apply_rule(self.rules[key], self._call(key, lambda *_: output, args, {}))
                    self.make_visible(result)
                    self.module_operation = None
                    return result
                if tensors_with_relevance(output):
                    # torch's hooks receive the positional arguments only.
                    raise Unsupported(f"{running_module()}: no rule for a call with keyword arguments alone")
                return output

        handles: list[Any] = []
        try:
            if unregistered:
                handles += [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
            for module in () if unregistered else filter(modules.get, modules):
                handles.append(module.register_forward_pre_hook(enter))
                handles.append(module.register_forward_hook(leave, prepend=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def find_unregistered(self) -> None:
        """Raise an error if a module with a rule runs that has no hooks.

        It is called for functions of one value: all modules with a declared rule compute one, such as tanh or a root.
        A module with a rule has none within it, so that the search ends at the first of the model's own.
        """
        if self.keys_without_hooks:
            for module in running_modules():
                if module in self.modules:
                    return
                if key_of_module(module, self.keys_without_hooks):
                    raise UnregisteredModule


class SinglePassPropagation(Propagation):
    """A `Propagation` for one backward pass, with the linear maps of `computing_linear_maps`. Arguments as there.

    Attention that the model computes in one operation stays one, where that gives the same gradient.
    """

    def apply_rule(self, rule: Rule, call: OperationCall) -> Any:
        """As `Propagation` does; attention in one operation."""
        if rule is attention_rule and self.epsilon == 0 and (result := fused_attention(call, self.rules)) is not None:
            return result
        return super().apply_rule(rule, call)

    @contextmanager
    def treating_modules_as_operations(self, model: nn.Module, unregistered: bool = False) -> Iterator[None]:
        """As `Propagation` does; also chooses the linear maps."""
        linear_maps = computing_linear_maps(model, partial(setattr, self, "linear"))
        with linear_maps, super().treating_modules_as_operations(model, unregistered):
            yield


class UnregisteredModule(Exception):
    """The model calls a module with a rule that is not among its own modules, such as one made in the forward pass."""


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
    """The first of these keys that fits the name of the module's class.

    None, too, for a module that has others within it, or a bias: an RMSNorm with a gate is several operations.
    """
    key = key_of_class(type(module).__name__, keys)
    several = key is not None and (bool(module._modules) or getattr(module, "bias", None) is not None)
    return None if several else key


@lru_cache(maxsize=256)
def key_of_class(kind: str, keys: tuple[str, ...]) -> str | None:
    """The first of these keys that fits the name of a class of modules."""
    return next((key for key in keys if fnmatchcase(kind, key)), None)


@dataclass(frozen=True)
class LRP:
    """A method of Layer-wise Relevance Propagation: a table of rules and a stabiliser.

    Bach et al. 2015; Eq. 1 of arXiv 2510.18810. Relevance starts as the explained output itself. A bias that an
    operation adds keeps its share of the relevance, and does not pass it on.

    Attributes:
        name: the explainer's name.
        rules: ``{operation name: rule}``.
        epsilon: the stabiliser ε ≥ 0 of z + ε·sign z, sign 0 = 1. The rules never divide by z, so that the default
            is the limit ε → 0, in which violations have closed forms; arXiv 2510.18810 uses 1e-6.
        claims: the axioms that the explainer claims to satisfy.
        signed: whether the stabiliser has the sign of z. Without the sign, as in some libraries, the denominator z + ε
            has a zero at z = −ε; see docs/explanation/epsilon.md.
        label: the name to display; empty: `name`.
        summary: the explainer in one line.
    """

    name: str
    rules: Mapping[str, Rule]
    epsilon: float = 0.0
    claims: frozenset[str] = frozenset(
        "invariance linearity additivity antisymmetry scale determinism batching precision randomisation".split()
    )
    signed: bool = True
    label: str = ""
    summary: str = ""

    def __post_init__(self) -> None:
        if self.epsilon < 0:
            raise ValueError(f"epsilon must be at least 0, got {self.epsilon}")

    @property
    def expected(self) -> Expectations:
        """What Eq. 1 gives on a linear model; a stabiliser takes a share."""
        return {} if self.epsilon else ON_LINEAR_MODELS

    @property
    def settings(self) -> str:
        """The settings in words."""
        norm = "; σ of LayerNorm held constant" if self.rules.get("layer_norm") is layer_norm_rule else ""
        return (f"ε = {self.epsilon:g}" if self.epsilon else "ε → 0") + norm

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """Relevance of each feature: one forward and one backward pass, ``(batch, features)``.

        Raises:
            Unsupported: an operation that carries relevance has no rule, or the model is compiled or run with gradient
                checkpointing; names the operation and the module.
            ZeroDivisionError: the stabiliser has no sign, and a denominator z + ε, or 2z + ε of a product, is 0; names
                the operation and the module.
        """
        propagation, output = self.propagate(model, case, SinglePassPropagation)
        (gradient,) = torch.autograd.grad(output.sum(), propagation.point)
        return per_feature(case.inputs * gradient)

    def position_relevance(self, model: nn.Module, case: Case) -> Tensor:
        """What the position embeddings that a model adds keep of each example's relevance, ``(batch,)``.

        Raises:
            Unsupported: the model adds none; or see `attribute`.
        """
        from faithcheck.explainers.lrp.position_pairs import position_relevance  # not at the top: it needs this module

        return position_relevance(self, model, case)

    @torch.enable_grad()
    def propagate(
        self, model: nn.Module, case: Case, mode: type[Propagation] = Propagation
    ) -> tuple[Propagation, Tensor]:
        """Run the forward pass with this method's rules.

        Args:
            model: the model to explain.
            case: the inputs and the target.
            mode: the class of the torch-function mode.

        Returns:
            The mode after the forward pass, and the explained output ``(batch,)``. Its gradient at the mode's ``point``
            times the inputs is relevance.

        Raises:
            Unsupported: see `attribute`.
        """
        refuse_modules(model, compiled, flex_attention, quantised_weights)

        def run(unregistered: bool) -> tuple[Propagation, Tensor]:
            point = case.inputs.detach().clone().requires_grad_()
            propagation = mode(self.rules, self.epsilon, point, self.signed)
            modules = propagation.treating_modules_as_operations(model, unregistered)
            with refusing_recomputation(model), modules, propagation:
                # Copied under the mode: a model may write to its input, and autograd forbids writes to a leaf.
                return propagation, replace(case, inputs=point.clone()).run(model)

        try:
            propagation, output = run(unregistered=False)
        except UnregisteredModule:
            propagation, output = run(unregistered=True)
        record_rules(name for name in propagation.calls if name in self.rules)
        propagation.refuse_hidden(tensors_with_relevance(output), "the output")
        if not tensors_with_relevance(output):
            raise Unsupported(f"no relevance reaches the inputs: under {self.name} the output is constant")
        return propagation, select_target(output, case.target)
