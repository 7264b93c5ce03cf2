"""The protocol of an explainer: any object with a ``name`` and a method ``attribute``; no base class is needed."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from types import FunctionType
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case, describe_tensor, refuse_outputs_not_finite
from faithcheck.models.case import input_gradient as input_gradient  # explainers find it here


class Unsupported(Exception):
    """The explainer has no rule for a part of the model. The message names the part and says what to do."""


class InvalidAttribution(Exception):
    """The explainer returned something that is not an attribution of the case."""


class MethodWarning(UserWarning):
    """What a method assumes does not hold for this model or text; a check records it, `explain` says it."""


class CompletenessWarning(MethodWarning):
    """The quadrature of a path integral is too coarse for this model: use more steps."""


class SinkWarning(MethodWarning):
    """A feature is an attention sink, see `faithcheck.explainers.gates.sinks`."""


class ForwardPassesFailed(InvalidAttribution):
    """The explainer returned an attribution, although every forward pass of the model failed."""


Self = TypeVar("Self")
Result = TypeVar("Result")
Further = ParamSpec("Further")
Method = Callable[Concatenate[Self, nn.Module, Case, Further], Result]


EXPORTED_FOR_ONE_SHAPE = (
    "torch.export made the model for inputs of one shape, and the explainer runs others: export it with the batch "
    "among its dynamic_shapes, or explain the module that it was made from"
)


def in_standard_modes(method: Method[Self, Further, Result]) -> Method[Self, Further, Result]:
    """A decorator of an explainer's method of ``(model, case, …)``: it runs in the modes that explainers need.

    The caller's modes are restored afterwards. All built-in explainers have it.

    * The model is in eval mode: no explainer draws dropout, or moves a running mean of batch norm.
    * torch records gradients, and casts nothing automatically; see `_standard_torch_modes`.
    * Tensors of the case and the model that were made in inference mode, and so have no gradient, are copies.

    Raises:
        Unsupported: it is called within a transform of `torch.func`; or it failed, and the model has no gradient.
    """

    @wraps(method)
    def within(self: Self, model: nn.Module, case: Case, /, *args: Further.args, **kwargs: Further.kwargs) -> Result:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise Unsupported(
                "called within a transform of torch.func, such as vmap or grad, which hides the values of tensors: "
                "explain a batch without it"
            )
        with _standard_torch_modes(case.inputs), _eval_mode(model):
            if any(map(Tensor.is_inference, (case.inputs, case.baseline, *case.forward_arguments.values()))):
                case = case.copy()
            try:
                return method(self, model, case, *args, **kwargs)
            except AssertionError as error:
                if "Guard failed" in str(error):
                    raise Unsupported(EXPORTED_FOR_ONE_SHAPE) from error
                raise
            except RuntimeError as error:
                if why := _why_no_gradient(model, case, error):
                    raise Unsupported(why) from error
                raise

    return within


def _why_no_gradient(model: nn.Module, case: Case, error: RuntimeError) -> str:
    """Why a model that can run has no gradient; empty if it has one, if it cannot run, or if memory ran out."""
    if "memory" in str(error):
        return ""
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.no_grad():
            case.run(model)
        try:
            input_gradient(model, case)
        except RuntimeError as failure:
            way_out = "use Leave-One-Out, which needs no gradient"
            if "use_reentrant=True" in str(failure):
                return f"the model has no gradient at its inputs: checkpoint with use_reentrant=False, or {way_out}"
            return f"the model runs, but has no gradient: {way_out} (torch says: {str(failure).splitlines()[0][:200]})"
    return ""


@contextmanager
def _standard_torch_modes(inputs: Tensor) -> Iterator[None]:
    """Within the block, gradients are recorded, autocast is off, and tensors are made on the device of the inputs.

    A default device that no one has set is the CPU, and stays; the default dtype changes no built-in explainer.
    """
    device = torch.get_default_device()
    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))  # which turns gradients on, too
        for kind in {"cpu", inputs.device.type}:
            if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        if device.type != "cpu" and device != inputs.device:
            modes.enter_context(inputs.device)
        yield


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    """Within the block, the model is in eval mode, and its weights that were made in inference mode are copies."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []  # LOO explains any function of tensors
    in_training = [module for module in modules if getattr(module, "training", False)]  # frozen TorchScript has none
    tables: list[dict[str, Any]] = [of for module in modules for of in (module._parameters, module._buffers)]
    replaced = [(table, name, x) for table in tables for name, x in table.items() if x is not None and x.is_inference()]
    copies = {x: _normal_copy(x) for _, _, x in replaced}  # tied weights stay tied
    try:
        for module in in_training:
            module.training = False  # not by eval(), which the modules of an exported program refuse
        for table, name, x in replaced:
            table[name] = copies[x]
        yield
    finally:
        for table, name, x in replaced:
            table[name] = x
        for module in in_training:
            module.training = True


def _normal_copy(x: Tensor) -> Tensor:
    return nn.Parameter(x.clone(), x.requires_grad) if isinstance(x, nn.Parameter) else x.clone()


