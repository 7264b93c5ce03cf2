"""Generated pairs: expressions are drawn and rewritten by identities, until two equal ones get two attributions.

The search is in `faithcheck.axioms.counterexamples`. Counterexamples are saved, and replayed before the next search.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from faithcheck.axioms.counterexamples.comparison import attributions, gap_between
from faithcheck.axioms.counterexamples.rewrite import Counterexample
from faithcheck.axioms.counterexamples.saved import replay, save
from faithcheck.axioms.counterexamples.search import EXAMPLES, CounterexampleSearch
from faithcheck.axioms.measure.axiom import axiom
from faithcheck.axioms.measure.measurement import Compared, Measurement
from faithcheck.axioms.measure.roundoff import tolerance
from faithcheck.explainers.protocol import Explainer, Unsupported, expected_like
from faithcheck.explainers.registry import builtin_explainers
from faithcheck.models.case import Case
from faithcheck.models.networks.expressions import Expression, to_json


@axiom(
    "generated",
    "no drawn pair of equal expressions gets two attributions",
    usual_cause=(
        "a rule depends on how the function is written: the smallest pair of expressions shows which operation it is"
    ),
    measured_on="pairs",
    part_of="invariance",
)
def generated(explainer: Explainer, f: nn.Module, g: nn.Module, case: Case) -> Measurement:
    """Replay the saved counterexamples; if none violates invariance, search; measure the smallest counterexample.

    ``values`` and ``gap`` are those of `invariance` on the smallest counterexample; without one, ``gap`` is the largest
    of all pairs. The seed comes from torch's random state, which a check sets.

    If f and g are one expression, nothing is rewritten: every drawn term is compared with itself.

    Raises:
        ValueError: an identity does not hold.
        Unsupported: the explainer refused every drawn pair.
        Exception: from the explainer, with a note that names the rewrite.
    """
    search, seed = CounterexampleSearch(explainer, case, EXAMPLES), int(torch.randint(2**31, ()))
    detail: dict[str, object] = {}
    if isinstance(f, Expression) and isinstance(g, Expression) and f.term == g.term:
        counterexamples = search.run(seed, identities=[None])
    else:
        detail, counterexamples = replay(explainer, case)
        if not counterexamples:
            counterexamples = search.run(seed)
            if counterexamples and contradicts_a_claim(explainer):
                detail["saved"] = save(counterexamples[0])
    detail |= {"pairs": len(search.measured), "refused pairs": search.refused or None}
    if counterexamples:
        return measure_smallest(counterexamples, explainer, case, detail)
    if not search.measured:
        raise Unsupported(f"every drawn pair was refused: {search.refusal}")
    values, maps = case.inputs.new_zeros(1, 1), [*search.maps.values()]
    return Measurement(max(search.measured), tolerance(case.inputs), values, detail=detail, maps=maps)


def contradicts_a_claim(explainer: Explainer) -> bool:
    """Whether a counterexample is news: the explainer claims invariance, and expects no violation of its own.

    The counterexamples of built-in explainers are registered pairs.
    """
    claims = {"invariance", "generated"} & set(getattr(explainer, "claims", ()))
    expects_violation = any(name == "generated" for name, _ in getattr(explainer, "expected", {}))
    return bool(claims) and not expects_violation and expected_like(explainer) not in builtin_explainers()


def measure_smallest(
    counterexamples: Sequence[Counterexample], explainer: Explainer, case: Case, detail: dict[str, object]
) -> Measurement:
    """What `invariance` measures on the first counterexample, with the two terms and their maps in words."""
    smallest, points = counterexamples[0], counterexamples[0].case(case.inputs)
    left, right = attributions(explainer, smallest.rewrite, points)
    tol, rows = tolerance(case.inputs), range(len(left))
    i = next((i for i in rows if not gap_between(left[i : i + 1], right[i : i + 1]) <= tol), 0)
    detail |= {
        "smallest pair": f"{smallest.rewrite} ({smallest.rewrite.identity})",
        "attributions": f"{in_words(left[i])} and {in_words(right[i])} at {in_words(points.inputs[i])}",
        "separated by": "; ".join(counterexample.rewrite.identity for counterexample in counterexamples),
    }
    terms = [to_json(term) for term in (smallest.rewrite.f, smallest.rewrite.g)]
    compared = Compared(left, right, ("the map of f", "the map of g"), terms=terms)
    return Measurement(smallest.gap, tol, left - right, torch.cat([left, right], 1), detail=detail, compared=compared)


def in_words(values: Tensor) -> str:
    """A row in few characters: ``(6, 6, 12)``."""
    return f"({', '.join(f'{value:.4g}' for value in values.tolist())})"
