"""The work of an alignment, counted before it begins: rows and tokens of forward passes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PASSES = 20
"""Rows of each example that an explainer other than LOO is taken to need: the steps of IG, which needs most."""


@dataclass(frozen=True)
class Work:
    """Work that is to be done.

    Attributes:
        examples: how many.
        rows: of forward passes.
        tokens: of these rows.
    """

    examples: int = 0
    rows: int = 0
    tokens: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.examples + other.examples, self.rows + other.rows, self.tokens + other.tokens)


def work_of(lengths: Iterable[int], explainer: str, chunk: int) -> Work:
    """The work of an explainer on examples of these numbers of features: its map, and both perturbation curves.

    Special tokens count as if they were removed, too. Of an explainer other than LOO, the rows are taken to be `PASSES`
    for a map: how long its passes take, with the gradients, is measured.
    """
    total = Work()
    for n in lengths:
        rows = 2 * -(-n // chunk) + (n + 1 if explainer == "loo" else PASSES)
        total += Work(1, rows, rows * n)
    return total
