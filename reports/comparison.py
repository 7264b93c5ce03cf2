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

In two benchmark documents every ratio that both measured is compared: it is slower or faster if it changed beyond both
intervals. Neither is a regression: benchmarks inform.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from faithcheck.axioms.measure.statuses import Group, Status
from faithcheck.reports import benchmark, results
from faithcheck.reports.common_catalogue import in_common
from faithcheck.reports.kinds_of_change import Row, kinds
from faithcheck.reports.pages import wording
from faithcheck.reports.paired_differences import paired_differences
from faithcheck.reports.results import Json, ResultsError

THRESHOLD = 0.01
CORRELATIONS = ("pearson", "spearman", "kendall")
LISTS = {
    "regressions": "regressions",
    "mended": "no longer red",
    "verdicts": "other verdicts, no worse",
    "magnitudes": "magnitudes changed",
    "slower": "slower, beyond both intervals",
    "faster": "faster, beyond both intervals",
    "appeared": "new",
    "vanished": "missing now, and skipped before",
    "skips": "reasons for which more is skipped",
}


@dataclass(frozen=True)
class ComparedRecord:
    """A record as it is compared.

    Attributes:
        status: the label of a `Status`; ``failed`` for a test that left no red record.
        expected: ``HOLDS``, ``VIOLATES`` or ``UNCLAIMED``.
        gap: as text; empty if the record has none.
        figures: ``{name: (value, tolerance)}``; the tolerance of a correlation is None.
    """

    status: str
    expected: str = ""
    gap: str = ""
    figures: Mapping[str, tuple[object, float | None]] | None = None

    @property
    def red(self) -> bool:
        """Whether the record is not as expected, or the check did not run."""
        return results.group_of(self.status) in (Group.RED, Group.UNMEASURED)

    @property
    def skipped(self) -> bool:
        """Whether nothing was measured."""
        return results.group_of(self.status) is Group.SKIP


def compare(old: Json, new: Json, threshold: float = THRESHOLD, across_catalogues: bool = False) -> Json:
    """What changed. The docstring of the module defines a regression and a changed magnitude.

    Args:
        old: a document of the suite, of an alignment or of a benchmark.
        new: another document of the same kind.
        threshold: of magnitudes, above 0.
        across_catalogues: whether to compare what two catalogues have in common, if the documents are of two.

    Returns:
        For each name in `LISTS` the rows ``(change, id, before, now)``, and under ``kinds`` the same rows by kind;
        ``differences`` between the runs themselves, ``(setting, before, now)``, which may explain other changes;
        ``catalogues``, how these differ, in lines; ``paired`` and ``pairing`` of two alignments; ``before`` and
        ``now``, each run in words; ``still_red`` and ``unchanged``, how many records; ``threshold``; ``kind``.

    Raises:
        ResultsError: the documents are of two kinds, of single texts, or of two catalogues.
    """
    if old.get("kind") != new.get("kind"):
        before, now = (results.KINDS[document.get("kind")] for document in (old, new))
        raise ResultsError(f"one document is of {before}, the other of {now}: compare two of a kind")
    if old.get("kind") == results.EXPLANATION:
        raise ResultsError("documents of faithcheck explain are of one text: faithcheck align compares explainers")
    catalogues: list[str] = []
    if old.get("kind") is None:
        old, new, catalogues = in_common(old, new, across_catalogues)
    compared = _ratios(old, new) if old.get("kind") == results.BENCHMARK else _all_records(old, new, threshold)
    paired, pairing = paired_differences(old, new) if old.get("kind") == results.ALIGNMENT else ([], "")
    return {
        **{name: [] for name in LISTS},
        "still_red": 0,
        **compared,
        "kind": old.get("kind"),
        "kinds": {name: kinds(name, compared.get(name, []), old, new) for name in LISTS},
        "catalogues": catalogues,
        "paired": paired,
        "pairing": pairing,
        "differences": list(_differences(old, new)),
        "before": _run(old),
        "now": _run(new),
        "threshold": threshold,
    }


def is_regression(comparison: Json) -> bool:
    """Whether the comparison lists a regression, as the docstring of the module defines it."""
    return bool(comparison["regressions"])


