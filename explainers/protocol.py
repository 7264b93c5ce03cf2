"""What an explainer is: anything with a name and an ``attribute`` method; no base class needed."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from faithcheck.models.case import Case, describe_tensor
from faithcheck.models.case import input_gradient as input_gradient  # explainers find it here


class Unsupported(Exception):
    """The explainer has no rule for something it met, and does not guess. The message names it and the way out."""


class InvalidAttribution(Exception):
    """What the explainer returned is not an attribution of the case."""


@runtime_checkable
class Explainer(Protocol):
    """The protocol of an explainer.

    Three optional attributes are read if present:

    * ``claims``: a collection of axiom names that the explainer claims to satisfy, such as ``{"invariance"}``;
    * ``expected``: ``{(axiom, pair or glob): Expectation}``, its known violations;
    * ``origin``: what it is the explainer of, for the report, such as ``"captum 0.9.0"``.
    """

    @property
    def name(self) -> str:
        """The name in test ids and reports."""
        ...

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """Explain ``case.target`` of ``model(case.inputs)``: floating point ``(batch, features)``.

        Raises:
            Unsupported: the explainer has no rule for something in the model.
        """
        ...


def checked_attribution(attribution: object, case: Case) -> Tensor:
    """Return a copy of the attribution, detached, if it is one of the case.

    Raises:
        InvalidAttribution: not a tensor, not floating point, of the wrong shape, device or dtype, or not finite.
    """
    if not isinstance(attribution, Tensor):
        raise InvalidAttribution(f"expected a tensor, got {type(attribution).__name__}")
    got = describe_tensor(attribution)
    if not attribution.is_floating_point():
        raise InvalidAttribution(f"expected floating point, got {got}: convert with .to(inputs.dtype)")
    if attribution.shape != case.shape:
        raise InvalidAttribution(f"expected shape (batch, features) = {tuple(case.shape)}, got {got}")
    if attribution.device != case.inputs.device:
        raise InvalidAttribution(f"expected a tensor on {case.inputs.device}, got {got}")
    bad = int((~torch.isfinite(attribution)).sum())
    if bad:
        raise InvalidAttribution(f"{bad} of {attribution.numel()} values are NaN or infinite")
    if attribution.dtype != case.inputs.dtype:
        raise InvalidAttribution(f"expected the inputs' {case.inputs.dtype}, got {got}: convert with .to(inputs.dtype)")
    return attribution.detach().clone()


def attribution_of(explainer: Explainer, model: nn.Module, case: Case) -> Tensor:
    """The explainer's attribution of a case, ``(batch, features)``, in memory of its own.

    The explainer works on a copy of the case, so that one that writes to its inputs spoils no later check.

    Raises:
        InvalidAttribution: see `checked_attribution`; or the explainer changed the case.
        Unsupported: from the explainer.
    """
    lent = case.select(torch.arange(len(case.inputs), device=case.inputs.device))
    attribution = checked_attribution(explainer.attribute(model, lent), case)
    for name in ("inputs", "baseline", "target"):
        if not torch.equal(getattr(lent, name), getattr(case, name)):
            raise InvalidAttribution(f"the explainer, or the model it ran, changed case.{name} in place")
    for name, value in case.forward_arguments.items():
        if not torch.equal(lent.forward_arguments[name], value):
            raise InvalidAttribution(
                f"the explainer, or the model it ran, changed case.forward_arguments[{name!r}] in place"
            )
    return attribution


def per_feature(attribution: Tensor) -> Tensor:
    """Sum the axes behind (batch, features): a feature's relevance is that of all its coordinates."""
    return attribution if attribution.dim() == 2 else attribution.flatten(2).sum(2)


def replacement_value(case: Case, name: str) -> Tensor:
    """One of the case's named values for a removed feature, shaped like one feature.

    Raises:
        Unsupported: the case has none of that name.
    """
    if name not in case.replacements:
        there = ", ".join(case.replacements) or "none"
        raise Unsupported(f"no {name!r} value for a removed feature here (there is: {there}): choose another")
    return case.replacements[name]
