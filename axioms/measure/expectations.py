"""What is expected of an explainer under an axiom on a subject, and the refusal of expectations that match no check.

Expectations are looked up by the explainer's name. If its attribute ``like`` names a built-in explainer, it is held to
that one's claims and expectations too. Without ``like``, no other class may have the name of a built-in explainer,
whose expectations it would inherit silently. A typo would silently expect nothing: so every expectation must match a
check that could be planned.
"""

import fnmatch
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

from faithcheck.axioms.measure.axiom import Axiom
from faithcheck.axioms.measure.registry import AXIOMS
from faithcheck.explainers.builtin import builtin_explainers
from faithcheck.explainers.protocol import Explainer, expected_like
from faithcheck.models.expectation import Expectation
from faithcheck.models.pair import Pair, registered_pairs
from faithcheck.models.unknown_name import unknown_name

SubjectsByAxiom: TypeAlias = Mapping[str, Sequence[str]]
"""The names of all subjects of each axiom."""


@dataclass(frozen=True)
class SuppliedExpectation:
    """An expectation that the user supplies by ``--expectations``; it takes precedence over all others."""

    axiom: str
    explainer: str  # a name or a glob
    subject: str  # a pair or, with .f or .g, one of its models; or a glob
    expectation: Expectation

    def matches(self, axiom: str, explainer: str, subject: str) -> bool:
        """Whether the expectation is about this check."""
        patterns = ((explainer, self.explainer), (subject, self.subject))
        return self.axiom == axiom and all(fnmatch.fnmatchcase(name, pattern) for name, pattern in patterns)


def held_like(explainer: Explainer, name: str) -> Explainer:
    """A copy of the explainer that is held to the claims and expectations of this built-in explainer.

    Raises `ValueError` if no built-in explainer has the name, or the explainer takes no attribute.
    """
    if name not in builtin_explainers():
        raise ValueError(unknown_name("built-in explainer", name, builtin_explainers()))
    held = copy(explainer)
    try:
        object.__setattr__(held, "like", name)  # frozen dataclasses too
    except AttributeError as error:
        raise ValueError(f"{explainer.name} takes no attribute: write like = {name!r} in its class") from error
    return held


def claims_of(explainer: Explainer) -> frozenset[str]:
    """The axioms that the explainer, or the built-in explainer that it is held to, claims to satisfy."""
    return frozenset().union(*(getattr(source, "claims", ()) for source in _sources(explainer)))


def explicit_expectation(
    axiom: Axiom, explainer: Explainer | None, pair: Pair, subject: str, supplied: Sequence[SuppliedExpectation] = ()
) -> Expectation | None:
    """The user's expectation, else that of the pair or of the explainer; None if neither has one.

    Without an explainer the pair itself is measured, and must hold.
    """
    if explainer is None:
        return Expectation("HOLDS", pair.why, cite=pair.cite)
    for expectation in supplied:
        if expectation.matches(axiom.name, explainer.name, subject):
            return expectation.expectation
    for name in dict.fromkeys((explainer.name, expected_like(explainer))):
        if by_pair := pair.expected.get((axiom.name, name)):
            return by_pair
    candidates = [
        (glob, expectation)
        for source in _sources(explainer)
        for (of, glob), expectation in getattr(source, "expected", {}).items()
        if of == axiom.name
    ]
    return next((expectation for glob, expectation in candidates if fnmatch.fnmatchcase(subject, glob)), None)


def expectation_of(
    axiom: Axiom, explainer: Explainer | None, pair: Pair, subject: str, supplied: Sequence[SuppliedExpectation] = ()
) -> Expectation:
    """What theory expects: the explicit expectation, else the explainer's claim."""
    if (explicit := explicit_expectation(axiom, explainer, pair, subject, supplied)) is not None:
        return explicit
    assert explainer is not None  # without an explainer the expectation is explicit
    if axiom.mandatory:
        return Expectation("HOLDS", "every explainer is held to it")
    for source in _sources(explainer):
        for claimed in (axiom.name, axiom.part_of):
            if claimed in getattr(source, "claims", ()):
                return Expectation("HOLDS", f"{source.name} claims {claimed}")
    return Expectation("UNCLAIMED", f"{explainer.name} does not claim {axiom.name}")


def stated_axioms(explainer: Explainer, pairs: Sequence[Pair]) -> list[str]:
    """The axioms that the explainer claims, applicable or not, and those that it or a pair has an expectation of."""
    claims = claims_of(explainer)

    def is_expected(axiom: Axiom) -> bool:
        subjects = ((pair, f"{pair.name}.{side}".rstrip(".")) for pair in pairs for side in axiom.sides(pair))
        return any(
            explicit_expectation(axiom, explainer, pair, subject)
            for pair, subject in subjects
            if axiom.is_measured_on(pair)
        )

    return [
        axiom.name
        for axiom in AXIOMS.values()
        if axiom.needs_explainer
        and (
            axiom.name in claims
            or (axiom.not_applicable(explainer) is None and (axiom.part_of in claims or is_expected(axiom)))
        )
    ]


def _sources(explainer: Explainer) -> Iterator[Explainer]:
    """The explainer, and the built-in explainer that it is held to."""
    yield explainer
    if getattr(explainer, "like", ""):
        yield builtin_explainers()[expected_like(explainer)]


