"""Expectations that the user supplies, and the refusal of expectations that match no check.

A typo in an expectation would silently expect nothing. So every expectation must match a check that could be planned.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from faithcheck.axioms.engine.axiom import Axiom
from faithcheck.axioms.engine.registry import AXIOMS
from faithcheck.explainers.protocol import Explainer
from faithcheck.explainers.registry import builtin_explainers, unknown_name
from faithcheck.models.expectation import Expectation
from faithcheck.models.pair import Pair, registered_pairs


@dataclass(frozen=True)
class SuppliedExpectation:
    """An expectation that the user supplies, by ``--expectations``.

    Attributes:
        axiom: its name.
        explainer: its name, or a glob.
        subject: a pair or, with ``.f`` or ``.g``, one of its models, or a glob.
        expectation: what is expected there. It takes precedence over those of the pair, the explainer and the axiom.
    """

    axiom: str
    explainer: str
    subject: str
    expectation: Expectation

    def matches(self, axiom: str, explainer: str, subject: str) -> bool:
        """Whether the expectation is about this check."""
        patterns = ((explainer, self.explainer), (subject, self.subject))
        return self.axiom == axiom and all(fnmatch.fnmatchcase(name, pattern) for name, pattern in patterns)


def refuse_stale_expectations(
    explainers: Sequence[Explainer], pairs: Sequence[Pair], supplied: Sequence[SuppliedExpectation] = ()
) -> None:
    """Refuse malformed explainers, and expectations that match no check.

    Args:
        explainers: the explainers that are checked.
        pairs: the pairs on which they are checked.
        supplied: the user's expectations.

    Raises:
        ValueError: names the expectation or the claim, and the nearest name that exists.
    """
    for explainer in explainers:
        refuse_malformed(explainer)
    known = {**builtin_explainers(), **{explainer.name: explainer for explainer in explainers}}
    all_pairs = list({pair.name: pair for pair in (*registered_pairs().values(), *pairs)}.values())
    for pair in pairs:
        _refuse_stale_in_pair(pair, known)
    for axiom in AXIOMS.values():
        _refuse_stale_in_axiom(axiom, known, all_pairs)
    for explainer in explainers:
        for name, glob in getattr(explainer, "expected", {}):
            _refuse_unmatched(explainer.name, name, [explainer], glob, all_pairs)
    for expectation in supplied:
        stated_by = f"the expectation of {expectation.explainer} on {expectation.subject}"
        matching = [known[name] for name in fnmatch.filter(known, expectation.explainer)]
        if not matching:
            raise ValueError(f"{stated_by} is of an {unknown_name('explainer', expectation.explainer, known)}")
        _refuse_unmatched(stated_by, expectation.axiom, matching, expectation.subject, all_pairs)
    _refuse_ambiguous(supplied, known, all_pairs)


def _refuse_stale_in_pair(pair: Pair, known: Mapping[str, Explainer]) -> None:
    for name, explainer in pair.expected:
        _refuse_unknown_explainer(pair.name, explainer, known)
        if name not in AXIOMS or not AXIOMS[name].is_measured_on(pair):
            measured = [axiom.name for axiom in AXIOMS.values() if axiom.needs_explainer and axiom.is_measured_on(pair)]
            raise ValueError(f"{pair.name} expects something of an {unknown_name('axiom', name, measured)}")
        _refuse_not_applicable(pair.name, AXIOMS[name], [known[explainer]])


def _refuse_stale_in_axiom(axiom: Axiom, known: Mapping[str, Explainer], pairs: Sequence[Pair]) -> None:
    names = [pair.name for pair in pairs]
    for glob in axiom.subjects:
        if not fnmatch.filter(names, glob):
            raise ValueError(f"the axiom {axiom.name} is measured on an {unknown_name('pair', glob, names)}")
    for explainer, glob in axiom.expected:
        _refuse_unknown_explainer(f"the axiom {axiom.name}", explainer, known)
        _refuse_unmatched(f"the axiom {axiom.name}", axiom.name, [known[explainer]], glob, pairs)


def _refuse_unknown_explainer(stated_by: str, name: str, known: Mapping[str, Explainer]) -> None:
    if name not in known:
        raise ValueError(f"{stated_by} expects something of an {unknown_name('explainer', name, known)}")


def _refuse_unmatched(
    stated_by: str, axiom: str, explainers: Sequence[Explainer], subject: str, pairs: Sequence[Pair]
) -> None:
    """Refuse an expectation whose axiom or subject (a name or a glob) does not exist, or that does not apply."""
    if axiom not in AXIOMS:
        raise ValueError(f"{stated_by} expects something of an {unknown_name('axiom', axiom, AXIOMS)}")
    subjects = AXIOMS[axiom].subjects_among(pairs)
    if not fnmatch.filter(subjects, subject):
        raise ValueError(f"{stated_by} expects something of an {unknown_name('subject', subject, subjects)}")
    _refuse_not_applicable(stated_by, AXIOMS[axiom], explainers)


def _refuse_not_applicable(stated_by: str, axiom: Axiom, explainers: Sequence[Explainer]) -> None:
    """Refuse an expectation of explainers to all of which the axiom does not apply."""
    reasons = [axiom.not_applicable(explainer) for explainer in explainers]
    if all(reason is not None for reason in reasons):
        names = ", ".join(explainer.name for explainer in explainers)
        raise ValueError(
            f"{stated_by} expects something of {names} under {axiom.name}, which does not apply: {reasons[0]}; "
            "remove the expectation"
        )


def _refuse_ambiguous(
    supplied: Sequence[SuppliedExpectation], known: Mapping[str, Explainer], pairs: Sequence[Pair]
) -> None:
    for axiom in {expectation.axiom for expectation in supplied}:
        for name, subject in product(known, AXIOMS[axiom].subjects_among(pairs)):
            matching = [expectation for expectation in supplied if expectation.matches(axiom, name, subject)]
            if len(matching) > 1:
                patterns = " and ".join(f"{expectation.explainer} on {expectation.subject}" for expectation in matching)
                raise ValueError(
                    f"{axiom}: two expectations of {name}-{subject} are supplied ({patterns}): remove one of them"
                )


def refuse_malformed(explainer: Explainer) -> None:
    """Refuse an explainer whose name, claims or known violations cannot be read.

    Raises:
        ValueError: says what was expected and what the explainer has.
    """
    name, claims, expected = explainer.name, getattr(explainer, "claims", ()), getattr(explainer, "expected", {})
    if not name or not name.isprintable() or " " in name:
        raise ValueError(f"an explainer's name is printable and has no spaces, got {name!r}")
    if not isinstance(claims, Collection) or isinstance(claims, str):
        raise ValueError(f"{name}.claims is a collection of axioms, such as {{'invariance'}}, got {claims!r}")
    for axiom in claims:
        if axiom not in AXIOMS:
            raise ValueError(f"{name} claims an {unknown_name('axiom', str(axiom), AXIOMS)}")
    has_keys = isinstance(expected, Mapping) and all(isinstance(key, tuple) and len(key) == 2 for key in expected)
    if not has_keys or not all(isinstance(value, Expectation) for value in expected.values()):
        raise ValueError(f"{name}.expected is a mapping {{(axiom, pair or glob): Expectation(…)}}, got {expected!r}")
