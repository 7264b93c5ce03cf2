"""Anyone's explainer, taken as it is: a function of model, inputs and target, or an object like those of captum.

Three ways to call one are known, told apart by the signature:

* ``attribute(model, case)``: the protocol of this project;
* ``(model, inputs, target)``, a function, or the method ``attribute`` or ``__call__`` of an object;
* ``attribute(inputs, target=…)`` of an object that was made for one model, as ``captum.attr`` has them; given as the
  class, as a function that makes one for a model, or as an instance.

The two last know no `Case`. Where a case calls its model with more than the inputs (an attention mask), they are given
one example at a time, and a model that adds that example's context to however many rows they run it on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from faithcheck.explainers.protocol import Explainer, per_feature
from faithcheck.models.case import Case

Call: TypeAlias = Callable[[nn.Module, Case], object]
Make: TypeAlias = Callable[[nn.Module], Any]

EXPECTED = (
    "expected `attribute(model, case)` with a string `name`, a function or object of `(model, inputs, target)`, "
    "or a class like captum's, made for a model, with `attribute(inputs, target=…)`"
)


class NotAnExplainer(ValueError):
    """The object cannot be called as an explainer. The message says what was expected and what was found."""


@dataclass(frozen=True)
class Adapted:
    """An explainer made of an object that does not follow our protocol.

    Attributes:
        name: its name in test ids and reports.
        call: what it gives for a model and a case: shaped like the inputs, or ``(batch, features)``.
        claims: see `Explainer`.
        expected: see `Explainer`.
    """

    name: str
    call: Call
    claims: Collection[str] = ()
    expected: Mapping[tuple[str, str], Any] = field(default_factory=dict)

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """Explain ``case.target``: floating point ``(batch, features)``, summed over what is behind a feature."""
        if not case.forward_arguments:
            return self._explain(model, case)
        rows = torch.arange(len(case.inputs), device=case.inputs.device)
        parts = [self._explain(model, case.select(row)) for row in rows.unsqueeze(1)]
        strange = [part for part in parts if not isinstance(part, Tensor)]
        return strange[0] if strange else torch.cat(parts)

    def _explain(self, model: nn.Module, case: Case) -> Tensor:
        found: Any = self.call(in_context(model, case), case)
        whole = isinstance(found, Tensor) and found.shape == case.inputs.shape
        return per_feature(found) if whole else found  # what is no attribution, `checked_attribution` refuses


class InContext(nn.Module):
    """A model as a function of its inputs alone, ``(rows, features, …)`` of one example in its context."""

    def __init__(self, model: nn.Module, case: Case) -> None:
        super().__init__()
        self.model = model
        self.forward_arguments = dict(case.forward_arguments)
        self.training = model.training

    def forward(self, inputs: Tensor) -> Tensor:
        """What the model makes of these rows: ``(rows, outputs)``."""
        context = {name: value.expand(len(inputs), *value.shape[1:]) for name, value in self.forward_arguments.items()}
        output: Tensor = self.model(inputs, **context)
        return output


def in_context(model: nn.Module, case: Case) -> nn.Module:
    """The model itself; where the case, of one example, has a context, the model in it."""
    return InContext(model, case) if case.forward_arguments else model


def as_explainer(found: Any, name: str | None = None) -> Explainer:
    """Anyone's explainer by our protocol; one that follows it already is returned as it is.

    Args:
        found: an explainer, see the module's docstring; a class that needs no arguments is called without any.
        name: what to call it where it has no string ``name``; default: the name of the function or class.

    Raises:
        NotAnExplainer: says what was expected, and what was found.
    """
    if isinstance(found, type):
        takes = _required(found) or []
        # Of the class, `attribute` is not bound yet, and takes one more: self.
        if len(takes) == 1 and _style(getattr(found, "attribute", None), before=1) == "inputs":
            return _adapted(found, name, _like_captum(found))
        if takes:
            raise NotAnExplainer(
                f"{found.__name__} is made of ({', '.join(takes)}): give an object of it or, where it is made for a "
                "model, a function of one model that makes one with `attribute(inputs, target=…)`"
            )
        found = found()
    method = getattr(found, "attribute", None)
    how = _style(found if method is None else method)
    if how == "case" and method is not None:
        if not isinstance(getattr(found, "name", None), str):
            raise NotAnExplainer(f"{EXPECTED}; found {_described(found)}, without a string `name`")
        explainer: Explainer = found
        return explainer
    if how == "triple":
        call = found if method is None else method
        parameter = inspect.signature(call).parameters.get("target")
        if parameter is not None and parameter.kind is parameter.KEYWORD_ONLY:
            return _adapted(found, name, lambda model, case: call(model, case.inputs, target=case.target))
        return _adapted(found, name, lambda model, case: call(model, case.inputs, case.target))
    if how == "inputs" and method is not None:
        return _adapted(found, name, _like_captum(_rebound(found)))
    if how == "model" and method is None:
        return _adapted(found, name, _like_captum(found))
    raise NotAnExplainer(f"{EXPECTED}; found {_described(found)}")


def _adapted(found: Any, name: str | None, call: Call) -> Adapted:
    own = getattr(found, "name", None)
    named = own if isinstance(own, str) else name or str(getattr(found, "__name__", type(found).__name__))
    return Adapted(named, call, getattr(found, "claims", ()), getattr(found, "expected", {}))


def feature_mask(case: Case) -> Tensor:
    """Which feature each coordinate of an example belongs to, as captum takes it: int64 ``(1, features, …)``.

    Without one, an ablation removes single coordinates of a token's embedding.
    """
    numbers = torch.arange(case.shape[1], device=case.inputs.device)
    return numbers.reshape(1, -1, *[1] * (case.inputs.dim() - 2)).expand(1, *case.inputs.shape[1:])


def _like_captum(make: Make) -> Call:
    """Call what is made for a model as captum's are: whoever has a place for them gets baseline and features."""

    def call(model: nn.Module, case: Case) -> object:
        attribute = make(model).attribute
        known = {"baselines": case.baseline, "feature_mask": feature_mask(case)}
        given = {key: value for key, value in known.items() if key in inspect.signature(attribute).parameters}
        point = case.inputs.detach().clone().requires_grad_()  # captum warns of inputs that it has to change
        found = attribute(point, target=case.target, **given)
        whole = "feature_mask" in given and isinstance(found, Tensor) and found.shape == case.inputs.shape
        return of_feature(found) if whole else found

    return call


