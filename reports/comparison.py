"""What changed from one document to another, in verdicts and in magnitudes: a pure function of the two.

A change is a regression in these cases and in no others:

* a record that was green and is red;
* a record that is red, and was skipped (*unsupported*) or missing;
* a record that was not skipped, and is skipped or missing now, whatever its verdict was: its verdict is not known any
  more;
* a failed test that left no red record, and did not fail before.

A magnitude changed if a gap changed by more than the threshold, relative to the larger of the two, and one of them is
above its tolerance; or if a correlation changed by more than the threshold. A change of a magnitude is no regression.

In two alignment documents every explainer counts as one record: measured, or skipped if it refused. Its correlations
count as above; its other figures count as gaps do.

Where both documents hold their examples, the differences of the examples that both measured are given with intervals:
see `faithcheck.reports.paired_differences`.

Two results documents of different catalogues are refused, or compared in what both catalogues have.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite

from msgspec.structs import asdict

from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import Group, Status, group_of
from faithcheck.reports.causes import Change, KindOfChange, kinds
from faithcheck.reports.common_catalogue import in_common
from faithcheck.reports.documents import results
from faithcheck.reports.documents.alignment import Alignment, Explainer
from faithcheck.reports.documents.document import COMMITS, Document, DocumentError
from faithcheck.reports.documents.explanation import Explanation
from faithcheck.reports.documents.results import Results
from faithcheck.reports.pages import wording
from faithcheck.reports.paired_differences import Paired, paired_differences

THRESHOLD = 0.01
CORRELATIONS = ("pearson", "spearman", "kendall")
LISTS = {
    "regressions": "regressions",
    "mended": "no longer red",
    "verdicts": "other verdicts, no worse",
    "magnitudes": "magnitudes changed",
    "appeared": "new",
    "vanished": "missing now, and skipped before",
    "skips": "reasons for which more is skipped",
}
"""The lists of a comparison, with their titles."""


@dataclass(frozen=True)
class Comparison:
    """What changed from one document to another."""

    before: str  # the old run in words
    now: str  # the new run in words
    threshold: float  # of magnitudes
    lists: Mapping[str, list[Change]]  # by the names of `LISTS`; no key where there is none
    kinds: Mapping[str, list[KindOfChange]]  # the same changes by kind
    still_red: int
    unchanged: int
    catalogues: list[str]  # how they differ, in lines
    differences: list[tuple[str, str, str]]  # settings and versions: (name, before, now)
    paired: Paired | None = None  # of two alignments

    def listed(self, name: str) -> list[Change]:
        """The changes of a list."""
        return self.lists.get(name, [])

    @property
    def regressions(self) -> list[Change]:
        """The regressions, as the docstring of the module defines them."""
        return self.listed("regressions")


@dataclass(frozen=True)
class ComparedRecord:
    """A record as it is compared. Figures are ``{name: (value, tolerance)}``; a correlation's tolerance is None."""

    status: str  # the label of a `Status`; ``failed`` for a test that left no red record
    expected: str = ""
    gap: str = ""  # as text; empty without one
    figures: Mapping[str, tuple[object, float | None]] = field(default_factory=dict)

    @property
    def red(self) -> bool:
        """Whether the record is not as expected, or the check did not run."""
        return group_of(self.status) in (Group.RED, Group.UNMEASURED)

    @property
    def skipped(self) -> bool:
        """Whether nothing was measured."""
        return group_of(self.status) is Group.SKIP


def compare(old: Document, new: Document, threshold: float = THRESHOLD, across_catalogues: bool = False) -> Comparison:
    """What changed. The docstring of the module defines a regression and a changed magnitude.

    ``threshold`` is that of magnitudes, above 0. Raises `DocumentError` for documents of two kinds, of single texts, or
    of two catalogues, unless ``across_catalogues`` asks for what both have.
    """
    catalogues: list[str] = []
    paired = None
    if type(old) is not type(new):
        raise DocumentError(f"one document is of {old.WRITER}, the other of {new.WRITER}: compare two of a kind")
    if isinstance(old, Explanation):
        raise DocumentError("documents of faithcheck explain are of one text: faithcheck align compares explainers")
    if isinstance(old, Results) and isinstance(new, Results):
        old, new, catalogues = in_common(old, new, across_catalogues)
    if isinstance(old, Alignment) and isinstance(new, Alignment):
        paired = paired_differences(old, new)
    lists, still_red, unchanged = _all_records(old, new, threshold)
    return Comparison(
        before=_run(old),
        now=_run(new),
        threshold=threshold,
        lists=lists,
        # What is no longer red has the kind that it had in the old document.
        kinds={name: kinds(rows, (old, new) if name == "mended" else (new, old)) for name, rows in lists.items()},
        still_red=still_red,
        unchanged=unchanged,
        catalogues=catalogues,
        differences=list(_differences(old, new)),
        paired=paired,
    )


