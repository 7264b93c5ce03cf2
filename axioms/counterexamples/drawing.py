"""How Hypothesis draws chains of rewrites: a term, and what a few identities make of it, one after the other."""

import functools
import itertools
from collections.abc import Callable, Iterator

import hypothesis
from hypothesis import strategies as st

from faithcheck.axioms.counterexamples.rewrite import Rewrite
from faithcheck.models.networks.expressions import (
    BINARY,
    IDENTITIES,
    UNARY,
    Apply,
    Constant,
    Identity,
    Input,
    Term,
    apply,
    features,
    operations,
    rewritten,
    substitute,
)

REWRITES, OUTER_OPERATIONS, LEAVES, LARGEST = 3, 2, 3, 40
"""The most rewrites of a chain, operations around an identity, leaves of a drawn term, operations after a rewrite."""

FRESH = Input(-1)
"""Stands for a feature that was not used yet. Hypothesis shrinks to it, so that terms read x1, x2, …"""


def larger(parts: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    """Operations on these parts."""
    binary = st.builds(apply, st.sampled_from(BINARY), parts, parts)
    return binary | st.builds(apply, st.sampled_from(UNARY), parts)


# Strategies are module constants because Hypothesis takes longer to make a strategy than to draw from it.
OPERANDS: list[Term] = [FRESH, *map(Constant, (1.0, 2.0, -1.0)), Input(0), Input(1), *[FRESH] * 4]
TERM: st.SearchStrategy[Term] = st.recursive(st.sampled_from(OPERANDS), larger, max_leaves=LEAVES)
SWAPPED, PLACE = st.booleans(), st.integers(0, 2**16)
OUTER = st.lists(st.sampled_from([*BINARY, *UNARY]), max_size=OUTER_OPERATIONS)
NEXT_IDENTITIES = st.lists(st.sampled_from(IDENTITIES), max_size=REWRITES - 1)


@st.composite
def chains(draw: st.DrawFn, width: int, identity: Identity | None) -> list[Rewrite]:
    """A chain of rewrites: one side of an identity, on drawn terms and within drawn operations, and what follows.

    Without an identity, a drawn term is paired with itself.
    """
    fresh = itertools.cycle(range(width))
    if identity is None:
        term = numbered(draw(TERM), fresh)
        return [Rewrite("itself", term, term)]
    f, g = (identity.right, identity.left) if draw(SWAPPED) else (identity.left, identity.right)
    meaning = {Input(i): numbered(draw(TERM), fresh) for i in range(features(f))}
    f, g = substitute(f, meaning), substitute(g, meaning)
    for operation in draw(OUTER):
        second_operand = [numbered(draw(TERM), fresh)] if operation in BINARY else []
        f, g = apply(operation, f, *second_operand), apply(operation, g, *second_operand)
    chain = [Rewrite(identity.name, f, g)]
    for next_identity in draw(NEXT_IDENTITIES):
        options = [term for term in rewritten(g, next_identity) if operations(term) <= LARGEST]
        if options:
            f, g = g, options[draw(PLACE) % len(options)]
            chain.append(Rewrite(next_identity.name, f, g))
    return chain


def draw_chains(
    width: int, identity: Identity | None, seed: int, examples: int, test: Callable[[list[Rewrite]], object]
) -> None:
    """Run a test on drawn chains, and on ever smaller ones as soon as it raises; then raise what it raises last."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(chains(width, identity))
    def on_each(chain: list[Rewrite]) -> None:
        test(chain)

    on_each()


@functools.lru_cache(maxsize=256)
def drawn_chains(width: int, identity: Identity | None, seed: int, examples: int) -> list[list[Rewrite]]:
    """The chains that `draw_chains` draws if nothing is raised."""
    drawn: list[list[Rewrite]] = []
    draw_chains(width, identity, seed, examples, drawn.append)
    return drawn


def numbered(term: Term, fresh: Iterator[int]) -> Term:
    """The term with the next feature in place of each `FRESH`."""
    if isinstance(term, Apply):
        return Apply(term.operation, tuple(numbered(operand, fresh) for operand in term.operands))
    return Input(next(fresh)) if term == FRESH else term
