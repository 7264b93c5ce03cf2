"""Explainers made of objects that do not follow the protocol of this project.

`from_function` and `from_captum` are told how to call the object. `as_explainer` judges it by the parameters, and the
explainer that it makes says in ``guessed`` what was judged; the report shows it.

Neither kind of object knows a `Case`. If a case has forward arguments (an attention mask), the object gets one example
at a time, and a model that passes the forward arguments of that example, repeated for as many rows as it is called on.
"""

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from faithcheck.explainers.protocol import Explainer, InvalidAttribution, per_feature
from faithcheck.models.case import Case
from faithcheck.models.unknown_name import unknown_name

AttributionFunction: TypeAlias = Callable[[nn.Module, Case], object]
Make: TypeAlias = Callable[[nn.Module], Any]
CallShape: TypeAlias = Literal["(model, case)", "(model, inputs, target)", "(inputs, target)", "(model)"]

EXPECTED = (
    "expected `attribute(model, case)` with a string `name`, a function or object of `(model, inputs, target)`, "
    "or a class like captum's, made for a model, with `attribute(inputs, target=…)`"
)
OPTIONAL_ARGUMENTS = ("baselines", "feature_mask")
"""What `from_captum` can pass besides the inputs and the target: the baseline of the case, and `feature_mask`."""
OPTIONAL_ARGUMENTS_GUESS = "attribute is passed baselines and feature_mask if it has these parameters"
CAPTUM_GUESS = f"attribute called as (inputs, target=target); {OPTIONAL_ARGUMENTS_GUESS}"
JUDGED = "judged by its parameters"
TARGET = re.compile(r"target|label|class|index|idx|output|logit", re.IGNORECASE)
"""What a parameter that takes the target has in its name; a name of one letter says nothing, and is taken too."""
CAST = "from_captum(…, cast=True) converts it, and the report says so"


class NotAnExplainer(ValueError):
    """The object cannot be called as an explainer. The message says what was expected and what the object is."""


@dataclass(frozen=True)
class AdaptedExplainer:
    """An explainer made of an object that does not follow the protocol.

    ``call`` gives an attribution shaped like the inputs, or ``(batch, features)``; ``cast`` converts it to the dtype of
    the inputs. ``guessed`` says how the object is called if that was judged by its parameters, else "".
    """

    name: str
    call: AttributionFunction
    claims: Collection[str] = ()
    expected: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    label: str = ""
    summary: str = ""
    guessed: str = ""
    like: str = ""
    cast: bool = False

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """Explain ``case.target``: floating point ``(batch, features)``, summed over the coordinates of a feature."""
        if not case.forward_arguments:
            return self._explain(model, case)
        rows = torch.arange(len(case.inputs), device=case.inputs.device)
        parts = [self._explain(model, case.select(row)) for row in rows.unsqueeze(1)]
        not_tensors = [part for part in parts if not isinstance(part, Tensor)]
        return not_tensors[0] if not_tensors else torch.cat(parts)  # `checked_attribution` refuses what is no tensor

    def _explain(self, model: nn.Module, case: Case) -> Tensor:
        attribution: Any = self.call(with_forward_arguments(model, case), case)
        per_coordinate = isinstance(attribution, Tensor) and attribution.shape == case.inputs.shape
        return per_feature(attribution) if per_coordinate else attribution


class WithForwardArguments(nn.Module):
    """A model as a function of its inputs ``(rows, features, …)`` alone, with the forward arguments of one example."""

    def __init__(self, model: nn.Module, case: Case) -> None:
        super().__init__()
        self.model = model
        self.forward_arguments = dict(case.forward_arguments)
        self.training = model.training

    def forward(self, inputs: Tensor) -> Tensor:
        """The model's outputs for these rows: ``(rows, outputs)``."""
        rows = len(inputs)
        repeated = {name: value.expand(rows, *value.shape[1:]) for name, value in self.forward_arguments.items()}
        output: Tensor = self.model(inputs, **repeated)
        return output


def with_forward_arguments(model: nn.Module, case: Case) -> nn.Module:
    """The model as a function of its inputs alone: the model itself, or with the forward arguments of the case."""
    return WithForwardArguments(model, case) if case.forward_arguments else model


