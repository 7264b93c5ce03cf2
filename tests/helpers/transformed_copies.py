"""Copies of a small model that compute the same function by transforms, and how far the maps of an explainer differ.

All transforms that apply are in one copy, which costs one attribution. Where that copy is another function, or where an
explainer refuses it or gives it another map, each transform is in a copy of its own, so that its name is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from faithcheck.axioms.measure.roundoff import tolerance
from faithcheck.explainers import Unsupported
from faithcheck.explainers.lrp.operations import operation_name
from faithcheck.models.case import Case, input_gradient
from faithcheck.tests.helpers.installed.transforms import TRANSFORMS, DoesNotApply, InstalledTransform

FLOAT64 = tolerance(torch.empty(0, dtype=torch.float64))
LONGEST = 300  # letters of a message
TOGETHER = "transformed"
"""The check of all transforms in one copy; that of a transform has the transform's name."""
OFTEN_REFUSED = ("experts at once", "cache")
"""The transforms that are looked at first where an explainer refuses the copy: the readout gate refuses these."""
Transforms: TypeAlias = Sequence[InstalledTransform]
Attribute: TypeAlias = Callable[[nn.Module], Tensor]


class TransformedCopies:
    """A model's copies by transforms."""

    def __init__(self, model: nn.Module, case: Case, transforms: Transforms = tuple(TRANSFORMS)) -> None:
        self.model, self.reasons = model, dict[str, str]()
        self._made: dict[tuple[str, ...], nn.Module] = {}
        self.case = case
        with OperationsRun() as self.run:
            self.values = values_of_the_function(model, case)
        self.applied = self._those_that_apply(transforms)
        if reasons := self.why_not(self.applied):
            if TOGETHER in reasons:
                reasons = {name: why for t in self.applied for name, why in self.why_not([t]).items()}
            self.reasons |= reasons
            self.applied = [transform for transform in self.applied if transform.name not in reasons]
            if why := self.why_not(self.applied):
                raise ValueError(f"each transform leaves the function alone, but not all of them: {why}")

    @torch.no_grad()
    def _those_that_apply(self, transforms: Transforms) -> Transforms:
        """The transforms of which the model has what they change; keeps the copy with all of them."""
        copy, applied = deepcopy(self.model), list[InstalledTransform]()
        for transform in transforms:
            try:
                transform.change(copy)
                applied.append(transform)
            except DoesNotApply as missing:
                self.reasons[transform.name] = str(missing)
        self._made[names(applied)] = copy.eval()
        return applied

    @torch.no_grad()
    def copy(self, transforms: Transforms) -> nn.Module:
        """The copy with these transforms."""
        if (key := names(transforms)) not in self._made:
            copy = deepcopy(self.model)
            for transform in transforms:
                transform.change(copy)
            self._made[key] = copy.eval()
        return self._made[key]

    def why_not(self, transforms: Transforms) -> dict[str, str]:
        """Why transforms do not apply, by name: they change the function, or nothing of what runs.

        Of several transforms that change the function together, the name is `TOGETHER`.
        """
        with OperationsRun() as run:
            why = self._why_another(transforms)
        if why:
            return {TOGETHER if len(transforms) > 1 else transforms[0].name: why}
        asked = [t for t in transforms if t.operation and run.counts[t.operation] <= self.run.counts[t.operation]]
        return {t.name: f"no further {t.operation} runs" for t in asked}

    def _why_another(self, transforms: Transforms) -> str:
        """Why the copy is not the same function; empty: it is."""
        try:
            values = values_of_the_function(self.copy(transforms), self.case)
        except Exception as error:  # whatever a model raises that reads its weights in a way of its own
            return f"{type(error).__name__}: {in_one_line(error)}"
        for what, value in self.values.items():
            if what not in values:
                return f"it has no {what}"
            if not (gap := difference(values[what], value)) <= FLOAT64:
                return f"another function: {gap:.0e} in its {what}"
        return ""

    def gaps(
        self, attribute: Attribute, attribution: Tensor, allowed: float
    ) -> tuple[dict[str, float], dict[str, str]]:
        """The difference of an explainer's map from that of the model, for each transform and for all together."""
        kept, same, refused = self._attribute(attribute)
        if not kept:
            return {}, refused
        together = difference(same, attribution)
        if together <= allowed:
            return dict.fromkeys((TOGETHER, *names(kept)), together), refused
        alone = {t.name: difference(attribute(self.copy([t])), attribution) for t in kept}
        return {TOGETHER: together, **alone}, refused

    def _attribute(self, attribute: Attribute) -> tuple[Transforms, Tensor, dict[str, str]]:
        """The transforms that the explainer takes, the map of the copy with all of these, and the refusals."""
        kept, refused = self.applied, dict[str, str]()
        others = [name for name in names(kept) if name not in OFTEN_REFUSED]
        for asked in (OFTEN_REFUSED, others):
            try:
                return kept, attribute(self.copy(kept)), refused
            except Unsupported:
                refused |= self._refusals(attribute, [t for t in kept if t.name in asked])
                kept = [t for t in self.applied if t.name not in refused]
        try:
            return kept, attribute(self.copy(kept)), refused
        except Unsupported as error:
            raise RuntimeError(f"it takes each transform, and refuses them together: {error}") from error

    def _refusals(self, attribute: Attribute, transforms: Transforms) -> dict[str, str]:
        """``{transform: the refusal}`` of those that the explainer refuses."""
        refused = {}
        for transform in transforms:
            try:
                attribute(self.copy([transform]))
            except Unsupported as refusal:
                refused[transform.name] = in_one_line(refusal)
        return refused


class OperationsRun(TorchFunctionMode):
    """Counts the operations that run, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[operation_name(func)] += 1
        return func(*args, **(kwargs or {}))


def names(transforms: Transforms) -> tuple[str, ...]:
    """The names of transforms."""
    return tuple(transform.name for transform in transforms)


def values_of_the_function(model: nn.Module, case: Case) -> dict[str, Tensor]:
    """What two models have in common if they compute one function: outputs, also without a token, and the gradient.

    A copy runs: some models keep a state of their last forward pass, and its graph, which no later copy can have.
    """
    model = deepcopy(model)
    with torch.no_grad():
        values = {"outputs": case.run(model)}
        if "attention_mask" in case.forward_arguments:
            values["outputs without a token"] = without_each_token(case).run(model)
    try:
        return {**values, "gradient": input_gradient(model, case)}
    except Exception:  # Reformer has one in training alone; with a cache, RWKV writes over what its gradient needs
        return values


def without_each_token(case: Case) -> Case:
    """The first example once for each of its tokens, with that token masked."""
    features = case.shape[1]
    repeated = case.select(torch.zeros(features, dtype=torch.int64))
    mask = repeated.forward_arguments["attention_mask"] * (1 - torch.eye(features, dtype=torch.int64))
    return replace(repeated, forward_arguments={**repeated.forward_arguments, "attention_mask": mask})


def difference(a: Tensor, b: Tensor) -> float:
    """The largest difference of two tensors, relative to the largest value; 0 if they are the same to the bit."""
    return 0.0 if torch.equal(a, b) else float((a - b).abs().max() / b.abs().max())


def in_one_line(error: BaseException) -> str:
    """The message of an error, or its name, in one line."""
    return " ".join(str(error).split())[:LONGEST] or type(error).__name__