# --- ratios of benchmarks --------------------------------------------------------------------------------------------


def _ratios(old: Json, new: Json) -> Json:
    """The ratios that are slower or faster beyond both intervals; what only one document measured is not compared."""
    before, now = benchmark.ratios(old), benchmark.ratios(new)
    compared: dict[str, list[Row]] = {"slower": [], "faster": []}
    both = [name for name in now if name in before]
    for name in both:
        row = ("ratio", name, wording.with_interval(before[name]), wording.with_interval(now[name]))
        if benchmark.slower(before[name], now[name]):
            compared["slower"].append(row)
        elif benchmark.slower(now[name], before[name]):
            compared["faster"].append(row)
    return {**compared, "unchanged": len(both) - sum(map(len, compared.values()))}


# --- records ---------------------------------------------------------------------------------------------------------


def _all_records(old: Json, new: Json, threshold: float) -> Json:
    """The lists of changed records, and how many are ``unchanged`` and ``still_red``."""
    before, now = _records(old), _records(new)
    lists: dict[str, list[Row]] = {name: [] for name in LISTS}
    unchanged = still_red = 0
    for key in sorted(before.keys() | now.keys()):
        was, is_now = before.get(key), now.get(key)
        if (verdict := _verdict(was, is_now)) is not None:
            name, change = verdict
            lists[name].append((change, key, _text(was, is_now), _text(is_now, was)))
            continue
        assert was is not None
        assert is_now is not None
        magnitudes = list(_magnitudes(was, is_now, threshold))
        lists["magnitudes"] += [(name, key, *values) for name, *values in magnitudes]  # type: ignore[misc]
        still_red += is_now.red
        unchanged += not magnitudes
    lists["skips"] = list(_skips(old, new))
    return {**lists, "still_red": still_red, "unchanged": unchanged}


def _records(document: Json) -> dict[str, ComparedRecord]:
    """Records, or explainers of an alignment, and failed tests, by id; a repeated id gets a number."""
    if document.get("kind") == results.ALIGNMENT:
        listed = [(explainer["name"], _of_explainer(explainer)) for explainer in document["explainers"]]
    else:
        listed = [(record["id"], _of_record(record)) for record in document["records"]]
        listed += [(failure["id"], ComparedRecord("failed")) for failure in document["failures"]]
    records: dict[str, ComparedRecord] = {}
    for name, record in listed:
        key, number = name, 2
        while key in records:
            key, number = f"{name} ({number})", number + 1
        records[key] = record
    return records


def _of_record(record: Json) -> ComparedRecord:
    gap, tol, detail = record["gap"], record["tol"], record["detail"]
    figures: dict[str, tuple[object, float | None]]
    figures = {name: (value, None) for name, value in detail.items() if name.startswith(CORRELATIONS)}
    # The gap of a correlation repeats the correlation, so it is compared only where there is none.
    figures = figures or {"gap": (gap, tol if isinstance(tol, int | float) else 0.0)}
    return ComparedRecord(record["status"], record["expected"], "" if gap is None else wording.number(gap, 3), figures)


def _of_explainer(explainer: Json) -> ComparedRecord:
    figures = {
        name: (figure["mean"], None if name.startswith(CORRELATIONS) else 0.0)
        for name, figure in explainer["figures"].items()
    }
    failed = results.is_failed(explainer)
    status = Status.ERROR if failed else Status.UNSUPPORTED if explainer["refused"] else Status.RECORDED
    return ComparedRecord(status.label, "", "", figures)


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
    before, now = old.figures or {}, new.figures or {}
    for name in sorted(before.keys() | now.keys()):
        (was, old_tol), (is_now, new_tol) = before.get(name, (None, None)), now.get(name, (None, None))
        correlation = name.startswith(CORRELATIONS)
        if _differ(was, is_now, threshold, max(old_tol or 0.0, new_tol or 0.0), absolute=correlation):
            values = [wording.correlation(v) if correlation else wording.number(v, 4) for v in (was, is_now)]
            yield name.replace("_", " "), values[0], values[1]