@runtime_checkable
class Explainer(Protocol):
    """The protocol of an explainer: ``name`` and ``attribute``.

    An explainer describes itself. These attributes are optional; an empty one counts as absent:

    * ``label``: str, the display name in tables and figures, such as ``"Integrated Gradients"``; see `display_label`;
    * ``summary``: str, one line that says what the explainer computes, with its source;
    * ``settings``: str, usually a property: how this explainer is set, in words; see `describe_settings`;
    * ``claims``: a collection of axiom names that the explainer claims to satisfy, such as ``{"invariance"}``;
    * ``expected``: ``{(axiom, pair or glob): Expectation}``, what holds on a subject, and the known violations;
    * ``like``: str, the built-in explainer that this one implements anew: it is held to that one's claims and
      expectations, closed forms included; the option ``--like`` sets it;
    * ``max_tokens``: int, the most features, padding included, in one forward pass: `faithcheck align` and `explain`
      make it smaller where memory is short;
    * ``origin``: str, the library that computes the attribution, such as ``"captum 0.9.0"``;
    * ``guessed``: str, how an adapter calls the object, if it judged the call by the signature alone, see
      `faithcheck.explainers.adapters`. The report shows ``origin`` and ``guessed``.
    """

    @property
    def name(self) -> str:
        """The name in test ids, reports and on the command line."""
        ...

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """Explain the output ``case.target`` of ``model(case.inputs)``.

        Returns:
            One finite floating-point number per feature, ``(batch, features)``, in the dtype of the inputs.

        Raises:
            Unsupported: the explainer has no rule for a part of the model.
        """
        ...


@runtime_checkable
class MadeElsewhere(Protocol):
    """An explainer whose maps were made elsewhere: it runs nothing, and looks maps up by the names of the models."""

    made_elsewhere: Literal[True]

    def of_models(self, models: Iterable[tuple[nn.Module, str]]) -> Explainer:
        """The same maps for these models, each with the name of its subject."""
        ...


def display_label(explainer: Explainer) -> str:
    """The explainer's name in tables and figures: its attribute ``label``, else its ``name``."""
    return str(getattr(explainer, "label", "") or explainer.name)


def expected_like(explainer: Explainer) -> str:
    """The name under which theory knows the explainer: the built-in explainer that it is like, or its own name."""
    return str(getattr(explainer, "like", "") or explainer.name)


def describe_settings(explainer: object) -> str:
    """The settings of an explainer or a removal, in words: its attribute ``settings``, else the path of its class."""
    kind = type(explainer)
    return str(getattr(explainer, "settings", "") or f"{kind.__module__}.{kind.__qualname__}")


def checked_attribution(attribution: object, case: Case) -> Tensor:
    """A detached copy of the attribution as a plain tensor, after a check that it is an attribution of the case.

    Everything that explainers return enters the suite here: what is measured on it is torch's own arithmetic.

    Raises:
        InvalidAttribution: not a tensor, not floating point, sparse, of another shape, device or dtype, not finite, or
            of a class that computes by itself.
    """
    if not isinstance(attribution, Tensor):
        raise InvalidAttribution(f"expected a tensor, got {type(attribution).__name__}")
    attribution = _as_plain(attribution)
    if attribution.is_nested or attribution.layout != torch.strided:
        kind = "nested" if attribution.is_nested else str(attribution.layout).removeprefix("torch.")
        raise InvalidAttribution(f"expected a dense tensor, got a {kind} one: convert with .to_dense()")
    got = describe_tensor(attribution)
    if not attribution.is_floating_point():
        raise InvalidAttribution(f"expected floating point, got {got}: convert with .to(inputs.dtype)")
    if attribution.shape != case.shape:
        raise InvalidAttribution(f"expected shape (batch, features) = {tuple(case.shape)}, got {got}")
    if attribution.device != case.inputs.device:
        raise InvalidAttribution(f"expected a tensor on {case.inputs.device}, got {got}")
    not_finite = int((~torch.isfinite(attribution)).sum())
    if not_finite:
        raise InvalidAttribution(f"{not_finite} of {attribution.numel()} values are NaN or infinite")
    if attribution.dtype != case.inputs.dtype:
        raise InvalidAttribution(f"expected the inputs' {case.inputs.dtype}, got {got}: convert with .to(inputs.dtype)")
    return attribution.detach().resolve_neg().clone(memory_format=torch.contiguous_format)


def _as_plain(attribution: Tensor) -> Tensor:
    """The values of a tensor of any class as a plain one, so that no method of a subclass runs in a check.

    Raises InvalidAttribution if its values are computed by its class, so that there is no plain tensor.
    """
    kind = type(attribution)
    with torch._C.DisableTorchFunctionSubclass(), suppress(RuntimeError, NotImplementedError):
        plain = attribution if kind is Tensor else Tensor.as_subclass(attribution, Tensor)
        if type(plain) is Tensor and not torch._C._dispatch_keys(plain).has(torch._C.DispatchKey.Python):
            return plain
    name = f"{kind.__module__}.{kind.__qualname__}"
    raise InvalidAttribution(f"expected a plain torch.Tensor, got {name}, which computes its values: convert it")


