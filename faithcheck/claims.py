"""What explainers claim: a claim is green only where a check measured it.

Claims are an explainer's ``claims`` and the user's. One that the run was to measure and did not becomes a record of
status ``not measured``, on the subject ``*``.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy

from faithcheck.axioms.measure.expectations import claims_of
from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.registry import AXIOMS
from faithcheck.axioms.measure.statuses import SKIPPED, Status
from faithcheck.check import Check
from faithcheck.explainers.builtin import claims_of_kind, kinds
from faithcheck.explainers.protocol import Explainer
from faithcheck.models.unknown_name import unknown_name
from faithcheck.request import Request

ANYWHERE = "*"
"""The subject of a claim that was not measured: no pair in particular."""


def claiming(explainer: Explainer, names: Iterable[str]) -> Explainer:
    """A copy that also claims these axioms, or a kind's; `ValueError`: unknown, or the explainer takes no attribute."""
    of_explainers = [axiom.name for axiom in AXIOMS.values() if axiom.needs_explainer]
    claimed = frozenset(getattr(explainer, "claims", ()))
    more: set[str] = set()
    for name in names:
        if name not in of_explainers and name not in (known := kinds()):
            raise ValueError(unknown_name("axiom or kind of explainers", name, {*of_explainers, *known}))
        more |= {name} if name in of_explainers else claims_of_kind(name)
    if more <= claimed:
        return explainer
    copied = copy(explainer)
    try:
        object.__setattr__(copied, "claims", claimed | more)  # frozen dataclasses too
    except AttributeError as error:
        raise ValueError(f"the claims of {explainer.name} cannot be set: write them in its class") from error
    return copied


def stated(explainer: Explainer, checks: Iterable[Check]) -> list[str]:
    """The axioms claimed or expected in a check; mandatory ones, which are no claim, only if no other is run."""
    own = [check for check in checks if check.explainer is not None and check.explainer.name == explainer.name]
    beyond = [check for check in own if not AXIOMS[check.axiom].mandatory]
    expected = {check.axiom for check in beyond or own if check.expectation.verdict != "UNCLAIMED"}
    return sorted(claims_of(explainer) | expected)


def unmeasured_claims(request: Request, checks: Iterable[Check], records: Iterable[Record]) -> list[Record]:
    """A record for each claim that the run was to measure, and that no check measured.

    A claim that has no check on the chosen pairs is outside the run, unless its axiom applies on no pair at all.
    """
    planned = {(check.axiom, check.explainer.name) for check in checks if check.explainer is not None}
    settled: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        settled.setdefault((record.axiom, str(record.explainer)), []).append(record)
    return [
        _not_measured(axiom, explainer, reason, request.settings.seed)
        for explainer in request.explainers
        for axiom in sorted(claims_of(explainer) & {*request.axioms})
        if (key := (axiom, explainer.name)) in planned or AXIOMS[axiom].not_applicable(explainer) is not None
        if (reason := _why_unmeasured(axiom, explainer, settled.get(key, []), key in planned))
    ]


def _why_unmeasured(axiom: str, explainer: Explainer, records: Sequence[Record], planned: bool) -> str:
    """Why no check measured the claim; "" if one did, or if checks did not run, which is red by itself."""
    if not planned:
        return f"{axiom} does not apply to {explainer.name}: {AXIOMS[axiom].not_applicable(explainer)}"
    if not records or any(record.status not in SKIPPED for record in records):
        return ""
    reasons = Counter(str(record.detail.get("reason", "unsupported")) for record in records)
    (most_frequent, _), *others = reasons.most_common()
    more = f", and {len(others)} more reasons" if others else ""
    return f"each of its {len(records)} checks was skipped: {most_frequent}{more}"


def _not_measured(axiom: str, explainer: Explainer, reason: str, seed: int) -> Record:
    return Record(
        id=f"{axiom}/{explainer.name}-{ANYWHERE}",
        axiom=axiom,
        explainer=explainer.name,
        subject=ANYWHERE,
        gap=None,
        tol=None,
        predicted=None,
        prediction_error=None,
        floor=None,
        expected="HOLDS",
        status=Status.NOT_MEASURED.label,
        why=f"{explainer.name} claims {axiom}",
        cite="",
        seed=seed,
        detail={"reason": reason},
        traceback=None,
    )
