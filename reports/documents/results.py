"""The results document, of one run of the suite, and what follows from it: the verdict, what is red or missing."""

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from msgspec import Struct, field

from faithcheck.axioms.measure.record import Number, Record
from faithcheck.axioms.measure.statuses import Group, Status
from faithcheck.reports.documents import document
from faithcheck.reports.documents.document import Document, Run
from faithcheck.reports.documents.figure import Figure

DIGITS = 8
"""The digits of a hash where it is shown."""

# --- the parts -------------------------------------------------------------------------------------------------------


class NotApplicable(Struct, frozen=True, kw_only=True):
    """An axiom that cannot be measured for an explainer, and why."""

    axiom: str
    explainer: str
    reason: str


class RunSettings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a run; a mapping is by the name of an explainer or of a pair."""

    seed: int
    dtype: str
    device: str
    data: str  # where the handwritten digits are from
    threads: int
    max_skips: int | None = None  # None for any number
    explainers: list[str] = []
    specs: dict[str, str] = {}  # what loads an explainer that the user named
    origins: dict[str, str] = {}
    pairs: int | None = None
    pair_origins: dict[str, str] = {}  # of pairs that are not built in
    expectations: int | None = None  # how many the user supplied
    rules: dict[str, list[str]] = {}  # the operations in the table of rules of an LRP explainer
    not_applicable: list[NotApplicable] = []
    arguments: list[str] = []  # the command line
    claimed: dict[str, list[str]] = {}  # the axioms that are claimed or expected of an explainer that the user named


class Catalogue(Struct, frozen=True, kw_only=True):
    """The catalogue of a run: its version, its hash, and a digest of each built-in axiom and pair."""

    version: str
    hash: str
    tolerances: dict[str, Number | None]
    axioms: dict[str, str]
    pairs: dict[str, str]

    @property
    def name(self) -> str:
        """The version with the beginning of the hash: ``2026.12 (1a2b3c4d)``."""
        return f"{self.version} ({self.hash[:DIGITS]})"


class Counts(Struct, frozen=True, kw_only=True):
    """How many tests there were."""

    planned: int
    ran: int
    passed: int
    failed: int
    skipped: int
    deselected: int


class RulesMet(Struct, frozen=True, kw_only=True):
    """How many rules of an LRP explainer the checks met, of how many, and the operations of the others."""

    met: int
    of: int
    unmet: list[str]


class TimedCheck(Struct, frozen=True, kw_only=True):
    """How long a check took."""

    id: str  # of its record
    seconds: Number | None


class Skips(Struct, frozen=True, kw_only=True):
    """The tests that were skipped for one reason."""

    reason: str
    count: int
    ids: list[str]


class Failure(Struct, frozen=True, kw_only=True):
    """A test that failed and left no red record."""

    id: str
    message: str


class MeasuredTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table that a test added; raises `ValueError` if a row has more or fewer cells than there are columns."""

    title: str
    note: str
    columns: list[str]
    rows: list[list[object]]

    def __post_init__(self) -> None:
        for i, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: rows[{i}] has {len(row)} cells, not {len(self.columns)}")


# --- the document ----------------------------------------------------------------------------------------------------


class Results(Document, frozen=True, kw_only=True, omit_defaults=True):
    """What one run of the suite measured."""

    NAME: ClassVar[str] = "results"
    WRITER: ClassVar[str] = "faithcheck check or pytest"
    VERSION: ClassVar[int] = 2

    created: str  # in ISO's format
    settings: RunSettings
    axioms: dict[str, str]  # the summary of each
    counts: Counts
    skips: list[Skips]  # the most frequent reason first
    failures: list[Failure]
    records: list[Record]
    tables: list[MeasuredTable]
    figures: list[Figure]
    catalogue: Catalogue | None = None  # None in documents of older versions
    usual_causes: dict[str, str] = field(default_factory=dict)  # of a red record, by axiom
    rules: dict[str, RulesMet] = field(default_factory=dict)
    slowest: list[TimedCheck] = field(default_factory=list)
    seconds: Number | None = None  # of all checks
    run: Run | None = None
    reused: int = 0  # how many checks used again what another one had measured


def load(path: Path) -> Results:
    """Read a results document; raises `DocumentError` if the file has none that this version can read."""
    return document.load(path, Results)


def skips_by_reason(skipped: Iterable[tuple[str, str]]) -> list[Skips]:
    """Group ``(id, reason)`` by reason, the most frequent first."""
    groups: dict[str, list[str]] = {}
    for node, reason in sorted(skipped):
        groups.setdefault(reason, []).append(node)
    rows = [Skips(reason=reason, count=len(ids), ids=ids) for reason, ids in groups.items()]
    return sorted(rows, key=lambda row: (-row.count, row.reason))


# --- what follows ----------------------------------------------------------------------------------------------------

NO_VERDICT = 3
"""The exit code of a run without a verdict: neither green nor red."""


def is_red(results: Results) -> bool:
    """Whether a check or test failed or did not run, a claim was not measured, or --max-skips was exceeded."""
    failed = red_records(results) or results.failures or results.counts.failed
    return bool(failed or not_run(results) or too_many_skips(results))


def verdict(results: Results) -> Group:
    """The verdict: ``RED``, ``PASS``, or ``RECORDED`` if nothing was measured that some explainer claims."""
    if is_red(results):
        return Group.RED
    return Group.RECORDED if without_verdict(results) else Group.PASS


def exit_code(results: Results) -> int:
    """The exit code of a command by the verdict: 0, 1 if something is red, `NO_VERDICT` without a verdict."""
    return {Group.RED: 1, Group.RECORDED: NO_VERDICT}.get(verdict(results), 0)


def too_many_skips(results: Results) -> bool:
    """Whether more tests were skipped than --max-skips allows."""
    allowed = results.settings.max_skips
    return allowed is not None and results.counts.skipped > allowed


def unmeasured_claims(results: Results) -> list[str]:
    """The axioms that are claimed, that the run was to measure, and that no check measured; each once."""
    return sorted({record.axiom for record in results.records if record.status == Status.NOT_MEASURED.label})


def claims_outside(results: Results) -> list[str]:
    """The axioms that an explainer of the run claims and for which the run has no check of it; each once."""
    checked = {(record.axiom, record.explainer) for record in results.records}
    claimed = results.settings.claimed.items()
    return sorted({axiom for name, axioms in claimed for axiom in axioms if (axiom, name) not in checked})


def without_verdict(results: Results) -> dict[str, str]:
    """The explainers without a verdict, each with the reason: no axiom that it claims was measured, and none is red."""
    reasons = {}
    for name, axioms in results.settings.claimed.items():
        own = [record for record in results.records if record.explainer == name]
        judged = {record.group for record in own if record.axiom in axioms and record.expected != "UNCLAIMED"}
        failed = any(record.group is Group.RED for record in own)
        if not failed and not judged & {Group.PASS, Group.PREDICTED}:
            reasons[name] = "nothing that is claimed was measured" if axioms else "nothing is claimed"
    return reasons


def red_records(results: Results) -> list[Record]:
    """The records that are not as expected."""
    return [record for record in results.records if record.group is Group.RED]


def not_run(results: Results) -> int:
    """How many planned tests did not run: the run was stopped, or their explainer ended too many processes."""
    return results.counts.planned - results.counts.ran - results.counts.skipped