Lists = dict[str, list[Change]]


# --- records ---------------------------------------------------------------------------------------------------------


def _all_records(old: Document, new: Document, threshold: float) -> tuple[Lists, int, int]:
    """The lists of changed records, and how many are still red and unchanged."""
    before, now = _records(old), _records(new)
    lists: Lists = {name: [] for name in LISTS}
    unchanged = still_red = 0
    for key in sorted(before.keys() | now.keys()):
        was, is_now = before.get(key), now.get(key)
        if (verdict := _verdict(was, is_now)) is not None:
            name, change = verdict
            lists[name].append(Change(change, key, _text(was, is_now), _text(is_now, was)))
        elif was is not None and is_now is not None:
            magnitudes = [Change(name, key, *values) for name, *values in _magnitudes(was, is_now, threshold)]
            lists["magnitudes"] += magnitudes
            still_red += is_now.red
            unchanged += not magnitudes
    lists["skips"] = list(_skips(old, new))
    return {name: rows for name, rows in lists.items() if rows}, still_red, unchanged


def _records(document: Document) -> dict[str, ComparedRecord]:
    """Records, or explainers of an alignment, and failed tests, by id; a repeated id gets a number."""
    listed: list[tuple[str, ComparedRecord]] = []
    if isinstance(document, Alignment):
        listed = [(explainer.name, _of_explainer(explainer)) for explainer in document.explainers]
    elif isinstance(document, Results):
        listed = [(record.id, _of_record(record)) for record in document.records]
        listed += [(failure.id, ComparedRecord("failed")) for failure in document.failures]
    records: dict[str, ComparedRecord] = {}
    for name, record in listed:
        key, number = name, 2
        while key in records:
            key, number = f"{name} ({number})", number + 1
        records[key] = record
    return records


def _of_record(record: Record) -> ComparedRecord:
    figures: dict[str, tuple[object, float | None]]
    figures = {name: (value, None) for name, value in record.detail.items() if name.startswith(CORRELATIONS)}
    # The gap of a correlation repeats the correlation, so it is compared only where there is none.
    figures = figures or {"gap": (record.gap, record.tol or 0.0)}
    gap = "" if record.gap is None else wording.number(record.gap, 3)
    return ComparedRecord(record.status, record.expected, gap, figures)


def _of_explainer(explainer: Explainer) -> ComparedRecord:
    figures = {
        name: (figure.mean, None if name.startswith(CORRELATIONS) else 0.0)
        for name, figure in asdict(explainer.figures).items()
        if figure is not None
    }
    skipped = Status.UNSUPPORTED if explainer.refused else Status.RECORDED
    return ComparedRecord((Status.ERROR if explainer.is_failed else skipped).label, figures=figures)


def _verdict(old: ComparedRecord | None, new: ComparedRecord | None) -> tuple[str, str] | None:
    """The list of `LISTS` that a record belongs to, and the change in words; None if its verdict is the same."""
    if old is None:
        assert new is not None
        return ("regressions", "new, and red") if new.red else ("appeared", "new")
    if new is None:
        if old.status == "failed":
            return "mended", "no longer fails"
        return ("vanished" if old.skipped else "regressions"), "missing"
    if old.status == new.status:
        return None
    if new.skipped:
        return "regressions", "no longer measured"
    if new.red:
        if old.red:
            return "verdicts", "red in another way"
        return "regressions", "was skipped, is red" if old.skipped else "was green, is red"
    if old.red:
        return "mended", "was red" if old.expected == new.expected else "was red, and the expectation is another one"
    return "verdicts", "was skipped" if old.skipped else "another verdict"


def _text(record: ComparedRecord | None, other: ComparedRecord | None) -> str:
    """A record in a few words, with its expectation if the other record has another one."""
    if record is None:
        return "–"
    gap = f", gap {record.gap}" if record.gap else ""
    expected = f", expected {record.expected}" if other is not None and other.expected != record.expected else ""
    return f"{wording.symbol(record.status)} {record.status}{gap}{expected}"


# --- magnitudes ------------------------------------------------------------------------------------------------------


