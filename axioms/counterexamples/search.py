"""The search for the smallest rewrite that changes an explainer's attribution.

1. A chain is a term and what a few rewrites make of it, one after the other.
2. If the attributions at the two ends of a chain differ, then those before and after one of its rewrites differ: a
   smallest counterexample is always a single rewrite. So every rewrite of a drawn chain is measured as a pair.
3. Hypothesis draws chains that begin with a rewrite by each identity in turn. If the first rewrite of a chain changes
   the attribution, Hypothesis shrinks the chain.
4. The smallest counterexample is the one with the fewest operations.
"""

import contextlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from faithcheck.axioms.counterexamples.comparison import attributions, gap_between, regular_case
from faithcheck.axioms.counterexamples.drawing import draw_chains, drawn_chains
from faithcheck.axioms.counterexamples.rewrite import Counterexample, Rewrite
from faithcheck.axioms.measure.roundoff import tolerance
from faithcheck.explainers.protocol import Explainer, Unsupported
from faithcheck.models.case import Case
from faithcheck.models.networks.expressions import IDENTITIES, Identity, features

EXAMPLES = 15
"""The number of chains that are drawn for each identity."""


@dataclass
class CounterexampleSearch:
    """One explainer's search for counterexamples at the points of a case."""

    explainer: Explainer
    case: Case  # inputs (batch, features): each rewrite is compared at the rows where both terms are regular
    examples: int = EXAMPLES  # chains that are drawn for each identity
    gaps: dict[Rewrite, float | None] = field(default_factory=dict)  # None if refused, or no row is regular
    refused: int = 0  # how many rewrites
    refusal: str = ""  # the last reason
    errors: dict[Rewrite, Exception] = field(default_factory=dict)  # of the explainer, or of an identity that fails
    maps: dict[Hashable, Tensor] = field(default_factory=dict)  # of terms, see `attributions`

    def run(self, seed: int, identities: Sequence[Identity | None] = IDENTITIES) -> list[Counterexample]:
        """The smallest counterexample of each identity that has one, in order of size.

        Raises `ValueError` if an identity does not hold, and the explainer's error on the smallest rewrite for which it
        has one, with a note that names the rewrite.
        """
        for identity in identities:
            self._draw_and_shrink(seed, identity)
            if self.errors:
                raise self.errors[min(self.errors, key=lambda rewrite: rewrite.order)]
        violating = [rewrite for rewrite, gap in self.gaps.items() if self.violates(gap)]
        smallest: dict[str, Rewrite] = {}
        for rewrite in sorted(violating, key=lambda rewrite: rewrite.order):
            smallest.setdefault(rewrite.identity, rewrite)
        return [self._counterexample(rewrite) for rewrite in smallest.values()]

    @property
    def measured(self) -> list[float]:
        """The gaps of the rewrites that could be measured."""
        return [gap for gap in self.gaps.values() if gap is not None]

    def violates(self, gap: float | None) -> bool:
        """Whether a gap is above round-off; NaN is."""
        return gap is not None and not gap <= tolerance(self.case.inputs)

    def gap(self, rewrite: Rewrite) -> float | None:
        """How far the two attributions of a rewrite differ; None if they cannot be measured."""
        if rewrite not in self.gaps:
            self.gaps[rewrite] = self._measure(rewrite)
        return self.gaps[rewrite]

    def _measure(self, rewrite: Rewrite) -> float | None:
        if features(rewrite.f) == 0:
            return None
        case = regular_case(rewrite, self.case)
        if len(case.inputs) == 0:
            return None
        try:
            # Two rewrites of a chain have a term in common. One that is compared with itself is explained twice.
            known = None if rewrite.f == rewrite.g else self.maps
            return gap_between(*attributions(self.explainer, rewrite, case, known))
        except Unsupported as refusal:
            self.refused, self.refusal = self.refused + 1, str(refusal)
            return None

    def _draw_and_shrink(self, seed: int, identity: Identity | None) -> None:
        """Measure drawn chains, and ever smaller ones as soon as this identity violates or something is raised."""
        width = self.case.shape[1]
        if not any(map(self._is_interesting, drawn_chains(width, identity, seed, self.examples))):
            return  # as for most explainers: they share the chains, since drawing takes as long as measuring

        def no_chain_is_interesting(chain: list[Rewrite]) -> None:
            if self._is_interesting(chain):
                raise Interesting

        with contextlib.suppress(Interesting):
            draw_chains(width, identity, seed, self.examples, no_chain_is_interesting)

    def _is_interesting(self, chain: list[Rewrite]) -> bool:
        """Measure a chain: whether its first rewrite violates, or something was raised, which `run` raises again."""
        for rewrite in chain:
            if rewrite not in self.errors:
                try:
                    self.gap(rewrite)
                except Exception as error:
                    self.errors[rewrite] = error
        return any(rewrite in self.errors for rewrite in chain) or self.violates(self.gap(chain[0]))

    def _counterexample(self, rewrite: Rewrite) -> Counterexample:
        points, gap = regular_case(rewrite, self.case).inputs.tolist(), self.gap(rewrite)
        assert gap is not None
        return Counterexample(self.explainer.name, rewrite, tuple(map(tuple, points)), gap)


class Interesting(Exception):
    """A drawn chain that Hypothesis should shrink."""


def smallest_counterexample(
    explainer: Explainer, case: Case, seed: int = 0, examples: int = EXAMPLES
) -> Counterexample | None:
    """The smallest pair of equal expressions with two attributions, or None if the search ends without one.

    Pairs are compared at the inputs of ``case``, ``(batch, features)``. Raises what `CounterexampleSearch.run` does.
    """
    return next(iter(CounterexampleSearch(explainer, case, examples).run(seed)), None)
