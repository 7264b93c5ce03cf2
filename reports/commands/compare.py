"""``faithcheck compare``: what changed from one document to another, in verdicts and in magnitudes.

A regression is one of these, and nothing else is:

* a record that was green and is red;
* a record that is red, and was skipped (*unsupported*) or not there;
* a record that was not skipped, and is skipped now or gone, whatever it said before: what is no longer measured is no
  longer known;
* a failed test that left no red record, and did not fail before.

A magnitude moved if a gap changed by more than the threshold, relative to the larger of the two, and one of them is
above its tolerance; or if a correlation changed by more than the threshold. It is no regression by itself.

Of two alignment documents every explainer is one record: measured, or skipped where it was refused. Its correlations
count as above, its other figures as gaps do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from faithcheck.reports import results
from faithcheck.reports.pages import alignment, report, terminal, wording
from faithcheck.reports.results import Json, ResultsError

THRESHOLD = 0.01
ROWS = 40  # of a list on the Markdown page: a comment on GitHub has room for 65,536 characters
CORRELATIONS = ("pearson", "spearman", "kendall")
LISTS = {
    "regressions": "regressions",
    "mended": "no longer red",
    "verdicts": "other verdicts, no worse",
    "magnitudes": "magnitudes moved",
    "appeared": "new",
    "vanished": "gone, and skipped before",
    "skips": "reasons for which more is skipped",
}
Row = tuple[str, str, str, str]


@dataclass(frozen=True)
class Entry:
    """A record as it is compared.

    Attributes:
        status: see `axioms.verdicts`; ``failed`` of a test that left no red record.
        expected: ``HOLDS``, ``VIOLATES`` or ``UNCLAIMED``.
        gap: in words; empty where there is none.
        figures: ``{name: (value, tolerance)}``; the tolerance is None of a correlation.
    """

    status: str
    expected: str = ""
    gap: str = ""
    figures: Mapping[str, tuple[object, float | None]] | None = None

    @property
    def kind(self) -> str:
        """``green``, ``red`` or ``skip``."""
        if self.status in results.SKIPPED:
            return "skip"
        return "green" if self.status in results.PASSING else "red"


def load(path: Path) -> Json:
    """The document of a run of the suite or of an alignment.

    Raises:
        ResultsError: no such document, or one that this version cannot read.
    """
    document = results.read(path)
    kind = document.get("kind")
    return alignment.check(document, path) if kind == alignment.KIND else results.check(document, path)


def compare(old: Json, new: Json, threshold: float = THRESHOLD) -> Json:
    """What changed; the module says what a regression and a moved magnitude are.

    Args:
        old: a document, of the suite or of an alignment.
        new: another one of the same kind.
        threshold: of magnitudes, above 0.

    Returns:
        For each name in `LISTS` the rows ``(what happened, to what, before, now)``; ``differences`` between the runs,
        ``(what, before, now)``, which make the rest hard to compare; ``before`` and ``now``, what each run was, in
        words; ``still_red`` and ``unchanged``, how many entries; ``threshold``.

    Raises:
        ResultsError: a suite's document and an alignment's.
    """
    if old.get("kind") != new.get("kind"):
        raise ResultsError("one document is of the suite, the other of faithcheck align: compare two of a kind")
    before, now = _entries(old), _entries(new)
    found: dict[str, list[Row]] = {name: [] for name in LISTS}
    unchanged = still_red = 0
    for key in sorted(before.keys() | now.keys()):
        one, other = before.get(key), now.get(key)
        if (settled := _verdict(one, other)) is not None:
            found[settled[0]].append((settled[1], key, _shown(one, other), _shown(other, one)))
            continue
        assert one is not None
        assert other is not None
        moved = list(_moved(one, other, threshold))
        found["magnitudes"] += [(name, key, was, is_now) for name, was, is_now in moved]
        still_red += other.kind == "red"
        unchanged += not moved
    found["skips"] = list(_skips(old, new))
    return {
        **found,
        "differences": list(_differences(old, new)),
        "before": _run(old),
        "now": _run(new),
        "still_red": still_red,
        "unchanged": unchanged,
        "threshold": threshold,
    }


def is_regression(comparison: Json) -> bool:
    """Whether anything got worse, in the sense of the module."""
    return bool(comparison["regressions"])


# --- what is compared ------------------------------------------------------------------------------------------------


def _entries(document: Json) -> dict[str, Entry]:
    """Records, or explainers of an alignment, and failed tests, by id; what has the id of another one is numbered."""
    if document.get("kind") == alignment.KIND:
        listed = [(explainer["name"], _of_explainer(explainer)) for explainer in document["explainers"]]
    else:
        listed = [(record["id"], _of_record(record)) for record in document["records"]]
        listed += [(failure["id"], Entry("failed")) for failure in document["failures"]]
    found: dict[str, Entry] = {}
    for name, entry in listed:
        key, number = name, 2
        while key in found:
            key, number = f"{name} ({number})", number + 1
        found[key] = entry
    return found


def _of_record(record: Json) -> Entry:
    gap, tol, detail = record["gap"], record["tol"], record["detail"]
    figures: dict[str, tuple[object, float | None]]
    figures = {name: (value, None) for name, value in detail.items() if name.startswith(CORRELATIONS)}
    # Where it is made of a correlation, the gap says nothing that the correlation does not.
    figures = figures or {"gap": (gap, tol if isinstance(tol, int | float) else 0.0)}
    return Entry(record["status"], record["expected"], "" if gap is None else wording.number(gap, 3), figures)


def _of_explainer(explainer: Json) -> Entry:
    figures = {
        name: (figure["mean"], None if name.startswith(CORRELATIONS) else 0.0)
        for name, figure in explainer["figures"].items()
    }
    return Entry("unsupported" if explainer["refused"] else "recorded", "", "", figures)


def _verdict(old: Entry | None, new: Entry | None) -> tuple[str, str] | None:
    """Which of `LISTS` an entry belongs to, and what happened in words; None where its verdict is the same."""
    if old is None:
        assert new is not None
        return ("regressions", "new, and red") if new.kind == "red" else ("appeared", "new")
    if new is None:
        if old.status == "failed":
            return "mended", "no longer fails"
        return ("vanished", "gone") if old.kind == "skip" else ("regressions", "gone")
    if old.status == new.status:
        return None
    match old.kind, new.kind:
        case _, "skip":
            return "regressions", "no longer measured"
        case "red", "red":
            return "verdicts", "red in another way"
        case before, "red":
            return "regressions", "was skipped, is red" if before == "skip" else "was green, is red"
        case "red", _:
            return "mended", "was red" if old.expected == new.expected else "was red, and is expected otherwise"
    return "verdicts", "was skipped" if old.kind == "skip" else "another verdict"


def _shown(entry: Entry | None, other: Entry | None) -> str:
    """An entry in a few words, with its expectation where the other's differs."""
    if entry is None:
        return "–"
    said = f"{wording.SYMBOLS.get(entry.status, '✗')} {entry.status}" + (f", gap {entry.gap}" if entry.gap else "")
    differs = other is not None and other.expected != entry.expected
    return f"{said}, expected {entry.expected}" if differs else said


