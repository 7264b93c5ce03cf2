"""Which checks a run has, for all front doors, and which cells it leaves out because the axiom does not apply."""

from collections.abc import Iterable, Sequence

from faithcheck.axioms.measure.expectations import SuppliedExpectation, refuse_stale_expectations, stated_axioms
from faithcheck.axioms.measure.registry import AXIOMS
from faithcheck.check import Check
from faithcheck.explainers.protocol import Explainer
from faithcheck.explainers.stored_maps import StoredMaps
from faithcheck.models.pair import BuildFromBase, Pair, is_builtin
from faithcheck.models.unknown_name import unknown_name
from faithcheck.reports.documents.results import NotApplicable
from faithcheck.reports.pages import wording
from faithcheck.request import Request

FIRST_AXIOMS = ("invariance", "generated", "completeness", "loo", "trace")
"""Measured by default, whatever an explainer claims: what authors ask about first."""


def plan(
    axiom: str, explainers: Sequence[Explainer], pairs: Sequence[Pair], supplied: Sequence[SuppliedExpectation] = ()
) -> list[Check]:
    """Every check of an axiom, on pairs or on their single models, without what is `not_applicable`.

    Checks of a pair, and of pairs of one f, follow each other, so that models are built once. `ValueError`: no such
    axiom.
    """
    if axiom not in AXIOMS:
        raise ValueError(unknown_name("axiom", axiom, AXIOMS))
    planned = AXIOMS[axiom]
    applicable = [explainer for explainer in explainers if planned.not_applicable(explainer) is None]
    checked: list[Explainer | None] = [*applicable] if planned.needs_explainer else [None]
    return [
        Check(axiom, explainer, pair, side, supplied)
        for pair in by_base(pairs)
        if planned.is_measured_on(pair)
        for side in planned.sides(pair)
        for explainer in checked
    ]


def checks_of_request(request: Request) -> list[Check]:
    """Every check of a request; first the equivalence of each pair of the user (tests prove faithcheck's own).

    `ValueError`: an unknown axiom, an expectation that matches no check, or nothing to check.
    """
    explainers, pairs, supplied = request.explainers, request.pairs, request.expectations
    refuse_stale_expectations(explainers, pairs, supplied)
    unproved = [] if "equivalence" in request.axioms else [pair for pair in pairs if not is_builtin(pair)]
    checks = [
        *plan("equivalence", explainers, unproved),
        *(check for axiom in request.axioms for check in plan(axiom, explainers, pairs, supplied)),
    ]
    if not checks:
        missing = not_applicable(request.axioms, explainers)
        raise ValueError(wording.nothing_to_check(request.axioms, len(pairs), missing))
    return checks


def axioms_of(asked: Iterable[str], explainers: Iterable[Explainer], pairs: Sequence[Pair]) -> list[str]:
    """The axioms that are asked for, each once; if there are none, the default axioms of the explainers."""
    defaults = (axiom for explainer in explainers for axiom in default_axioms(explainer, pairs))
    return list(dict.fromkeys(asked)) or list(dict.fromkeys(defaults))


def default_axioms(explainer: Explainer, pairs: Iterable[Pair]) -> list[str]:
    """The first axioms, and every other of which something is claimed, or expected on one of the pairs."""
    return list(dict.fromkeys((*FIRST_AXIOMS, *stated_axioms(explainer, list(pairs)))))


def pairs_with_maps(explainers: Sequence[Explainer], pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs to measure where the user names none: all pairs; for stored maps, only the pairs that they cover."""
    if not all(isinstance(explainer, StoredMaps) for explainer in explainers):
        return list(pairs)
    have = {name for one in explainers if isinstance(one, StoredMaps) for name in one.maps}
    return [pair for pair in pairs if have & {f"{pair.name}.f", f"{pair.name}.g"}]


def by_base(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs in their order, but after the first pair of an f all others of the same f."""
    first: dict[object, int] = {}
    for index, pair in enumerate(pairs):
        first.setdefault(base_of(pair), index)
    return sorted(pairs, key=lambda pair: first[base_of(pair)])


def base_of(pair: Pair) -> object:
    """What pairs of one f have in common: equal for two pairs if and only if their f is built once for both."""
    return pair.build.base if isinstance(pair.build, BuildFromBase) else pair.name


def not_applicable(axioms: Iterable[str], explainers: Iterable[Explainer]) -> list[NotApplicable]:
    """The cells that can never be measured, and that `plan` therefore leaves out, with the axiom's reason."""
    explainers = list(explainers)
    return [
        NotApplicable(axiom=name, explainer=explainer.name, reason=reason)
        for name in axioms
        if AXIOMS[name].needs_explainer
        for explainer in explainers
        if (reason := AXIOMS[name].not_applicable(explainer)) is not None
    ]
