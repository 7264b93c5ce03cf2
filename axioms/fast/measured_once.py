"""Measure once in each process what checks of several pairs ask about a model that the pairs share.

A result is used again only where computing it would repeat everything: the same function or explainer with the same
attributes, an equal case, equal random states, and no function of torch, transformers or faithcheck replaced in
between. Warnings, the rules that LRP met and the random states afterwards are repeated too. The plain twin is the
function or the explainer itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import partial, wraps
from inspect import isfunction
from operator import is_
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from faithcheck.axioms.traces.namespaces import Namespace, equal, same_objects
from faithcheck.axioms.traces.process_snapshot import current_namespaces, random_states
from faithcheck.explainers.fast.switch import is_fast
from faithcheck.explainers.lrp.rules_met import record_rules, recording_rules
from faithcheck.explainers.protocol import Explainer, attribution_of
from faithcheck.models.case import Case

Result = TypeVar("Result")


@dataclass(frozen=True)
class Question:
    """What is asked about a model, and all that the answer depends on."""

    asker: object  # an explainer or a function
    attributes: Namespace  # of the explainer
    arguments: tuple[object, ...]  # further ones of the function
    case: Case
    random_states: list[Any]  # before the measurement

    def repeats(self, other: Question) -> bool:
        """Whether the other question has the same answer."""
        same = self.asker is other.asker and same_objects(self.attributes, other.attributes)
        same = same and len(self.arguments) == len(other.arguments) and all(map(is_, self.arguments, other.arguments))
        return same and equal_cases(self.case, other.case) and equal(self.random_states, other.random_states)


@dataclass(frozen=True)
class Answer:
    """A result with the warnings that were issued, the rules that were met and the random states afterwards."""

    result: Any
    warnings: list[warnings.WarningMessage]
    rules: set[str]
    random_states: list[Any]


_kept: WeakKeyDictionary[nn.Module, list[tuple[Question, Answer]]] = WeakKeyDictionary()
_namespaces: list[object] = []
_reused: ContextVar[list[object] | None] = ContextVar("reused", default=None)


@contextmanager
def reusing(again: bool = True) -> Iterator[list[object]]:
    """Within the block, use results again if ``again``; yields a list of the askers whose results were used again."""
    askers: list[object] = []
    token = _reused.set(askers if again else None)
    try:
        yield askers
    finally:
        _reused.reset(token)


def share(model: nn.Module) -> None:
    """Keep the results on this model: several pairs have it."""
    _kept[model] = []


def forget() -> None:
    """Drop all results."""
    for answers in _kept.values():
        answers.clear()


def measured_once(function: Callable[..., Result]) -> Callable[..., Result]:
    """Keep the results of a function ``(model, case, *arguments)``; it must not depend on anything else."""

    @wraps(function)
    def once(model: nn.Module, case: Case, *arguments: object) -> Result:
        return _once(function, model, case, arguments, lambda: function(model, case, *arguments))

    return once


def with_known_maps(explainer: Explainer, models: Sequence[nn.Module], case: Case) -> Explainer:
    """The explainer, with its maps of those of the models that several pairs share.

    For axioms that ask for maps of these models on this case alone. The plain twin is the explainer.
    """
    shared = [model for model in models if _is_used_again(model)]
    if not shared:
        return explainer
    maps = [
        (model, _once(explainer, model, case, (), partial(attribution_of, explainer, model, case))) for model in shared
    ]
    return KnownMaps(explainer, case, maps)


class KnownMaps:
    """An explainer whose maps of some models on one case are known; ``explainer`` is asked for all others."""

    def __init__(self, explainer: Explainer, case: Case, maps: Sequence[tuple[nn.Module, Tensor]]) -> None:
        self.name, self._explainer, self._case, self._maps = explainer.name, explainer, case, maps

    def attribute(self, model: nn.Module, case: Case) -> Tensor:
        """The known map of the model on the case, else the explainer's."""
        for known, attribution in self._maps:
            if model is known and equal_cases(case, self._case):
                return attribution
        return self._explainer.attribute(model, case)


def _is_used_again(model: nn.Module) -> bool:
    return _reused.get() is not None and model in _kept and is_fast()


def _once(
    asker: object, model: nn.Module, case: Case, arguments: tuple[object, ...], measure: Callable[[], Result]
) -> Result:
    """The result of ``measure()``, or the kept one if the model is shared, within `reusing`."""
    reused, kept = _reused.get(), _kept.get(model)
    if reused is None or kept is None or not is_fast():
        return measure()
    namespaces = current_namespaces()
    if namespaces not in _namespaces:  # a function was replaced: another result may be computed with it
        forget()
        _namespaces[:] = [namespaces]
    attributes = {} if isfunction(asker) else dict(getattr(asker, "__dict__", {}))
    question = Question(asker, attributes, arguments, case, _random_states())
    answer = next((answer for before, answer in kept if before.repeats(question)), None)
    if answer is None:
        with recording_rules() as rules, warnings.catch_warnings(record=True) as caught:
            result = measure()
        answer = Answer(result, caught, rules, _random_states())
        kept.append((question, answer))
    else:
        reused.append(asker)
        for (_, write), state in zip(random_states().values(), answer.random_states, strict=True):
            write(state)
    record_rules(answer.rules)
    for warning in answer.warnings:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    found: Result = answer.result
    return found


def _random_states() -> list[Any]:
    return [read() for read, _ in random_states().values()]


def equal_cases(one: Case, other: Case) -> bool:
    """Whether two cases have equal tensors."""
    return all(_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(Case))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    return equal(one, other)
