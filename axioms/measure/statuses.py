"""The one home of the statuses of checks. It imports no torch, so that pages are made from a document at once."""

from enum import Enum


class Group(Enum):
    """How statuses are counted together in tables; the symbol heads the column of the group."""

    PASS = "pass", "✓"
    PREDICTED = "predicted", "≠"
    RECORDED = "recorded", "·"
    RED = "red", "✗"
    SKIP = "skip", "–"
    UNMEASURED = "unmeasured", "?"

    def __init__(self, label: str, symbol: str) -> None:
        self.label, self.symbol = label, symbol


class Status(Enum):
    """How a check settled. ``label`` is what records and documents hold, a plain string."""

    HOLDS = "holds", "✓", Group.PASS, "the axiom holds, as expected"
    PREDICTED_VIOLATION = (
        "predicted violation",
        "≠",
        Group.PREDICTED,
        "the axiom is violated by the amount that theory predicts",
    )
    EXPECTED_ERROR = "expected error", "≠", Group.PREDICTED, "the explainer raises the error that is expected of it"
    RECORDED = "recorded", "·", Group.RECORDED, "measured; nothing is claimed"
    BROKEN_CLAIM = "broken claim", "✗", Group.RED, "the axiom should hold and does not"
    VIOLATION_VANISHED = "violation vanished", "✗", Group.RED, "a violation or an error is expected and there is none"
    INCONCLUSIVE = "inconclusive", "✗", Group.RED, "violated, but not by the amount that theory predicts"
    LEFT_BEHIND = "left behind", "✗", Group.RED, "the explainer left something behind on the model or in the process"
    ERROR = "error", "!", Group.RED, "the check could not be measured"
    UNSUPPORTED = (
        "unsupported",
        "–",
        Group.SKIP,
        "the explainer has no rule for something in the model, or a library that the pair needs is not installed",
    )
    NOT_MEASURED = "not measured", "?", Group.RED, "the axiom is claimed, and no check of the run measured it"
    NOT_A_PAIR = (
        "not a pair",
        "?",
        Group.UNMEASURED,
        "the two models are not one function, so that the check says nothing of the explainer",
    )
    NOT_RUN = "not run", "?", Group.UNMEASURED, "the check was planned and did not run"

    def __init__(self, label: str, symbol: str, group: Group, meaning: str) -> None:
        self.label, self.symbol, self.group, self.meaning = label, symbol, group, meaning


BY_LABEL = {status.label: status for status in Status}
"""The statuses by the string that records hold. A document of another version may hold others: those count as red."""


def group_of(status: str) -> Group:
    """The group of a status by its label. A status that this version does not know counts as red."""
    return BY_LABEL[status].group if status in BY_LABEL else Group.RED


def labels(*groups: Group) -> tuple[str, ...]:
    """The labels of the statuses in these groups."""
    return tuple(status.label for status in Status if status.group in groups)


PASSING = labels(Group.PASS, Group.PREDICTED, Group.RECORDED)
RED = labels(Group.RED)
SKIPPED = labels(Group.SKIP)
UNMEASURED = labels(Group.UNMEASURED)