def _magnitudes(old: ComparedRecord, new: ComparedRecord, threshold: float) -> Iterator[tuple[str, str, str]]:
    """The figures that changed: ``(name, before, now)``."""
    for name in sorted(old.figures.keys() | new.figures.keys()):
        was, old_tol = old.figures.get(name, (None, None))
        is_now, new_tol = new.figures.get(name, (None, None))
        correlation = name.startswith(CORRELATIONS)
        if _differ(was, is_now, threshold, max(old_tol or 0.0, new_tol or 0.0), absolute=correlation):
            values = [wording.correlation(v) if correlation else wording.number(v, 4) for v in (was, is_now)]
            yield name.replace("_", " "), values[0], values[1]


def _differ(a: object, b: object, threshold: float, tolerance: float, *, absolute: bool) -> bool:
    """Whether two figures differ by more than the threshold. A value that is not finite equals only itself."""
    if not (isinstance(a, int | float) and isinstance(b, int | float) and isfinite(a) and isfinite(b)):
        return str(a) != str(b)
    if absolute:
        return abs(a - b) > threshold
    largest = max(abs(a), abs(b))
    return largest > tolerance and abs(a - b) > threshold * largest


# --- skips -----------------------------------------------------------------------------------------------------------


def _skips(old: Document, new: Document) -> Iterator[Change]:
    """The reasons for which more tests, or explainers, are skipped than before."""
    before, now = _skip_counts(old), _skip_counts(new)
    for reason in sorted(now, key=lambda reason: (before.get(reason, 0) - now[reason], reason)):
        if now[reason] > (was := before.get(reason, 0)):
            yield Change("more are skipped" if was else "a new reason", reason, str(was), str(now[reason]))


def _skip_counts(document: Document) -> dict[str, int]:
    if isinstance(document, Alignment):
        return {f"{row.name}: {row.refused}": 1 for row in document.explainers if row.refused}
    return {skip.reason: skip.count for skip in document.skips} if isinstance(document, Results) else {}


# --- the two runs ----------------------------------------------------------------------------------------------------

_NOT_COMPARED = {"arguments", "not_applicable", *COMMITS}
"""Arguments name files, axioms that do not apply follow from the explainers, and the user's commit is the very change;
that of faithcheck is named with its version."""


def _differences(old: Document, new: Document) -> Iterator[tuple[str, str, str]]:
    """The settings and versions in which the runs differ: other changes may come from them."""
    before, now = _conditions(old), _conditions(new)
    for name in dict.fromkeys([*before, *now]):
        was, is_now = _beside(before.get(name), now.get(name)), _beside(now.get(name), before.get(name))
        if was != is_now:
            yield name, was, is_now


def _beside(value: object, other: object) -> str:
    """A setting as text beside that of the other run; only the items of a list that the other list lacks.

    Of two mappings, only the keys that both have: others, such as names of explainers, are listed elsewhere.
    """
    if isinstance(value, list) and isinstance(other, list):
        more = [str(item) for item in value if item not in other]
        return f"also {', '.join(more)}" if more else "–"
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        differ = {key: _beside(item, other[key]) for key, item in value.items() if other.get(key, item) != item}
        return ", ".join(f"{key}: {item}" for key, item in differ.items()) or "–"
    return "–" if value is None else str(value)


def _conditions(document: Document) -> dict[str, object]:
    """The settings and versions of a run, for an alignment the model and the data too."""
    conditions: dict[str, object] = {}
    if isinstance(document, Alignment):
        for part, of in (("model", document.model), ("data", document.data)):
            conditions |= {f"{part} name": of.name, f"{part} fingerprint": of.fingerprint}
    if isinstance(document, Results):
        conditions["catalogue"] = wording.catalogue(document)
    if isinstance(document, Results | Alignment):
        conditions |= asdict(document.settings)
    conditions |= {"faithcheck": _version(document), **document.environment}
    if isinstance(document, Results):
        conditions["tests not run"] = results.not_run(document)
    return {name: value for name, value in conditions.items() if name not in _NOT_COMPARED}


def _run(document: Document) -> str:
    """A run in words: its date, the user's commit, and the version of faithcheck with its own."""
    created = [document.created] if isinstance(document, Results) else []
    commit = [f"commit {_short(document.user_commit)}"] if document.user_commit else []
    return ", ".join([*created, *commit, f"faithcheck {_version(document)}"])


def _version(document: Document) -> str:
    """The version of faithcheck, with its commit if that is not the user's own."""
    commit, of_user = document.faithcheck_commit, document.user_commit
    at = f" at {_short(commit)}" if commit and of_user and commit.partition("-")[0] != of_user.partition("-")[0] else ""
    return f"{document.faithcheck}{at}"


def _short(commit: str) -> str:
    name, _, changed = commit.partition("-")
    return f"{name[:12]}{'-' if changed else ''}{changed}"