def _moved(old: Entry, new: Entry, threshold: float) -> Iterator[tuple[str, str, str]]:
    """The figures that moved: ``(name, before, now)``."""
    was, now = old.figures or {}, new.figures or {}
    for name in sorted(was.keys() | now.keys()):
        (a, tolerance), (b, other) = was.get(name, (None, None)), now.get(name, (None, None))
        if _differ(a, b, threshold, max(tolerance or 0.0, other or 0.0), name.startswith(CORRELATIONS)):
            show = wording.correlation if name.startswith(CORRELATIONS) else lambda value: wording.number(value, 4)
            yield name.replace("_", " "), show(a), show(b)


def _differ(a: object, b: object, threshold: float, tolerance: float, absolute: bool) -> bool:
    """Whether two figures differ by more than the threshold; what is no number differs from all but itself."""
    if not (isinstance(a, int | float) and isinstance(b, int | float)):
        return a != b
    if absolute:
        return abs(a - b) > threshold
    largest = max(abs(a), abs(b))
    return largest > tolerance and abs(a - b) > threshold * largest


def _skips(old: Json, new: Json) -> Iterator[Row]:
    """The reasons for which more tests, or explainers, are skipped than before."""
    before, now = _skipped(old), _skipped(new)
    for reason in sorted(now, key=lambda reason: (before.get(reason, 0) - now[reason], reason)):
        if now[reason] > (was := before.get(reason, 0)):
            yield ("more are skipped" if was else "a new reason", reason, str(was), str(now[reason]))


def _skipped(document: Json) -> dict[str, int]:
    if document.get("kind") == alignment.KIND:
        return {f"{e['name']}: {e['refused']}": 1 for e in document["explainers"] if e["refused"]}
    return {skip["reason"]: int(skip["count"]) for skip in document["skips"]}


# --- the two runs ----------------------------------------------------------------------------------------------------


