"""A check, and a claim that must be measured, as functions that pass, fail or skip a test of pytest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pytest

from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import Group, Status
from faithcheck.check import Check
from faithcheck.reports.pages import wording
from faithcheck.request import Settings


@dataclass(frozen=True)
class AxiomCheck:
    """One check as a test: a function without arguments, which fails, skips or returns.

    Attributes:
        check: the axiom, the explainer and the subject.
        settings: seed, floating-point type and device.
        expected_failure: the reason for which it is known to be red; ``""`` if it should be green.
    """

    check: Check
    settings: Settings
    expected_failure: str = ""

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

    It runs checks until one is measured, and none again that has run in this process: whatever tests are chosen, and
    however they are spread over processes, its outcome is the same.

    Attributes:
        axiom: the claimed axiom.
        explainer: the name of the explainer that claims it.
        checks: the checks of the axiom on the explainer.
        reason: why there are no checks, if there are none.
    """

    axiom: str
    explainer: str
    checks: Sequence[AxiomCheck]
    reason: str

    @property
    def id(self) -> str:
        """``claim-explainer-axiom``."""
        return f"claim-{self.explainer}-{self.axiom}"

    def __call__(self) -> None:
        """Look for a check that was measured.

        Raises:
            pytest.fail.Exception: there is none.
        """
        if not any(check.record.group is not Group.SKIP for check in self.checks):
            reasons = [str(check.record.detail.get("reason", "unsupported")) for check in self.checks]
            why = (
                f"each of {len(reasons)} checks was skipped, the first because {reasons[0]}" if reasons else self.reason
            )
            pytest.fail(f"{self.explainer} claims {self.axiom}, and no check measured it: {why}", pytrace=False)