def from_function(
    function: Callable[[nn.Module, Tensor, Tensor], object],
    *,
    name: str | None = None,
    claims: Collection[str] = (),
    expected: Mapping[tuple[str, str], Any] | None = None,
    label: str = "",
    summary: str = "",
) -> AdaptedExplainer:
    """An explainer made of a function that is called as ``function(model, inputs, target)``.

    The function gets the model, whose outputs are ``(batch, outputs)``; the inputs ``(batch, features, …)``; and the
    target ``(batch,)``, int64, the output to explain of each example. It returns an attribution shaped like the inputs,
    which is then summed over the coordinates of each feature, or ``(batch, features)``.

    Args:
        function: computes the attribution.
        name: the explainer's name; by default the function's.
        claims: see `Explainer`; so for ``expected``, ``label`` and ``summary``.
        expected: the known violations.
        label: the display name; by default the name.
        summary: one line that says what the explainer computes.

    Raises:
        NotAnExplainer: the object is not callable.
    """
    if not callable(function):
        raise NotAnExplainer(f"expected a function of (model, inputs, target), got {_described(function)}")
    name = name or _name(function)
    return AdaptedExplainer(
        name,
        lambda model, case: function(model, case.inputs, case.target),
        claims,
        expected or {},
        label or name,
        summary,
    )


def from_captum(
    make: Make,
    *,
    arguments: Collection[str] | None = None,
    cast: bool = False,
    name: str | None = None,
    claims: Collection[str] = (),
    expected: Mapping[tuple[str, str], Any] | None = None,
    label: str = "",
    summary: str = "",
) -> AdaptedExplainer:
    """An explainer made of a class like those of ``captum.attr``: ``make(model).attribute(inputs, target=target)``.

    ``inputs`` are ``(batch, features, …)`` and require grad; ``target`` is ``(batch,)``, int64. ``attribute`` returns
    an attribution shaped like the inputs, which is then summed over the coordinates of each feature, or
    ``(batch, features)``. With a feature mask captum repeats a feature's attribution in each of its coordinates: then
    the first coordinate is taken instead of the sum.

    Args:
        make: a class, or a function of one model, that returns an object with the method ``attribute``.
        arguments: what is passed besides, by keyword: any of "baselines" (the baseline of the case, shaped like the
            inputs) and "feature_mask" (see `feature_mask`). By default those that are parameters of ``attribute``.
        cast: convert an attribution of another floating-point type to that of the inputs, instead of refusing it. Some
            classes of captum, such as ``Lime``, always compute in float32, whose round-off is above the tolerance.
        name: the explainer's name; by default the name of the class or function.
        claims: see `Explainer`; so for ``expected``, ``label`` and ``summary``.
        expected: the known violations.
        label: the display name; by default the name.
        summary: one line that says what the explainer computes.

    Raises:
        NotAnExplainer: the object is not callable.
        ValueError: an unknown argument.
    """
    if not callable(make):
        raise NotAnExplainer(f"expected a class, or a function of one model, got {_described(make)}")
    for argument in arguments or ():
        if argument not in OPTIONAL_ARGUMENTS:
            raise ValueError(unknown_name("argument of attribute", argument, OPTIONAL_ARGUMENTS))
    name = name or _name(make)
    return AdaptedExplainer(
        name,
        _captum_call(make, arguments, cast),
        claims,
        expected or {},
        label or name,
        summary,
        guessed="" if arguments is not None else f"{OPTIONAL_ARGUMENTS_GUESS}, {JUDGED}",
        cast=cast,
    )


def _captum_call(make: Make, arguments: Collection[str] | None, cast: bool = False) -> AttributionFunction:
    """Make the object for the model, call its ``attribute``, and convert what it returns if ``cast``."""

    def call(model: nn.Module, case: Case) -> object:
        attribute = make(model).attribute
        accepted = inspect.signature(attribute).parameters if arguments is None else arguments
        available = {"baselines": case.baseline, "feature_mask": feature_mask(case)}
        passed = {key: value for key, value in available.items() if key in accepted}
        point = case.inputs.detach().clone().requires_grad_()  # captum warns if it has to change the inputs
        attribution = attribute(point, target=case.target, **passed)
        if isinstance(attribution, Tensor) and attribution.is_floating_point() and attribution.dtype != point.dtype:
            if not cast:
                raise InvalidAttribution(f"expected the inputs' {point.dtype}, got {attribution.dtype}: {CAST}")
            attribution = attribution.to(point.dtype)
        per_coordinate = isinstance(attribution, Tensor) and attribution.shape == case.inputs.shape
        return first_coordinate(attribution) if "feature_mask" in passed and per_coordinate else attribution

    return call