def of_feature(found: Tensor) -> Tensor:
    """What captum says with a mask, ``(batch, features)``: each coordinate has the figure of the whole feature."""
    return found.flatten(2)[:, :, 0] if found.dim() > 2 else found


def _rebound(found: Any) -> Make:
    """A maker of copies of an instance, each with another model in the place of the one that it was made for."""
    owner = getattr(found, "forward_func", None)
    if not isinstance(owner, nn.Module):
        raise NotAnExplainer(
            f"{_described(found)} is not made for a module (as `forward_func`), so that no other can take its place: "
            "give the class, or a function of one model that makes it"
        )
    inside = [key for key, value in vars(found).items() if any(value is part for part in list(owner.modules())[1:])]
    if inside:
        raise NotAnExplainer(
            f"{_described(found)} is made for a part of one model ({', '.join(inside)}): give a function of one model "
            "that makes it"
        )
    return lambda model: deepcopy(found, {id(owner): model})


def _style(call: object, before: int = 0) -> str:
    """How it is called behind its first parameters: with a "case", a "triple", "inputs" or a "model"; "" with none.

    A parameter ``target`` may be optional: it tells ``(inputs, target=…)`` from ``(model, case)``; ``baselines`` are at
    hand, and do not count.
    """
    takes = _required(call)
    if takes is None:
        return ""
    targeted = "target" in inspect.signature(call).parameters  # type: ignore[arg-type]
    count = len([name for name in takes if name not in ("target", "baselines")]) - before
    if targeted and count > 1 and takes[before : before + 1] == ["inputs"]:
        return ""  # captum's, with more than we have to give
    return ({1: "inputs", 2: "triple"} if targeted else {1: "model", 2: "case", 3: "triple"}).get(count, "")


def _required(call: object) -> list[str] | None:
    """The positional parameters without a default; None for what has no signature."""
    try:
        parameters = inspect.signature(call).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters if one.kind in positional and one.default is one.empty]


def _described(found: object) -> str:
    return f"{type(found).__name__} {found!r:.80}"
