"""The documents of a folder as runs over time: verdicts, gaps, agreement with LOO and cost, run by run.

A run of the suite is placed by its date. A document of ``faithcheck align`` holds none, so that equal runs give equal
bytes: it is placed by the name of its file. What cannot be read is named and left out.
"""

import datetime
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports.documents import results
from faithcheck.reports.documents.alignment import Alignment
from faithcheck.reports.documents.document import Document, DocumentError
from faithcheck.reports.documents.results import Results
from faithcheck.reports.pages import wording
from faithcheck.reports.pages.tables import natural


@dataclass(frozen=True)
class SuiteRun:
    """A run of the suite."""

    file: str  # the path of its document in the folder
    commit: str  # the user's; empty without one
    faithcheck: str
    created: str
    catalogue: str  # in words; empty in a document of an older version
    verdict: Group
    headline: str  # its outcome in a line
    total: Mapping[Group, int]
    failures: int  # how many tests failed and left no red record
    not_run: int  # how many tests
    counts: Mapping[str, Mapping[Group, int]]  # by explainer
    gaps: Mapping[str, Mapping[str, float]]  # the largest, by axiom and explainer
    seconds: float | None  # of all checks


@dataclass(frozen=True)
class AlignmentRun:
    """An alignment."""

    file: str  # the path of its document in the folder
    commit: str  # the user's; empty without one
    faithcheck: str
    of: str  # the names of the model and the data
    content: str  # their fingerprints
    agreement: Mapping[str, float | None]  # the mean correlation with Leave-One-Out, by explainer
    cost: Mapping[str, float]
    refused: int  # how many explainers were not measured


@dataclass(frozen=True)
class Trend:
    """The runs of a folder in their order, and why each other file is left out, by its path."""

    runs: list[SuiteRun] = field(default_factory=list)
    alignments: list[AlignmentRun] = field(default_factory=list)
    left_out: Mapping[str, str] = field(default_factory=dict)


def read_folder(folder: Path, load: Callable[[Path], Document]) -> tuple[dict[str, Document], dict[str, str]]:
    """The documents of a folder and of the folders in it, and why each other JSON file is left out, by their paths.

    Raises `DocumentError` if there is no such folder, or no document in it that can be read.
    """
    if not folder.is_dir():
        raise DocumentError(f"{folder}: no such folder: name the folder that holds the results documents")
    documents, left_out = {}, {}
    for path in sorted(folder.rglob("*.json")):
        name = path.relative_to(folder).as_posix()
        try:
            documents[name] = load(path)
        except DocumentError as error:
            left_out[name] = str(error).removeprefix(f"{path}: ")
    if not documents and not left_out:
        raise DocumentError(f"{folder}: no JSON file is there: write documents with faithcheck check --json")
    if not documents:
        name, reason = next(iter(left_out.items()))
        raise DocumentError(f"{folder}: none of its JSON files can be read, such as {name}: {reason}")
    return documents, left_out


def trend(documents: Mapping[str, Document], left_out: Mapping[str, str]) -> Trend:
    """The runs of documents, by the paths of their files."""
    skipped = dict(left_out)
    runs, alignments = [], []
    for name, document in documents.items():
        if isinstance(document, Alignment):
            alignments.append(_of_alignment(name, document))
        elif not isinstance(document, Results):
            skipped[name] = (
                f"a document of {document.WRITER} is no run over time: a trend is of the suite and alignments"
            )
        elif (date := _date(document.created)) is None:
            skipped[name] = f"its date {document.created!r} cannot be read"
        else:
            runs.append((date, name, _of_suite(name, document)))
    return Trend(
        [run for *_, run in sorted(runs, key=lambda dated: dated[:2])],
        sorted(alignments, key=lambda run: natural(run.file)),
        dict(sorted(skipped.items())),
    )


def _of_suite(name: str, document: Results) -> SuiteRun:
    counts: dict[str, Counter[Group]] = {}
    gaps: dict[str, dict[str, float]] = {}
    for record in document.records:
        explainer = record.explainer or "the models alone"
        counts.setdefault(explainer, Counter())[record.group] += 1
        if record.gap is not None:
            largest = gaps.setdefault(record.axiom, {})
            largest[explainer] = max(record.gap, largest.get(explainer, 0.0))
    return SuiteRun(
        file=name,
        commit=document.user_commit or "",
        faithcheck=document.faithcheck,
        created=document.created,
        catalogue=wording.catalogue(document) or "",
        verdict=outcome(document),
        headline=wording.headline(document),
        total=Counter(record.group for record in document.records),
        failures=len(document.failures),
        not_run=results.not_run(document),
        counts=counts,
        gaps=gaps,
        seconds=document.seconds,
    )


def _of_alignment(name: str, document: Alignment) -> AlignmentRun:
    measured, model, data = document.measured, document.model, document.data
    return AlignmentRun(
        file=name,
        commit=document.user_commit or "",
        faithcheck=document.faithcheck,
        of=f"{model.name}, {data.name}",
        content=f"{model.fingerprint} {data.fingerprint}",
        agreement={row.name: row.figures.r.mean for row in measured},
        cost={row.name: row.cost for row in measured if row.cost is not None},
        refused=len(document.explainers) - len(measured),
    )


def outcome(document: Results) -> Group:
    """The verdict of a run: nothing is green where nothing that is claimed or expected of an explainer was measured."""
    judged = any(
        record.explainer and record.expected != "UNCLAIMED" and record.group is not Group.SKIP
        for record in document.records
    )
    verdict = results.verdict(document)
    return Group.RECORDED if verdict is Group.PASS and not judged else verdict


def _date(text: str) -> datetime.datetime | None:
    """A date in ISO's format, in UTC where it names no zone; None if it is none."""
    try:
        date = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=datetime.UTC)
