"""Scalar expressions as data, and the identities that rewrite them; generated pairs are made of these.

A term is an input, a constant, or an operation on terms; terms are immutable, and compare and hash by value. One term
is a torch model (`Expression`), a readable text (``(x1*x2)*x3``) and a JSON value (``["*", ["*", "x1", "x2"], "x3"]``).
An identity is two terms that are equal for all values of their inputs: `match` finds what the inputs of one side stand
for, and `substitute` puts it into the other side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import silu as torch_silu

OPERATIONS: Mapping[str, Callable[..., Tensor]] = {
    "*": torch.mul,
    "+": torch.add,
    "-": torch.sub,
    "max": torch.maximum,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": torch_silu,
    "exp": torch.exp,
    "relu": torch.relu,
    "abs": torch.abs,
}
BINARY = ("*", "+", "-", "max")
UNARY = ("tanh", "sigmoid", "silu", "exp", "relu", "abs")


class Arithmetic:
    """The operators ``+``, ``-`` and ``*`` between terms and numbers, which give terms."""

    def __add__(self, other: Term | float) -> Apply:
        return apply("+", self, other)

    def __radd__(self, other: float) -> Apply:
        return apply("+", other, self)

    def __sub__(self, other: Term | float) -> Apply:
        return apply("-", self, other)

    def __rsub__(self, other: float) -> Apply:
        return apply("-", other, self)

    def __mul__(self, other: Term | float) -> Apply:
        return apply("*", self, other)

    def __rmul__(self, other: float) -> Apply:
        return apply("*", other, self)


@dataclass(frozen=True)
class Input(Arithmetic):
    """The feature with this index, from 0: x1 has index 0."""

    index: int

    def __str__(self) -> str:
        return f"x{self.index + 1}"


@dataclass(frozen=True)
class Constant(Arithmetic):
    """A number."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:g}" if self.value >= 0 else f"({self.value:g})"


@dataclass(frozen=True)
class Apply(Arithmetic):
    """An operation on terms; ``operation`` is a key of `OPERATIONS`."""

    operation: str
    operands: tuple[Term, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.operation, self.operands)))

    def __hash__(self) -> int:
        """Computed once: terms are the keys of many dictionaries, and each has many parts."""
        return self._hash  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[type[Apply], tuple[str, tuple[Term, ...]]]:
        """Without the hash, which is another one in another process."""
        return Apply, (self.operation, self.operands)

    def __str__(self) -> str:
        if self.operation in ("*", "+", "-"):
            return self.operation.join(f"({x})" if brackets(x, self.operation) else str(x) for x in self.operands)
        return f"{self.operation}({', '.join(map(str, self.operands))})"


Term: TypeAlias = Input | Constant | Apply


def brackets(operand: Term, operation: str) -> bool:
    """Whether an operand of ``+``, ``-`` or ``*`` is written in parentheses: sums always, products in products."""
    inside = operand.operation if isinstance(operand, Apply) else ""
    return inside in ("+", "-") or (inside == "*" and operation == "*")


def apply(operation: str, *operands: Any) -> Apply:
    """The operation on terms or numbers; `ValueError` if it is unknown or takes another number of operands."""
    arity = 2 if operation in BINARY else 1
    if operation not in OPERATIONS or len(operands) != arity:
        raise ValueError(f"no operation {operation!r} on {len(operands)} terms; known: {', '.join(OPERATIONS)}")
    terms = (x if isinstance(x, Input | Constant | Apply) else Constant(float(x)) for x in operands)
    return Apply(operation, tuple(terms))


def subterms(term: Term) -> Iterator[Term]:
    """The term and all its parts, the outermost first; a part that occurs twice is given twice."""
    yield term
    if isinstance(term, Apply):
        for operand in term.operands:
            yield from subterms(operand)


def operations(term: Term) -> int:
    return sum(isinstance(part, Apply) for part in subterms(term))


def features(term: Term) -> int:
    return max((part.index + 1 for part in subterms(term) if isinstance(part, Input)), default=0)


def to_json(term: Term) -> Any:
    """The term as JSON's types: ``"x1"``, a number, or ``[operation, operand, …]``."""
    if isinstance(term, Apply):
        return [term.operation, *map(to_json, term.operands)]
    return str(term) if isinstance(term, Input) else term.value


def from_json(value: Any) -> Term:
    """The inverse of `to_json`; `ValueError` names the part of the value that is not the JSON of a term."""
    if isinstance(value, str) and value[:1] == "x" and value[1:].isdecimal() and int(value[1:]) > 0:
        return Input(int(value[1:]) - 1)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Constant(float(value))
    if isinstance(value, list) and value and isinstance(value[0], str):
        return apply(value[0], *map(from_json, value[1:]))
    raise ValueError(f"not a term: {value!r:.80}")