def attribution_of(explainer: Explainer, model: nn.Module, case: Case) -> Tensor:
    """The explainer's attribution of a case, ``(batch, features)``, a detached copy.

    The explainer gets a copy of the case, so that an explainer that writes to its inputs does not spoil later checks.

    Raises:
        InvalidAttribution: see `checked_attribution`; or the explainer changed the case in place.
        InvalidOutput: the model gives no outputs ``(batch, outputs)``, or the map is wrong where they are not finite.
        ForwardPassesFailed: the explainer ran the model, and no forward pass succeeded.
        Unsupported: from the explainer.
        ValueError: an example is padding alone.
    """
    given: object = model
    if not isinstance(given, nn.Module):
        way_out = "give its .module()" if type(given).__name__ == "ExportedProgram" else "wrap it in one"
        raise Unsupported(f"expected a torch.nn.Module, got {type(given).__name__}: {way_out}")
    if not bool(case.unpadded.any(1).all()):
        raise ValueError(
            "attention_mask has a row of zeros: it is 1 at features and 0 at padding, the opposite of torch's masks, "
            "and an example has at least one feature"
        )
    copied = case.copy()
    passes = Counter[str]()
    with observed_forward_passes(model, lambda: passes.update(["begun"]), lambda: passes.update(["succeeded"])):
        returned = explainer.attribute(model, copied)
    if passes["begun"] and not passes["succeeded"]:
        raise ForwardPassesFailed(
            "the explainer returned an attribution although every forward pass of the model failed: it must not catch "
            "the model's errors"
        )
    try:
        attribution = checked_attribution(returned, case)
    except InvalidAttribution:
        refuse_outputs_not_finite(model, case)  # then the map is not the explainer's fault
        raise
    for name in ("inputs", "baseline", "target"):
        if not torch.equal(getattr(copied, name), getattr(case, name)):
            raise InvalidAttribution(f"the explainer, or the model that it ran, changed case.{name} in place")
    for name, value in case.forward_arguments.items():
        if not torch.equal(copied.forward_arguments[name], value):
            raise InvalidAttribution(
                f"the explainer, or the model that it ran, changed case.forward_arguments[{name!r}] in place"
            )
    return attribution


@contextmanager
def observed_forward_passes(
    model: nn.Module, begin: Callable[[], object], succeed: Callable[[], object]
) -> Iterator[None]:
    """Within the block, call ``begin`` before and ``succeed`` after each forward pass of the model and of its copies.

    ``model.forward(…)`` is a forward pass, as ``model(…)`` is. The latter calls the former, and then each function is
    called twice. Other modules of the model's own class are observed, too. TorchScript is not observed: it
    has no hooks.
    """
    if isinstance(model, torch.jit.ScriptModule):
        yield
        return

    # Functions, because a copy of the model shares them: its passes count too. Methods would be copied with it.
    def before(*_: object) -> None:
        begin()

    def after(*_: object) -> None:
        succeed()

    # The hooks see a model whose ``forward`` is an attribute of the instance, the method sees ``model.forward(…)``.
    handles = (model.register_forward_pre_hook(before), model.register_forward_hook(after))
    try:
        with _observed_method(type(model), begin, succeed):
            yield
    finally:
        for handle in handles:
            handle.remove()


def only_observes(hook: Callable[..., object]) -> bool:
    """Whether a hook is one of `observed_forward_passes`, which looks at no tensor."""
    return getattr(hook, "__module__", None) == __name__


@contextmanager
def _observed_method(
    kind: type[nn.Module], begin: Callable[[], object], succeed: Callable[[], object]
) -> Iterator[None]:
    """Within the block, the class's method ``forward`` calls both functions; what is no function stays as it is."""
    own, method = vars(kind).get("forward"), kind.forward
    if not isinstance(method, FunctionType):
        yield
        return

    @wraps(method)
    def forward(*arguments: Any, **named: Any) -> Any:
        begin()
        output = method(*arguments, **named)
        succeed()
        return output

    kind.forward = forward
    try:
        yield
    finally:
        if vars(kind).get("forward") is forward:  # if the explainer replaced it, `trace` must find that
            if own is None:
                del kind.forward
            else:
                kind.forward = own


def per_feature(attribution: Tensor) -> Tensor:
    """Sum over the coordinates of each feature: ``(batch, features, …)`` to ``(batch, features)``."""
    return attribution if attribution.dim() == 2 else attribution.flatten(2).sum(2)


def replacement_value(case: Case, name: str) -> Tensor:
    """The replacement of this name in ``case.replacements``, shaped like one feature; Unsupported if there is none."""
    if name not in case.replacements:
        names = ", ".join(case.replacements) or "none"
        raise Unsupported(f"the case has no replacement {name!r} (it has: {names}): choose another")
    return case.replacements[name]
