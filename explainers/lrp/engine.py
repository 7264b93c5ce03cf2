"""Layer-wise Relevance Propagation over operations, for any unmodified torch model.

A `TorchFunctionMode` sees every torch operation of the forward pass. An operation that carries relevance, that is, one
whose inputs depend on the explained inputs, is computed by the rule that the method's table has for it. A rule returns
the operation's own value with a modified gradient, so that at the end relevance is inputs ⊙ gradient (`rules` says why
this is Eq. 1). Nothing is patched and nothing is left on the model. What the model itself computes under ``no_grad`` or
detaches is a constant, to relevance as to any gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from faithcheck.explainers.lrp.rules import ATTNLRP, CP_LRP, EPSILON_LRP, OperationCall, Rule, tensors_with_relevance
from faithcheck.explainers.protocol import Unsupported, per_feature
from faithcheck.models.case import Case, select_target

SYNONYMS = {
    "radd": "add",
    "rmul": "mul",
    "multiply": "mul",
    "subtract": "sub",
    "truediv": "div",
    "true_divide": "div",
    "divide": "div",
    "rtruediv": "rdiv",
    "negative": "neg",
    "absolute": "abs",
}


@lru_cache(maxsize=1024)
def operation_name(operation: Callable[..., Any]) -> str:
    """The name that rule tables use: ``torch.add``, ``Tensor.__radd__`` and ``x + y`` are all ``add``."""
    name = operation.__name__
    if name == "__get__":  # a property such as x.T
        name = operation.__self__.__name__  # type: ignore[attr-defined]
    name = name.removeprefix("__").removesuffix("__")
    return SYNONYMS.get(name, name)


class Propagation(TorchFunctionMode):
    """Computes every operation on the way from ``point`` by its rule.

    Args:
        rules: ``{operation or module class: rule}``.
        epsilon: the stabiliser ε ≥ 0; 0 is the limit ε → 0.
        point: the explained inputs, a leaf that requires grad.
        signed: whether the stabiliser has the sign of what it is added to.
    """

    def __init__(self, rules: Mapping[str, Rule], epsilon: float, point: Tensor, signed: bool = True) -> None:
        super().__init__()
        self.rules, self.epsilon, self.point, self.signed = rules, epsilon, point, signed
        self.seen: set[Any] = set()  # the autograd nodes of what was computed in sight
        self.calls: Counter[str] = Counter()
        self.model: nn.Module | None = None
        self.modules: list[nn.Module] = []  # those whose forward pass is running, the innermost last
        self.atom: nn.Module | None = None  # the module that runs as one operation, its own operations out of sight

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self.atom is not None:
            return func(*args, **kwargs)
        args, kwargs = self._without_parameters(args), self._without_parameters(kwargs) if kwargs else {}
        operands = tensors_with_relevance((args, kwargs))
        if not operands:
            return func(*args, **kwargs)
        name = operation_name(func)
        self.refuse_unseen(operands, name)
        call = self._call(name, func, args, kwargs)
        rule = self.rules.get(name)
        if rule is None:
            result = call.value()
            if tensors_with_relevance(result):
                raise call.unsupported("no rule for this operation")
            return result
        result = self.apply(rule, call)
        # What setitem writes to is its operand.
        self.seen.update([x.grad_fn for x in tensors_with_relevance(args if result is None else result)])
        return result

    def apply(self, rule: Rule, call: OperationCall) -> Any:
        """Compute a call by its rule: a seam for those who watch."""
        result = rule(call)
        return self.written_out(result) if callable(result) else result

    def lend(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """What an atom is given for its arguments: a seam for those who watch."""
        return args

    def refuse_unseen(self, values: list[Tensor], name: str) -> None:
        """Refuse tensors that carry relevance, or seem to, but come from no operation that was seen here.

        Raises:
            Unsupported: as `torch.autograd.Function`, TorchScript and vmap hide their operations.
        """
        for value in values:
            if value is not self.point and value.grad_fn not in self.seen:
                raise Unsupported(
                    f"{name} in {self.where()}: an operand comes from {type(value.grad_fn).__name__}, which hides its "
                    "operations from torch functions (autograd.Function, TorchScript, vmap), or is a constant that "
                    "requires grad: write it in plain torch operations, or detach the constant"
                )

    def written_out(self, steps: Callable[[], Tensor]) -> Tensor:
        """Compute an operation by its steps, each of which meets its own rule."""
        with self:
            return steps()

    def where(self) -> str:
        """The module whose forward pass is running, by the name that the model has for it."""
        if not self.modules or self.model is None:
            return "the model"
        running = self.modules[-1]
        name = next((name for name, module in self.model.named_modules() if module is running), "")
        return f"{name or 'the model'} ({type(running).__name__})"

    def _call(self, name: str, operation: Callable[..., Any], args: Any, kwargs: Any) -> OperationCall:
        number = self.calls[name]
        self.calls[name] += 1
        return OperationCall(name, operation, args, kwargs, self.epsilon, self.where, number, self.signed)

    def _without_parameters(self, values: Any) -> Any:
        """Any leaf but the explained inputs is a constant: weights carry no relevance and get no gradient."""
        kind = type(values)
        if kind is tuple or kind is list:
            return kind([self._without_parameters(value) for value in values])
        if kind is dict:
            return {name: self._without_parameters(value) for name, value in values.items()}
        if isinstance(values, Tensor) and values.requires_grad and values.is_leaf and values is not self.point:
            return values.detach()
        return values

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Follow which module runs, for error messages and atoms, by global hooks that are removed on the way out."""
        self.model = model
        keys = [key for key in self.rules if key[0] == "*" or key[0].isupper()]

        @cache
        def key_of(kind: str) -> str | None:
            return next((key for key in keys if fnmatchcase(kind, key)), None)

        def enter(module: nn.Module, args: Any) -> Any:
            self.modules.append(module)
            if (
                self.atom is None
                and (key := key_of(type(module).__name__))
                and (operands := tensors_with_relevance(args))
            ):
                self.refuse_unseen(operands, key)
                self.atom = module
                return self.lend(args)
            return None

        def leave(module: nn.Module, args: Any, output: Any) -> Any:
            result = output
            key = key_of(type(module).__name__)
            if module is self.atom and key:
                result = self.apply(self.rules[key], self._call(key, lambda *_: output, args, {}))
                self.seen.update([x.grad_fn for x in tensors_with_relevance(result)])
                self.atom = None
            elif self.atom is None and key and tensors_with_relevance(output):
                raise Unsupported(f"{self.where()}: no rule where it is called by keyword")  # hooks see no keywords
            self.modules.pop()
            return result

        handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@dataclass(frozen=True)