def intermediates(term: Term, inputs: Tensor) -> dict[Term, Tensor]:
    """The value of each part of a term, ``(batch,)`` or, of a constant, ``()``; equal parts are computed once."""
    columns = inputs.unbind(1)
    known: dict[Term, Tensor] = {}

    def value(part: Term) -> Tensor:
        if part not in known:
            if isinstance(part, Apply):
                known[part] = OPERATIONS[part.operation](*map(value, part.operands))
            elif isinstance(part, Input):
                known[part] = columns[part.index]
            else:
                known[part] = torch.tensor(part.value, dtype=inputs.dtype, device=inputs.device)
        return known[part]

    value(term)
    return known


class Expression(nn.Module):
    """The torch model of a term: ``(batch, features)`` to ``(batch, 1)``."""

    def __init__(self, term: Term) -> None:
        super().__init__()
        self.term = term

    def forward(self, inputs: Tensor) -> Tensor:
        return intermediates(self.term, inputs)[self.term].expand(len(inputs)).unsqueeze(1)

    def term_as_json(self) -> Any:
        return to_json(self.term)


@dataclass(frozen=True)
class Identity:
    """Two terms that are equal for all values of their inputs; both sides have the same inputs."""

    name: str
    left: Term
    right: Term

    def __str__(self) -> str:
        return f"{self.name}: {self.left} = {self.right}"


def _identities() -> tuple[Identity, ...]:
    a, b, c = (Input(i) for i in range(3))
    return (
        Identity("a sum commutes", a + b, b + a),
        Identity("a product commutes", a * b, b * a),
        Identity("a maximum commutes", apply("max", a, b), apply("max", b, a)),
        Identity("a sum re-associates", (a + b) + c, a + (b + c)),
        Identity("a product re-associates", (a * b) * c, a * (b * c)),
        Identity("a product distributes over a sum", a * (b + c), a * b + a * c),
        Identity("a difference is a sum", a - b, a + -1 * b),
        Identity("two halves", a, 0.5 * a + 0.5 * a),
        Identity("twice the half", a, 2 * (0.5 * a)),
        Identity("plus zero", a, a + 0),
        Identity("times one", a, 1 * a),
        Identity("one more, one less", a, (a + 1) - 1),
        Identity("silu by sigmoid", apply("silu", a), a * apply("sigmoid", a)),
        Identity("relu by max", apply("relu", a), apply("max", a, 0)),
        Identity("relu by abs", apply("relu", a), 0.5 * (a + apply("abs", a))),
        Identity("max by abs", apply("max", a, b), 0.5 * ((a + b) + apply("abs", a - b))),
        Identity("abs by max", apply("abs", a), apply("max", a, -1 * a)),
        Identity("tanh is odd", apply("tanh", -1 * a), -1 * apply("tanh", a)),
        Identity("exp of a sum", apply("exp", a + b), apply("exp", a) * apply("exp", b)),
        Identity("tanh by sigmoid", apply("tanh", a), 2 * apply("sigmoid", 2 * a) - 1),
        Identity("sigmoid by tanh", apply("sigmoid", a), 0.5 * (1 + apply("tanh", 0.5 * a))),
    )


IDENTITIES = _identities()
"""The identities by which equivalent expressions are made; ``tests/unit/test_generated.py`` proves each in SymPy."""


def substitute(term: Term, meaning: Mapping[Input, Term]) -> Term:
    """The term with each input replaced by the term that it stands for."""
    if isinstance(term, Apply):
        return Apply(term.operation, tuple(substitute(operand, meaning) for operand in term.operands))
    return meaning[term] if isinstance(term, Input) else term


def match(pattern: Term, term: Term, meaning: Mapping[Input, Term] | None = None) -> dict[Input, Term] | None:
    """What the pattern's inputs, some known already, must stand for so that it is the term; None if nothing does."""
    matches = dict(meaning or {})
    if isinstance(pattern, Input):
        return matches if matches.setdefault(pattern, term) == term else None
    if isinstance(pattern, Constant) or isinstance(term, Input | Constant):
        return matches if pattern == term else None
    if pattern.operation != term.operation:
        return None
    for part, operand in zip(pattern.operands, term.operands, strict=True):
        extended = match(part, operand, matches)
        if extended is None:
            return None
        matches = extended
    return matches


def rewritten(term: Term, identity: Identity) -> list[Term]:
    """Every term that one use of the identity makes of this term, in either direction, at any place."""
    results: list[Term] = []
    for source, target in ((identity.left, identity.right), (identity.right, identity.left)):
        meaning = match(source, term)
        if meaning is not None:
            results.append(substitute(target, meaning))
    if isinstance(term, Apply):
        for i, operand in enumerate(term.operands):
            for new in rewritten(operand, identity):
                results.append(Apply(term.operation, (*term.operands[:i], new, *term.operands[i + 1 :])))
    return results
