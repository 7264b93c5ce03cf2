"""The evidence of a red record: what the axiom compared, and in which simple way the two differ.

An axiom hands over what it compared on the whole batch. A red record keeps the example that differs most, in plain
values of bounded size; a green one keeps nothing.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from faithcheck.axioms.measure.error_text import safe_text
from faithcheck.axioms.measure.measurement import Compared
from faithcheck.axioms.measure.record import AttributionMap, Evidence, Relation
from faithcheck.models.case import Case

FEATURES = 784
"""The most numbers of a map that a record keeps: those of an image of 28 × 28 pixels."""
DIGITS = 6
"""The significant digits that a record keeps of them."""
CLOSE = 1e-6
"""How close two maps are that count as the same, relative to the largest number."""


@runtime_checkable
class HasTerm(Protocol):
    """A model that computes one expression and can say which."""

    def term_as_json(self) -> Any:
        """The expression: ``"x1"``, a number, or ``[operation, operand, …]``."""
        ...


def evidence_of(
    compared: Compared, models: Sequence[nn.Module], case: Case, violation: Compared | None = None
) -> Evidence:
    """What a red record keeps, in plain values; ``violation`` and the predicted one, where their sizes differ."""
    decisive = violation or compared
    first, second = _plain(decisive.first), _plain(decisive.second)
    differences = (first - second).abs().reshape(len(first), -1).amax(1)
    scale = torch.maximum(first.abs(), second.abs()).reshape(len(first), -1).amax(1)
    example = int((differences / scale.where(scale > 0, 1)).argmax())
    sides = dict(zip(compared.names, (_plain(compared.first)[example], _plain(compared.second)[example]), strict=True))
    maps = sides if compared.map is None else {"the map": _plain(compared.map)[example]}
    figures = {} if compared.map is None else {name: float(side) for name, side in sides.items()}
    figures |= {name: float(values[example]) for name, values in compared.figures.items()}
    features = next(iter(maps.values())).numel()
    names = case.feature_names[example] if len(case.feature_names) == len(first) else ()
    return Evidence(
        example=example,
        examples=len(first),
        features=features,
        maps=[AttributionMap(of=name, values=_numbers(row)) for name, row in maps.items()],
        predicted=[] if violation is None else _numbers(second[example]),
        figures={name: _rounded(value) for name, value in figures.items()},
        terms=list(compared.terms) or _terms(models),
        names=[safe_text(name) for name in names[:FEATURES]] if len(names) == features else [],
        image=list(case.image_shape) if math.prod(case.image_shape) == features else [],
        relation=relation(decisive),
    )


def relation(compared: Compared) -> Relation | None:
    """The simplest way in which the first side follows from the second on every example; None if there is none."""
    first, second = _plain(compared.first), _plain(compared.second)
    finite = torch.isfinite(first).all() and torch.isfinite(second).all()
    if not finite or first.dim() > 2 or _close(first, second):
        return None
    return next(_relations(compared, first, second), None)


def _relations(compared: Compared, first: Tensor, second: Tensor) -> Iterator[Relation]:
    """The ways in which the first side follows from the second, the simplest first."""
    relation = partial(Relation, first=compared.names[0], second=compared.names[1])
    if not first.any():
        yield relation(kind="zero")
        return
    for name, mistaken in compared.mistakes.items():
        if _close(first, _plain(mistaken)):
            yield relation(kind="mistake", of=name)
    different = (first - second).abs() > CLOSE * _size(first, second)
    for name, places in compared.places.items():
        if not (different & ~places.cpu()).any():
            yield relation(kind="place", of=name)
    if second.count_nonzero() > 1:
        factor = float((first * second).sum() / second.square().sum())
        if _close(first, factor * second):
            yield relation(kind="factor", value=_rounded(factor))
    if first.dim() == 1:  # sums, one of each example
        if len(first) > 1 and _close(first, first[:1].expand_as(first)):
            yield relation(kind="sum", value=_rounded(float(first[0])))
        if len(first) > 1 and _close(first - second, (first - second)[:1].expand_as(first), first):
            yield relation(kind="offset", value=_rounded(float((first - second)[0])))
        if _close(first.sort(0).values, second.sort(0).values):
            yield relation(kind="examples")
        return
    yield from _relations_of_maps(relation, first, second)


def _relations_of_maps(relation: Callable[..., Relation], first: Tensor, second: Tensor) -> Iterator[Relation]:
    batch, features = first.shape
    changes: dict[str, Callable[[Tensor], Tensor]] = {"absolute": torch.abs, "positive": lambda a: a.clamp(min=0)}
    for kind, change in changes.items():
        if _close(first, change(second)):
            yield relation(kind=kind)
    if features < 2:
        return
    products, squares = (first * second).sum(1, keepdim=True), second.square().sum(1, keepdim=True)
    if _close(first, products / squares.where(squares > 0, 1) * second):
        yield relation(kind="factor of each example")
    difference = first - second
    if _close(difference, difference.mean(1, keepdim=True).expand_as(first), first):
        yield relation(kind="offset", value=_rounded(float(difference.mean())))
    if _has_different_numbers(second):
        for shift in (1, -1):
            if _close(first, second.roll(shift, 1)):
                yield relation(kind="shifted", value=shift)
        if _close(first.sort(1).values, second.sort(1).values):
            yield relation(kind="order")
    if batch > 1 and _close(first, first[:1].expand_as(first)):
        yield relation(kind="example")
    if batch > 1 and _close(first.sort(0).values.flatten(), second.sort(0).values.flatten()):
        yield relation(kind="examples")


def _has_different_numbers(values: Tensor) -> bool:
    """Whether some example has no number twice, but 0: then its numbers in another order are a permutation."""
    ascending = values.sort(1).values
    twice = (ascending.diff(dim=1) <= CLOSE * _size(values, values)) & (ascending[:, 1:] != 0)
    return not twice.any(1).all()


def _close(a: Tensor, b: Tensor, scale: Tensor | None = None) -> bool:
    """Whether two maps are the same in every example, up to `CLOSE`."""
    return bool(((a - b).abs() <= CLOSE * _size(a, b if scale is None else scale)).all())


def _size(a: Tensor, b: Tensor) -> Tensor:
    """The largest number of an example, ``(batch, 1)``; of sums, that of the batch."""
    size = torch.maximum(a.abs(), b.abs())
    return size.amax() if size.dim() == 1 else size.amax(1, keepdim=True)


def _plain(values: Tensor) -> Tensor:
    return values.detach().double().cpu()


def _numbers(row: Tensor) -> list[float]:
    return [_rounded(value) for value in row.flatten()[:FEATURES].tolist()]


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _terms(models: Sequence[nn.Module]) -> list[Any]:
    """The expressions that two models compute, as JSON; empty if one of them is no expression."""
    if len(models) != 2 or not all(isinstance(model, HasTerm) for model in models):
        return []
    return [model.term_as_json() for model in models if isinstance(model, HasTerm)]