def _differ(a: object, b: object, threshold: float, tolerance: float, *, absolute: bool) -> bool:
    """Whether two figures differ by more than the threshold. A value that is no number equals only itself."""
    if not (isinstance(a, int | float) and isinstance(b, int | float)):
        return a != b
    if absolute:
        return abs(a - b) > threshold
    largest = max(abs(a), abs(b))
    return largest > tolerance and abs(a - b) > threshold * largest


# --- skips -----------------------------------------------------------------------------------------------------------


def _skips(old: Json, new: Json) -> Iterator[Row]:
    """The reasons for which more tests, or explainers, are skipped than before."""
    before, now = _skip_counts(old), _skip_counts(new)
    for reason in sorted(now, key=lambda reason: (before.get(reason, 0) - now[reason], reason)):
        if now[reason] > (was := before.get(reason, 0)):
            yield ("more are skipped" if was else "a new reason", reason, str(was), str(now[reason]))


def _skip_counts(document: Json) -> dict[str, int]:
    if document.get("kind") == results.ALIGNMENT:
        return {f"{row['name']}: {row['refused']}": 1 for row in document["explainers"] if row["refused"]}
    return {skip["reason"]: int(skip["count"]) for skip in document["skips"]}


# --- the two runs ----------------------------------------------------------------------------------------------------

_NOT_COMPARED = {"arguments", "not_applicable", *results.COMMITS}
"""Arguments name files, axioms that do not apply follow from the explainers, and the user's commit is the very change;
that of faithcheck is named with its version."""


def _differences(old: Json, new: Json) -> Iterator[tuple[str, str, str]]:
    """The settings and versions in which the runs differ: other changes may come from them."""
    before, now = _conditions(old), _conditions(new)
    for name in [*before, *(name for name in now if name not in before)]:
        was, is_now = _beside(before.get(name), now.get(name)), _beside(now.get(name), before.get(name))
        if was != is_now:
            yield name, was, is_now


def _beside(value: object, other: object) -> str:
    """A setting as text beside that of the other run: of a list the items that the other has not.

    Of a mapping, what differs under the keys that both have: a key, such as an explainer's name, that only one has is
    named elsewhere.
    """
    if isinstance(value, list) and isinstance(other, list):
        more = [str(item) for item in value if item not in other]
        return f"also {', '.join(more)}" if more else "–"
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        differ = {key: _beside(item, other[key]) for key, item in value.items() if other.get(key, item) != item}
        return ", ".join(f"{key}: {item}" for key, item in differ.items()) or "–"
    return "–" if value is None else str(value)


def _conditions(document: Json) -> Json:
    """The settings and versions of a run, for an alignment the model and the data, for a benchmark the device."""
    names = {
        f"{part} {key}": document.get(part, {}).get(key)
        for part in ("model", "data", "device")
        for key in ("name", "fingerprint")
        if part in document
    }
    settings, versions = (
        {key: value for key, value in document[part].items() if key not in _NOT_COMPARED}
        for part in ("settings", "environment")
    )
    return {
        **names,
        "catalogue": None if document.get("kind") else wording.catalogue(document),
        **settings,
        "faithcheck": _version(document),
        **versions,
        "tests not run": 0 if document.get("kind") else results.not_run(document),
    }


def _run(document: Json) -> str:
    """A run in words: its date, the user's commit, and the version of faithcheck with its own."""
    commit = results.user_commit(document)
    created = [document["created"]] if "created" in document else []
    return ", ".join([*created, *([f"commit {_short(commit)}"] if commit else []), f"faithcheck {_version(document)}"])


def _version(document: Json) -> str:
    """The version of faithcheck, with its commit if that is not the user's own."""
    commit, of_user = results.faithcheck_commit(document), results.user_commit(document)
    at = f" at {_short(commit)}" if commit and of_user and commit.partition("-")[0] != of_user.partition("-")[0] else ""
    return f"{document['faithcheck']}{at}"


def _short(commit: str) -> str:
    name, _, changed = commit.partition("-")
    return f"{name[:12]}{'-' if changed else ''}{changed}"
