"""A rewrite is a pair of equal expressions; a counterexample is a rewrite that changes an explainer's attribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from faithcheck.models.case import Case
from faithcheck.models.networks.expressions import Input, Term, features, from_json, operations, subterms, to_json

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Rewrite:
    """Two terms that are equal by the identity of this name."""

    identity: str
    f: Term
    g: Term

    def __str__(self) -> str:
        return f"{self.f} = {self.g}"

    @property
    def size(self) -> tuple[int, int, int]:
        """The smallest rewrite has the fewest operations, then the fewest operands, then the most distinct features."""
        parts = [*subterms(self.f), *subterms(self.g)]
        inputs = {part for part in parts if isinstance(part, Input)}
        return operations(self.f) + operations(self.g), len(parts), -len(inputs)

    @property
    def order(self) -> tuple[tuple[int, int, int], int, str]:
        """By size; rewrites of the same size by the length of their text, then by the text."""
        return self.size, len(str(self)), str(self)


@dataclass(frozen=True)
class Counterexample:
    """A rewrite that changes an explainer's attribution."""

    explainer: str  # its name
    rewrite: Rewrite
    points: tuple[tuple[float, ...], ...]  # the inputs at which maps are compared; the baseline is 0
    gap: float  # as `invariance` measures it

    def case(self, like: Tensor) -> Case:
        """The points as a case of this tensor's dtype and device."""
        return case_at(torch.tensor(self.points, dtype=like.dtype, device=like.device))

    def to_json(self) -> dict[str, Any]:
        """The counterexample as JSON's types."""
        return {
            "faithcheck_counterexample": SCHEMA_VERSION,
            "explainer": self.explainer,
            "identity": self.rewrite.identity,
            "pair": str(self.rewrite),
            "f": to_json(self.rewrite.f),
            "g": to_json(self.rewrite.g),
            "points": [list(point) for point in self.points],
            "gap": self.gap,
        }

    @classmethod
    def from_json(cls, document: Any) -> Counterexample:
        """The inverse of `to_json`; raises `ValueError`, which says why, for what this version cannot read."""
        if not isinstance(document, dict) or document.get("faithcheck_counterexample") != SCHEMA_VERSION:
            raise ValueError(f"no counterexample of version {SCHEMA_VERSION}")
        try:
            rewrite = Rewrite(str(document["identity"]), from_json(document["f"]), from_json(document["g"]))
            points = tuple(tuple(float(x) for x in point) for point in document["points"])
            counterexample = cls(str(document["explainer"]), rewrite, points, float(document["gap"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"a damaged counterexample: {error!r}") from error
        if not points or any(len(point) < max(features(rewrite.f), features(rewrite.g)) for point in points):
            raise ValueError("a damaged counterexample: too few numbers in a point")
        return counterexample


def case_at(inputs: Tensor) -> Case:
    """A case at these inputs ``(batch, features)``, with a baseline of 0."""
    return Case(inputs, torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device), torch.zeros_like(inputs))
