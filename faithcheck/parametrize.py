"""The checks in a user's own test file: `parametrize_with_axioms`, and the generator behind it, `axiom_checks`."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from faithcheck.axioms.measure.expectations import claims_of
from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import Group, Status
from faithcheck.check import Check
from faithcheck.claims import stated
from faithcheck.models.pair import Pair
from faithcheck.plan import checks_of_request, not_applicable
from faithcheck.python_api import request_for
from faithcheck.reports.pages import wording
from faithcheck.request import Request, Settings


def axiom_checks(
    explainers: Any,
    *,
    axioms: str | Iterable[str] | None = None,
    pairs: str | Pair | Iterable[str | Pair] | None = None,
    expected_failures: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> Iterator[AxiomCheck | ClaimCheck]:
    """The checks of explainers as functions without arguments, each with an ``id``, in the same order every time.

    After the checks of an explainer comes one for each claim among the axioms: it fails if nothing measured the claim.

    Args:
        explainers: an explainer or several, each anything that `faithcheck.check_explainer` takes.
        axioms: the name of an axiom, or several; by default what an explainer claims, what is expected of it, and what
            authors ask about first.
        pairs: pairs, their names, or globs such as ``"product.*"``, one or several; by default all registered pairs.
        expected_failures: the ids of checks that are known to be red, or globs, each with the reason:
            ``{"completeness-my_explainer-product.*": "the midpoint rule has eight points"}``. Each of these checks must
            be red.
        settings: by default seed 0, float64, on the CPU.

    Raises:
        ValueError: as `faithcheck.check_explainer`; two explainers of one name; an explainer of which nothing is
            claimed or expected; or an expected failure without a reason or that matches no check.
    """
    alone = isinstance(explainers, str) or not isinstance(explainers, Iterable)
    requests = [request_for(one, axioms, pairs, settings) for one in ([explainers] if alone else explainers)]
    planned = {request.explainers[0].name: checks_of_request(request) for request in requests}
    if len(planned) < len(requests):
        raise ValueError("two of the explainers have one name: give each its own, its checks are named after it")
    for request in requests:
        _refuse_without_claims(request, planned[request.explainers[0].name])
    expected = expected_failures or {}
    _refuse_stale(expected, [f"{check.axiom}-{check.id}" for checks in planned.values() for check in checks])
    of_pairs: set[str] = set()
    for request in requests:
        tests = [_test(check, request.settings, expected) for check in planned[request.explainers[0].name]]
        for test in tests:
            if test.check.explainer is not None or test.id not in of_pairs:
                yield test
            if test.check.explainer is None:  # whether two models are a pair is one test, not one an explainer
                of_pairs.add(test.id)
        yield from _claims(request, tests)


def parametrize_with_axioms(
    explainers: Any,
    *,
    axioms: str | Iterable[str] | None = None,
    pairs: str | Pair | Iterable[str | Pair] | None = None,
    expected_failures: Mapping[str, str] | None = None,
    settings: Settings | None = None,
) -> pytest.MarkDecorator:
    """A decorator of a test with the argument ``check``: one test for each check of the explainers.

    .. code-block:: python

        @parametrize_with_axioms([MyExplainer()], axioms="invariance", pairs="product.*")
        def test_axioms(check):
            check()

    Args and errors are those of `faithcheck.axiom_checks`.
    """
    checks = [
        *axiom_checks(explainers, axioms=axioms, pairs=pairs, expected_failures=expected_failures, settings=settings)
    ]
    return pytest.mark.parametrize("check", checks, ids=[check.id for check in checks])


def _refuse_without_claims(request: Request, checks: Sequence[Check]) -> None:
    """Refuse an explainer of which nothing is claimed or expected."""
    (explainer,) = request.explainers
    if not stated(explainer, checks):
        raise ValueError(
            f"nothing is claimed of {explainer.name}, so that its tests could not fail: give it `claims`, such as "
            'claims = {"invariance"}'
        )


def _test(check: Check, settings: Settings, expected: Mapping[str, str]) -> AxiomCheck:
    name = f"{check.axiom}-{check.id}"
    reasons = [reason for pattern, reason in expected.items() if fnmatch.fnmatchcase(name, pattern)]
    return AxiomCheck(check, settings, "; ".join(reasons))


def _refuse_stale(expected: Mapping[str, str], names: Sequence[str]) -> None:
    """Refuse an expected failure that has no reason, or that is about no check."""
    for pattern, reason in expected.items():
        if not reason:
            raise ValueError(f"expected_failures[{pattern!r}] has no reason: say why the check is known to be red")
        if not fnmatch.filter(names, pattern):
            raise ValueError(
                f"expected_failures: {pattern!r} matches none of the {len(names)} checks, such as {names[0]!r}"
            )


def _claims(request: Request, tests: Sequence[AxiomCheck]) -> Iterator[ClaimCheck]:
    """A test for each claim among the chosen axioms."""
    (explainer,) = request.explainers
    for axiom in sorted(claims_of(explainer) & {*request.axioms}):
        own = [test for test in tests if test.check.axiom == axiom]
        missing = not_applicable([axiom], [explainer])
        reason = missing[0].reason if missing else "it has no check on these pairs; give it others by pairs="
        yield ClaimCheck(axiom, explainer.name, own, reason)


@dataclass(frozen=True)
class AxiomCheck:
    """One check as a test: a function without arguments, which fails, skips or returns."""

    check: Check  # the axiom, the explainer and the subject
    settings: Settings  # seed, floating-point type and device
    expected_failure: str = ""  # the reason for which it is known to be red; ``""`` if it should be green

    @property
    def id(self) -> str:
        """``axiom-explainer-subject``."""
        return f"{self.check.axiom}-{self.check.id}"

    @cached_property
    def record(self) -> Record:
        """The record of the check, which runs when it is first asked for."""
        return self.check.run(self.settings)

    def __call__(self) -> None:
        """Run the check in a test.

        An expected failure is the outcome *xfailed*. It is one only if it was measured: an error is no such failure.

        Raises:
            pytest.fail.Exception: the check is red, was not run, or should fail and does not.
            pytest.skip.Exception: the explainer does not support the model; the message has the reason.
            pytest.xfail.Exception: the check is red as expected.
        """
        group = self.record.group
        failed = group is Group.RED and self.record.status != Status.ERROR.label
        if self.expected_failure and failed:
            pytest.xfail(self.expected_failure)
        if group in (Group.RED, Group.UNMEASURED):
            pytest.fail(wording.message(self.record), pytrace=False)
        if self.expected_failure:
            pytest.fail(
                f"{self.id} is expected to fail ({self.expected_failure}), and it settled as {self.record.status!r}: "
                "remove it from expected_failures",
                pytrace=False,
            )
        if group is Group.SKIP:
            pytest.skip(f"{self.record.explainer}: {self.record.detail.get('reason', 'unsupported')}")


@dataclass(frozen=True)
class ClaimCheck:
    """A test that a claim is measured at all: it fails if there is no check of it, or if each one is skipped.

    It runs checks until one is measured, none twice in a process, so that its outcome depends on no other test.
    """

    axiom: str
    explainer: str  # the name of the explainer that claims it
    checks: Sequence[AxiomCheck]  # the checks of the axiom on the explainer
    reason: str  # why there are no checks, if there are none

    @property
    def id(self) -> str:
        """``claim-explainer-axiom``."""
        return f"claim-{self.explainer}-{self.axiom}"

    def __call__(self) -> None:
        """Look for a check that was measured."""
        if not any(check.record.group is not Group.SKIP for check in self.checks):
            reasons = [str(check.record.detail.get("reason", "unsupported")) for check in self.checks]
            why = (
                f"each of {len(reasons)} checks was skipped, the first because {reasons[0]}" if reasons else self.reason
            )
            pytest.fail(f"{self.explainer} claims {self.axiom}, and no check measured it: {why}", pytrace=False)