class LRP:
    """A method of Layer-wise Relevance Propagation: a table of rules and a stabiliser.

    Bach et al. 2015; Eq. 1 of arXiv 2510.18810. Relevance starts as the explained output itself; where an output has a
    bias, the bias keeps its share.

    Attributes:
        name: the explainer's name.
        rules: ``{operation name: rule}``.
        epsilon: the stabiliser ε ≥ 0 of z + ε·sign z, sign 0 = 1. Nothing is divided by z here, so that the default
            is the limit ε → 0, in which violations have closed forms; arXiv 2510.18810 has 1e-6.
        signed: whether the stabiliser has the sign of z. Without it, z + ε, as some libraries have it, the denominator
            has a zero at z = −ε; see docs/epsilon.md.
    """

    name: str
    rules: Mapping[str, Rule]
    epsilon: float = 0.0
    claims: frozenset[str] = frozenset("invariance linearity scale determinism batching".split())
    signed: bool = True

    def __post_init__(self) -> None:
        if self.epsilon < 0:
            raise ValueError(f"epsilon must be at least 0, got {self.epsilon}")

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """Relevance of each feature: one forward and one backward pass, ``(batch, features)``.

        Raises:
            Unsupported: an operation that carries relevance has no rule; names the operation and the module.
            ZeroDivisionError: the stabiliser has no sign and meets z = −ε; names the same.
        """
        propagation, output = self.propagate(model, case)
        (gradient,) = torch.autograd.grad(output.sum(), propagation.point)
        return per_feature(case.inputs * gradient)

    @torch.enable_grad()
    def propagate(
        self, model: nn.Module, case: Case, kind: type[Propagation] = Propagation
    ) -> tuple[Propagation, Tensor]:
        """The forward pass: what saw it, and the explained output ``(batch,)``, whose gradient carries relevance.

        Args:
            model: what is explained.
            case: on what.
            kind: the `Propagation` that sees it.

        Raises:
            Unsupported: see `attribute`.
        """
        point = case.inputs.detach().clone().requires_grad_()
        propagation = kind(self.rules, self.epsilon, point, self.signed)
        with propagation.following(model), propagation:
            # A copy, in sight: a model may write to its input, and a leaf may not be written to.
            output = replace(case, inputs=point.clone()).run(model)
        propagation.refuse_unseen(tensors_with_relevance(output), "the output")
        if not tensors_with_relevance(output):
            raise Unsupported(f"no relevance reaches the inputs: under {self.name} the output is constant")
        return propagation, select_target(output, case.target)


def EpsilonLRP(epsilon: float = 0.0) -> LRP:
    """ε-LRP (Bach et al. 2015): the ε-rule on linear maps and sums, relevance unchanged by element-wise activations.

    It has no rule for a product of data or a softmax, so it refuses attention.
    """
    return LRP("epsilon_lrp", EPSILON_LRP, epsilon)


def AttnLRP(epsilon: float = 0.0) -> LRP:
    """AttnLRP (Achtibat et al. 2024, arXiv 2402.05602; arXiv 2510.18810, Eqs. 1–5)."""
    return LRP("attnlrp", ATTNLRP, epsilon)


def CPLRP(epsilon: float = 0.0) -> LRP:
    """CP-LRP (Ali et al. 2022, arXiv 2202.07304): attention weights are constants, values take all relevance."""
    return LRP("cplrp", CP_LRP, epsilon)
