"""What is measured on a model that several pairs share is measured once a process, and used again.

A measurement is used again only where it would be repeated: the same question, asked by the same explainer with the
same attributes, of an equal case, from equal random states, and no function of torch, transformers or faithcheck was
replaced since. Its warnings, the rules that it met and the random states that it left come with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

from faithcheck.axioms.traces.namespaces import Namespace, equal, same_objects
from faithcheck.axioms.traces.process_snapshot import current_namespaces, random_states
from faithcheck.explainers.lrp.rules_met import record_rules, recording_rules
from faithcheck.models.case import Case

Result = TypeVar("Result")


@dataclass(frozen=True)
class Question:
    """What is asked of a model, and all that the answer depends on.

    Attributes:
        asker: an explainer, or the name of an axiom.
        attributes: of the explainer.
        case: the case.
        random_states: before the measurement.
    """

    asker: object
    attributes: Namespace
    case: Case
    random_states: list[Any]

    def repeats(self, other: Question) -> bool:
        """Whether the other question has the same answer."""
        same = self.asker is other.asker and same_objects(self.attributes, other.attributes)
        return same and equal_cases(self.case, other.case) and equal(self.random_states, other.random_states)


@dataclass(frozen=True)
class Answer:
    """A result, and what else the measurement did: its warnings, the rules that it met, the random states it left."""

    result: Any
    warnings: list[warnings.WarningMessage]
    rules: set[str]
    random_states: list[Any]


_kept: WeakKeyDictionary[nn.Module, list[tuple[Question, Answer]]] = WeakKeyDictionary()
_namespaces: list[object] = []
_reused: ContextVar[list[object] | None] = ContextVar("reused", default=None)


@contextmanager
def reusing(again: bool = True) -> Iterator[list[object]]:
    """Within the block, use measurements again, or not; the list gets who asked for those that were used again."""
    askers: list[object] = []
    token = _reused.set(askers if again else None)
    try:
        yield askers
    finally:
        _reused.reset(token)


def share(model: nn.Module) -> None:
    """Keep what is measured on this model, because several pairs have it."""
    _kept[model] = []


def forget() -> None:
    """Keep nothing of what was measured so far."""
    for answers in _kept.values():
        answers.clear()


def once(asker: object, model: nn.Module, case: Case, measure: Callable[[], Result]) -> Result:
    """The result of ``measure()``, or that of the same question before, if the model is shared and in `reusing`.

    Args:
        asker: see `Question`.
        model: the model that is measured.
        case: the case that is measured.
        measure: the measurement; what it raises is raised, and not kept.
    """
    reused, kept = _reused.get(), _kept.get(model)
    if reused is None or kept is None:
        return measure()
    namespaces = current_namespaces()
    if namespaces not in _namespaces:  # a function was replaced: another result may be computed with it
        forget()
        _namespaces[:] = [namespaces]
    question = Question(asker, dict(getattr(asker, "__dict__", {})), case, _random_states())
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