def _differences(old: Json, new: Json) -> Iterator[tuple[str, str, str]]:
    """What differs between the runs themselves, so that a change in the rest may come from there."""
    before, now = _conditions(old), _conditions(new)
    for name in [*before, *(name for name in now if name not in before)]:
        was, is_now = _apart(before.get(name), now.get(name)), _apart(now.get(name), before.get(name))
        if was != is_now:
            yield name, was, is_now


def _apart(value: object, other: object) -> str:
    """What is said of a condition beside the other run's: of lists and mappings what the other has not."""
    if isinstance(value, list) and isinstance(other, list):
        more = [str(item) for item in value if item not in other]
        return f"also {', '.join(more)}" if more else "–"
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return ", ".join(f"{key}: {item}" for key, item in value.items() if other.get(key) != item) or "–"
    return "–" if value is None else str(value)


def _conditions(document: Json) -> Json:
    """Settings and versions; not the arguments, which name files, nor the commit, which is what is compared."""
    named = {
        f"{part} {key}": document.get(part, {}).get(key)
        for part in ("model", "data")
        for key in ("name", "fingerprint")
    }
    about = named if document.get("kind") == alignment.KIND else {}
    settings = {key: value for key, value in document["settings"].items() if key != "arguments"}
    versions = {key: value for key, value in document["environment"].items() if key != "commit"}
    stopped = 0 if document.get("kind") == alignment.KIND else results.not_run(document)
    return {**about, **settings, "faithcheck": document["faithcheck"], **versions, "tests not run": stopped}


def _run(document: Json) -> str:
    """A run in words: when, and of which commit."""
    commit = document["environment"].get("commit")
    created = [document["created"]] if "created" in document else []
    return ", ".join([*created, f"faithcheck {document['faithcheck']}", *([f"commit {commit[:12]}"] if commit else [])])


# --- views -----------------------------------------------------------------------------------------------------------


def headline(comparison: Json) -> str:
    """The verdict in words: ``2 regressions, 1 no longer red, 3 magnitudes moved, 90 unchanged``."""
    regressions, moved = len(comparison["regressions"]), len(comparison["magnitudes"])
    said = [f"{regressions or 'no'} regression{'s' if regressions != 1 else ''}"]
    others = {"mended": "no longer red", "verdicts": "with another verdict", "appeared": "new", "vanished": "gone"}
    said += [f"{len(comparison[name])} {what}" for name, what in others.items() if comparison[name]]
    said += [f"{moved} magnitude{'s' if moved != 1 else ''} moved"] if moved else []
    said += [f"{comparison['unchanged']} unchanged"]
    said += [f"{comparison['still_red']} still red"] if comparison["still_red"] else []
    return ", ".join(said)


def to_markdown(comparison: Json) -> str:
    """The comparison as Markdown for a comment on a pull request: the verdict first, long lists folded and cut."""
    return report.page("compare.md.j2", {**_view(comparison), "rows": ROWS})


def to_terminal(comparison: Json, width: int = 80, color: bool = False) -> str:
    """The comparison in full: two lines a row, what happened to which, and before → now."""
    return terminal.printed(_parts(comparison), width, color)


def _view(comparison: Json) -> Json:
    lists = [{"title": title, "name": name, "rows": comparison[name]} for name, title in LISTS.items()]
    return {
        "comparison": comparison,
        "worse": is_regression(comparison),
        "headline": headline(comparison),
        "lists": [one for one in lists if one["rows"]],
        "threshold": f"{comparison['threshold']:g}",
    }


def _parts(comparison: Json) -> Iterator[RenderableType]:
    view = _view(comparison)
    if comparison["differences"]:
        yield Text("The two runs differ, so what follows may come from that", style="bold yellow")
        for name, before, now in comparison["differences"]:
            yield Padding(Text(f"{name}: {before} → {now}"), (0, 0, 0, 2))
        yield Text()
    for one in view["lists"]:
        red = one["name"] == "regressions"
        yield Text(f"{one['title']}: {len(one['rows'])}", style="bold red" if red else "bold")
        for what, name, before, now in one["rows"]:
            yield Padding(Text.assemble((f"{what}: ", "red" if red else "dim"), name), (0, 0, 0, 2))
            yield Padding(Text(f"{before} → {now}"), (0, 0, 0, 6))
        yield Text()
    yield Text(f"before: {comparison['before']}; now: {comparison['now']}", style="dim")
    yield Text(f"magnitudes: moved by more than {view['threshold']}", style="dim")
    yield Text(
        f"{'✗' if view['worse'] else '✓'} {view['headline']}", style="bold red" if view["worse"] else "bold green"
    )