def refuse_stale_expectations(
    explainers: Sequence[Explainer], pairs: Sequence[Pair], supplied: Sequence[SuppliedExpectation] = ()
) -> None:
    """Refuse malformed explainers, and expectations that match no check; ``supplied`` are the user's expectations.

    Raises `ValueError`, which names the expectation or the claim, and the nearest name that exists.
    """
    for explainer in explainers:
        refuse_malformed(explainer)
    known = {**{explainer.name: explainer for explainer in explainers}, **builtin_explainers()}
    all_pairs = list({pair.name: pair for pair in (*registered_pairs().values(), *pairs)}.values())
    names = [pair.name for pair in all_pairs]
    subjects = {axiom.name: axiom.subjects_among(all_pairs) for axiom in AXIOMS.values()}
    for pair in pairs:
        _refuse_stale_in_pair(pair, known)
    for axiom in AXIOMS.values():
        for glob in axiom.subjects:
            if not fnmatch.filter(names, glob):
                raise ValueError(f"the axiom {axiom.name} is measured on an {unknown_name('pair', glob, names)}")
    for explainer in explainers:
        for name, glob in getattr(explainer, "expected", {}):
            _refuse_unmatched(explainer.name, name, [explainer], glob, subjects)
    for expectation in supplied:
        stated_by = f"the expectation of {expectation.explainer} on {expectation.subject}"
        matching = [known[name] for name in fnmatch.filter(known, expectation.explainer)]
        if not matching:
            raise ValueError(f"{stated_by} is of an {unknown_name('explainer', expectation.explainer, known)}")
        _refuse_unmatched(stated_by, expectation.axiom, matching, expectation.subject, subjects)
    _refuse_ambiguous(supplied, known, subjects)


def _refuse_stale_in_pair(pair: Pair, known: Mapping[str, Explainer]) -> None:
    for name, explainer in pair.expected:
        if explainer not in known:
            raise ValueError(f"{pair.name} expects something of an {unknown_name('explainer', explainer, known)}")
        if name not in AXIOMS or not AXIOMS[name].is_measured_on(pair):
            measured = [axiom.name for axiom in AXIOMS.values() if axiom.needs_explainer and axiom.is_measured_on(pair)]
            raise ValueError(f"{pair.name} expects something of an {unknown_name('axiom', name, measured)}")
        _refuse_not_applicable(pair.name, AXIOMS[name], [known[explainer]])


def _refuse_unmatched(
    stated_by: str, axiom: str, explainers: Sequence[Explainer], subject: str, subjects: SubjectsByAxiom
) -> None:
    """Refuse an expectation whose axiom or subject (a name or a glob) does not exist, or that does not apply."""
    if axiom not in AXIOMS:
        raise ValueError(f"{stated_by} expects something of an {unknown_name('axiom', axiom, AXIOMS)}")
    if not fnmatch.filter(subjects[axiom], subject):
        raise ValueError(f"{stated_by} expects something of an {unknown_name('subject', subject, subjects[axiom])}")
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
    supplied: Sequence[SuppliedExpectation], known: Mapping[str, Explainer], subjects: SubjectsByAxiom
) -> None:
    for axiom in {expectation.axiom for expectation in supplied}:
        for name, subject in product(known, subjects[axiom]):
            matching = [expectation for expectation in supplied if expectation.matches(axiom, name, subject)]
            if len(matching) > 1:
                patterns = " and ".join(f"{expectation.explainer} on {expectation.subject}" for expectation in matching)
                raise ValueError(
                    f"{axiom}: two expectations of {name}-{subject} are supplied ({patterns}): remove one of them"
                )


def refuse_malformed(explainer: Explainer) -> None:
    """Raise `ValueError` if the explainer's name or what it states cannot be read, or the name is a built-in one's."""
    name, claims, expected = explainer.name, getattr(explainer, "claims", ()), getattr(explainer, "expected", {})
    if not name or not name.isprintable() or " " in name:
        raise ValueError(f"an explainer's name is printable and has no spaces, got {name!r}")
    _refuse_name_of_builtin(explainer)
    if not isinstance(claims, Collection) or isinstance(claims, str):
        raise ValueError(f"{name}.claims is a collection of axioms, such as {{'invariance'}}, got {claims!r}")
    for axiom in claims:
        if axiom not in AXIOMS:
            raise ValueError(f"{name} claims an {unknown_name('axiom', str(axiom), AXIOMS)}")
        if not AXIOMS[axiom].needs_explainer:
            raise ValueError(f"{name} claims {axiom}, which is measured of pairs and not of explainers: remove it")
    has_keys = isinstance(expected, Mapping) and all(isinstance(key, tuple) and len(key) == 2 for key in expected)
    if not has_keys or not all(isinstance(value, Expectation) for value in expected.values()):
        raise ValueError(f"{name}.expected is a mapping {{(axiom, pair or glob): Expectation(…)}}, got {expected!r}")


def _refuse_name_of_builtin(explainer: Explainer) -> None:
    builtin, like = builtin_explainers(), getattr(explainer, "like", "")
    if like and like not in builtin:
        raise ValueError(f"{explainer.name} is held to an {unknown_name('built-in explainer', like, builtin)}")
    if not like and explainer.name in builtin and type(explainer) is not type(builtin[explainer.name]):
        kind = type(explainer)
        raise ValueError(
            f"an explainer of the class {kind.__module__}.{kind.__qualname__} is named {explainer.name!r}, which is a "
            "built-in explainer's name: choose another; to be held to that one's claims and expectations, it says "
            f"like = {explainer.name!r}"
        )