def feature_mask(case: Case) -> Tensor:
    """The number of the feature that each coordinate of an example belongs to: int64 ``(1, features, …)``.

    captum's ablation takes it. Without a mask, an ablation removes single coordinates of a token's embedding.
    """
    numbers = torch.arange(case.shape[1], device=case.inputs.device)
    return numbers.reshape(1, -1, *[1] * (case.inputs.dim() - 2)).expand(1, *case.inputs.shape[1:])


def first_coordinate(attribution: Tensor) -> Tensor:
    """The attribution of captum with a feature mask, as ``(batch, features)``.

    captum repeats the attribution of the whole feature in each of its coordinates.
    """
    return attribution.flatten(2)[:, :, 0] if attribution.dim() > 2 else attribution


def as_explainer(candidate: Any, name: str | None = None) -> Explainer:
    """Any explainer, by the protocol of this project; an object that follows the protocol is returned unchanged.

    How to call another object is judged by its parameters; `from_function` and `from_captum` do not judge. A
    class whose constructor needs no arguments is called without any.

    Args:
        candidate: an explainer, a function of ``(model, inputs, target)``, an object that is called so or has such a
            method ``attribute``, or an object like captum's: the class, a function that makes one for a model, or an
            instance.
        name: the name if the object has no string ``name``; by default the name of the function or class.

    Raises:
        NotAnExplainer: the message says what was expected, and what the object is.
    """
    _refuse_without_target(candidate)
    if isinstance(candidate, type):
        if _is_made_for_a_model(candidate):
            guess = f"made as {candidate.__name__}(model); {CAPTUM_GUESS}"
            return _adapted(candidate, name, _captum_call(candidate, None), guess)
        candidate = _made_without_arguments(candidate)
    method = getattr(candidate, "attribute", None)
    shape = _call_shape(candidate if method is None else method)
    if shape == "(model, case)" and method is not None:
        if not isinstance(getattr(candidate, "name", None), str):
            raise NotAnExplainer(f"{EXPECTED}; found {_described(candidate)}, without a string `name`")
        explainer: Explainer = candidate
        return explainer
    if shape == "(model, inputs, target)":
        _refuse_no_target(candidate if method is None else method)
        return _adapted(candidate, name, *_function_call(candidate, method))
    if shape == "(inputs, target)" and method is not None:
        guess = f"copied, with each checked model as its forward_func; {CAPTUM_GUESS}"
        return _adapted(candidate, name, _captum_call(_copies_for_models(candidate), None), guess)
    if shape == "(model)" and method is None:
        guess = f"called with each model to make it; {CAPTUM_GUESS}"
        return _adapted(candidate, name, _captum_call(candidate, None), guess)
    raise NotAnExplainer(f"{EXPECTED}; found {_described(candidate)}")


def _refuse_without_target(candidate: Any) -> None:
    """Raise NotAnExplainer for a class like captum's, or an object of it, whose ``attribute`` takes no target."""
    attribute = getattr(candidate, "attribute", None)
    kind = candidate if isinstance(candidate, type) else type(candidate)
    if attribute is None or len(_required_parameters(kind) or []) != 1:
        return
    skip = int(isinstance(candidate, type))  # the class's `attribute` is not bound: it has one more parameter, self
    if _call_shape(attribute, skip) == "(model)":
        parameters = ", ".join(list(inspect.signature(attribute).parameters)[skip:])
        raise NotAnExplainer(
            f"{kind.__name__}.attribute({parameters}) has no parameter `target`, the output to explain of each "
            "example: add `target=None`, and explain that output"
        )


def _refuse_no_target(function: Any) -> None:
    """Raise NotAnExplainer for a function of three parameters whose third, by its name, is not the target."""
    names = _required_parameters(function) or []
    third = names[2] if len(names) > 2 and "target" not in inspect.signature(function).parameters else "target"
    if len(third.strip("_")) > 1 and not TARGET.search(third):
        raise NotAnExplainer(
            f"the third parameter of {_name(function)}({', '.join(names)}) is {third!r}, and it would get the target: "
            "name it `target` if it is; else give from_function(lambda model, inputs, target: …), or an object with "
            "`attribute(model, case)`, where case.forward_arguments has the attention mask"
        )


