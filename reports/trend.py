"""The documents of a folder as runs over time: verdicts, gaps, agreement with LOO and cost, run by run.

A run of the suite is placed by its date. A document of ``faithcheck align`` holds none, so that equal runs give equal
bytes: it is placed by the name of its file. What cannot be read is named and left out.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports import results
from faithcheck.reports.pages import wording
from faithcheck.reports.results import Json, ResultsError, group_of

UNDATED = {
    results.BENCHMARK: "a document of make bench has no place in a trend: faithcheck compare compares two of them",
    results.EXPLANATION: "a document of faithcheck explain has no place in a trend: it is of one text",
}
"""Why documents of these kinds are left out."""


def read_folder(folder: Path, load: Callable[[Path], Json]) -> tuple[dict[str, Json], dict[str, str]]:
    """The documents of a folder and of the folders in it, and why each other JSON file is left out, by their paths.

    Args:
        folder: with JSON files.
        load: reads one document.

    Raises:
        ResultsError: there is no such folder, or no document in it that can be read.
    """
    if not folder.is_dir():
        raise ResultsError(f"{folder}: no such folder: name the folder that holds the results documents")
    documents, left_out = {}, {}
    for path in sorted(folder.rglob("*.json")):
        name = path.relative_to(folder).as_posix()
        try:
            documents[name] = load(path)
        except ResultsError as error:
            left_out[name] = str(error).removeprefix(f"{path}: ")
    if not documents and not left_out:
        raise ResultsError(f"{folder}: no JSON file is there: write documents with faithcheck check --json")
    if not documents:
        name, reason = next(iter(left_out.items()))
        raise ResultsError(f"{folder}: none of its JSON files can be read, such as {name}: {reason}")
    return documents, left_out


def trend(documents: Mapping[str, Json], left_out: Mapping[str, str]) -> Json:
    """The runs in their order.

    Returns:
        ``runs`` of the suite, see `_of_suite`; ``alignments``, see `_of_alignment`; ``left_out``, reasons by file.
    """
    skipped = dict(left_out)
    runs, alignments = [], []
    for name, document in documents.items():
        if (kind := document.get("kind")) in UNDATED:
            skipped[name] = UNDATED[kind]
        elif kind == results.ALIGNMENT:
            alignments.append(_of_alignment(name, document))
        elif (date := _date(document["created"])) is None:
            skipped[name] = f"its date {document['created']!r} cannot be read"
        else:
            runs.append((date, _of_suite(name, document)))
    return {
        "runs": [run for _, run in sorted(runs, key=lambda dated: (dated[0], dated[1]["file"]))],
        "alignments": sorted(alignments, key=lambda run: _natural(run["file"])),
        "left_out": dict(sorted(skipped.items())),
    }


def _of_suite(name: str, document: Json) -> Json:
    """A run of the suite: what it is of, its verdict, and by explainer the counts of groups and the largest gaps."""
    records = document["records"]
    counts: dict[str, Counter[str]] = {}
    gaps: dict[str, dict[str, float]] = {}
    for record in records:
        explainer = record["explainer"] or "the models alone"
        counts.setdefault(explainer, Counter())[group_of(record["status"]).label] += 1
        if isinstance(record["gap"], int | float):
            largest = gaps.setdefault(record["axiom"], {})
            largest[explainer] = max(record["gap"], largest.get(explainer, 0.0))
    groups = Counter(group_of(record["status"]) for record in records)
    return {
        **_about(name, document),
        "created": document["created"],
        "catalogue": wording.catalogue(document) or "",
        "verdict": outcome(document).label,
        "headline": wording.headline(document),
        "total": {group.label: groups[group] for group in Group},
        "failures": len(document["failures"]),
        "not_run": results.not_run(document),
        "counts": {explainer: dict(of_one) for explainer, of_one in counts.items()},
        "gaps": gaps,
        "seconds": document.get("seconds"),
    }


def _of_alignment(name: str, document: Json) -> Json:
    """An alignment: what it is of, and the mean correlation and the cost of each explainer that was measured."""
    measured = [row for row in document["explainers"] if not row["refused"]]
    model, data = document["model"], document["data"]
    return {
        **_about(name, document),
        "of": f"{model['name']}, {data['name']}",
        "content": f"{model['fingerprint']} {data['fingerprint']}",
        "agreement": {row["name"]: row["figures"]["pearson_no_special"]["mean"] for row in measured},
        "cost": {row["name"]: row["cost"] for row in measured if row.get("cost") is not None},
        "refused": len(document["explainers"]) - len(measured),
    }


def _about(name: str, document: Json) -> Json:
    return {"file": name, "commit": results.user_commit(document) or "", "faithcheck": document["faithcheck"]}


def outcome(document: Json) -> Group:
    """The verdict of a run: nothing is green where nothing that is claimed or expected of an explainer was measured."""
    judged = any(
        record["explainer"] and record["expected"] != "UNCLAIMED" and group_of(record["status"]) is not Group.SKIP
        for record in document["records"]
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


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Sort key in which ``run2`` comes before ``run10``."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]