def _is_made_for_a_model(kind: type) -> bool:
    """Whether a class looks like captum's: one required argument, and ``attribute(inputs, target=…)``."""
    one_argument = len(_required_parameters(kind) or []) == 1
    # The class's `attribute` is not bound: it has one more parameter, self.
    return one_argument and _call_shape(getattr(kind, "attribute", None), skip=1) == "(inputs, target)"


def _made_without_arguments(kind: type) -> Any:
    if required := _required_parameters(kind):
        raise NotAnExplainer(
            f"{kind.__name__} is made of ({', '.join(required)}): give an object of it or, if it is made for a model, "
            "a function of one model that makes it, with `attribute(inputs, target=…)`"
        )
    return kind()


def _function_call(candidate: Any, method: Any) -> tuple[AttributionFunction, str]:
    """How to call a function or method of (model, inputs, target), and the guess in words."""
    function = candidate if method is None else method
    words = "called as" if method is None else "attribute called as"
    parameters = inspect.signature(function).parameters
    target = parameters.get("target")
    if target is not None and (target.kind is target.KEYWORD_ONLY or list(parameters).index("target") != 2):
        by_keyword = f"{words} (model, inputs, target=target)"
        return lambda model, case: function(model, case.inputs, target=case.target), by_keyword
    return lambda model, case: function(model, case.inputs, case.target), f"{words} (model, inputs, target)"


def _adapted(candidate: Any, name: str | None, call: AttributionFunction, guess: str) -> AdaptedExplainer:
    """The explainer of an object that describes itself by the optional attributes of `Explainer`."""
    own = getattr(candidate, "name", None)
    name = own if isinstance(own, str) else name or _name(candidate)
    return AdaptedExplainer(
        name,
        call,
        getattr(candidate, "claims", ()),
        getattr(candidate, "expected", {}),
        getattr(candidate, "label", name),
        getattr(candidate, "summary", ""),
        f"{guess}, {JUDGED}",
        getattr(candidate, "like", ""),
    )


def _name(candidate: object) -> str:
    return str(getattr(candidate, "__name__", type(candidate).__name__))


def _copies_for_models(instance: Any) -> Make:
    """A function that copies an instance made for one model, with another model in its place.

    Raises NotAnExplainer if the instance is not made for a module, or also refers to a part of it.
    """
    owner = getattr(instance, "forward_func", None)
    if not isinstance(owner, nn.Module):
        raise NotAnExplainer(
            f"{_described(instance)} is not made for a module (as `forward_func`), so that no other model can take its "
            "place: give the class, or a function of one model that makes it"
        )
    submodules = list(owner.modules())[1:]
    inside = [key for key, value in vars(instance).items() if any(value is part for part in submodules)]
    if inside:
        raise NotAnExplainer(
            f"{_described(instance)} is made for a part of one model ({', '.join(inside)}): give a function of one "
            "model that makes it"
        )
    return lambda model: deepcopy(instance, {id(owner): model})


def _call_shape(call: object, skip: int = 0) -> CallShape | None:
    """How to call an object, judged by its required parameters after the first ``skip``; None if no shape fits.

    ``target`` may be optional: it distinguishes ``(inputs, target=…)`` from ``(model, case)``. ``baselines`` do not
    count, because they can be passed.
    """
    required = _required_parameters(call)
    if required is None:
        return None
    has_target = "target" in inspect.signature(call).parameters  # type: ignore[arg-type]
    count = len([name for name in required if name not in ("target", "baselines")]) - skip
    if has_target and count > 1 and required[skip : skip + 1] == ["inputs"]:
        return None  # like captum's, but it requires more than the case has
    with_target: dict[int, CallShape] = {1: "(inputs, target)", 2: "(model, inputs, target)"}
    without_target: dict[int, CallShape] = {1: "(model)", 2: "(model, case)", 3: "(model, inputs, target)"}
    return (with_target if has_target else without_target).get(count)


def _required_parameters(call: object) -> list[str] | None:
    """The positional parameters without a default; None for an object that has no signature."""
    try:
        parameters = inspect.signature(call).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in positional and p.default is p.empty]


def _described(candidate: object) -> str:
    return f"{type(candidate).__name__} {candidate!r:.80}"
