"""The results document: what one run measured, as JSON. Every page and table is made from this document alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from faithcheck.axioms.measure.error_text import encodable
from faithcheck.axioms.measure.statuses import Group, Status
from faithcheck.axioms.measure.statuses import group_of as group_of
from faithcheck.json_object import Json as Json  # the modules of reports find it here
from faithcheck.models.files import write_atomically
from faithcheck.reports.documents.document import DocumentError as ResultsError
from faithcheck.reports.documents.environment import environment as environment
from faithcheck.reports.documents.environment import version as version
from faithcheck.reports.shape import NUMBER, Shape, mismatch

SCHEMA_VERSION = 2
ALIGNMENT = "alignment"
"""The ``kind`` of a document of ``faithcheck align``; the document of a run of the suite has no ``kind``."""
BENCHMARK = "benchmark"
"""The ``kind`` of a document of ``make bench``."""
EXPLANATION = "explanation"
"""The ``kind`` of a document of ``faithcheck explain``."""
KINDS: dict[str | None, str] = {
    None: "the suite",
    ALIGNMENT: "faithcheck align",
    BENCHMARK: "make bench",
    EXPLANATION: "faithcheck explain",
}
"""What writes each kind of document."""

_EVIDENCE: Shape = {
    **dict.fromkeys(("example", "examples", "features"), int),
    "maps": [{"of": str, "values": [NUMBER]}],
    "figures?": {...: NUMBER},
    "terms?": [object],
    "names?": [str],
    "image?": [int],
    "predicted?": [NUMBER],
    "relation?": {**dict.fromkeys(("kind", "first", "second"), str), "value?": NUMBER, "of?": str},
}
_RECORD: Shape = {
    **dict.fromkeys(("id", "axiom", "subject", "expected", "status", "why", "cite"), str),
    **dict.fromkeys(("gap", "tol", "predicted", "prediction_error", "floor"), NUMBER),
    **dict.fromkeys(("explainer", "traceback"), (str, None)),
    "seed": int,
    "ceiling?": (int, float, None),
    "detail": {"symbolic gap?": str},
    "evidence?": _EVIDENCE,
}
COMMITS = ("user_commit", "faithcheck_commit", "commit")
"""The keys of an environment that name a commit; ``commit`` is that of faithcheck, in documents of older versions."""
ENVIRONMENT: Shape = {f"{key}?": (str, None) for key in COMMITS}
RUN: Shape = {
    "engine": str,
    **dict.fromkeys(("workers", "tasks", "retried", "run_twice", "left_out"), int),
    "seconds": NUMBER,
    **dict.fromkeys(("started?", "ended?", "busy?", "estimated?"), NUMBER),
}
"""The record of a run: how its work was shared between workers."""
_LINE: Shape = {"label": str, "x": [NUMBER], "y": [NUMBER]}
_ESTIMATE: Shape = {"label": str, **dict.fromkeys(("value", "low", "high"), NUMBER)}
_PANEL: Shape = {"title": str, "x": str, "y": str, "lines?": [_LINE], "estimates?": [_ESTIMATE], "log?": str}
_SHAPE: Shape = {
    "faithcheck": str,
    "created": str,
    "environment": ENVIRONMENT,
    "settings": {
        "seed": int,
        "threads": int,
        **dict.fromkeys(("dtype", "device", "data"), str),
        "max_skips?": (int, None),
        "explainers?": [str],
        "specs?": {...: str},
        "origins?": {...: str},
        "pair_origins?": {...: str},
        "not_applicable?": [dict.fromkeys(("axiom", "reason", "explainer"), str)],
        "arguments?": [str],
        "claimed?": {...: [str]},
    },
    "axioms": {...: str},
    "usual_causes?": {...: str},
    "catalogue?": {
        **dict.fromkeys(("version", "hash"), str),
        "tolerances": {...: NUMBER},
        "axioms": {...: str},
        "pairs": {...: str},
    },
    "counts": dict.fromkeys(("planned", "ran", "passed", "failed", "skipped", "deselected"), int),
    "rules?": {...: {"met": int, "of": int, "unmet": [str]}},
    "slowest?": [{"id": str, "seconds": NUMBER}],
    "seconds?": NUMBER,
    "run?": RUN,
    "reused?": int,
    "skips": [{"reason": str, "count": int, "ids": [str]}],
    "failures": [{"id": str, "message": str}],
    "records": [_RECORD],
    "tables": [{"title": str, "note": str, "columns": [str], "rows": [[object]]}],
    "figures": [{"title": str, "note": str, "panels": [_PANEL]}],
}


def save(results: Json, path: Path) -> None:
    """Write the document as JSON. If writing fails, the file stays as it was.

    Raises:
        OSError: the folder is missing or cannot be written.
        ValueError: the document holds a number that is not finite; `plain` replaces such numbers.
    """
    # The escape sequence of a lone surrogate is JSON's own.
    write_atomically(path, encodable(json.dumps(results, indent=1, allow_nan=False, ensure_ascii=False)) + "\n")


def load(path: Path) -> Json:
    """Read a results document.

    Raises:
        ResultsError: the file is missing, is not JSON, is not a results document or has another schema version.
    """
    return check(read(path), path)


def read(path: Path) -> Json:
    """Read a document of faithcheck, of any of the `KINDS`.

    Raises:
        ResultsError: the file is missing, is not JSON or is not a document of faithcheck.
    """
    try:
        document = json.loads(
            path.read_text(encoding="utf-8"), parse_constant=_finite, parse_float=_finite, parse_int=_whole
        )
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise ResultsError(f"{path}: not a document of faithcheck: nested too deeply") from error
    except ValueError as error:
        raise ResultsError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict) or "schema_version" not in document:
        raise ResultsError(f"{path}: not a results document of faithcheck: write one with faithcheck check --json")
    if document.get("kind") not in [*KINDS]:
        raise ResultsError(
            f"{path}: a document of kind {document['kind']!r}, which this faithcheck does not read; it reads those of "
            + ", ".join(KINDS.values())
        )
    return document


def check(document: Json, path: Path) -> Json:
    """Return the document if it is a results document that this version can read.

    Raises:
        ResultsError: another schema version, or something is missing or of another type. The message names the place.
    """
    if document["schema_version"] != SCHEMA_VERSION:
        raise ResultsError(
            f"{path}: schema version {document['schema_version']!r}, this faithcheck reads {SCHEMA_VERSION}: "
            "run the suite again"
        )
    if (damage := mismatch(document, _SHAPE) or _in_tables(document["tables"])) is not None:
        raise ResultsError(f"{path}: damaged results document: {damage}")
    return document


def _in_tables(tables: list[Json]) -> str | None:
    """What is wrong in the tables, which `shape` cannot say: further keys, or rows of another length."""
    for i, table in enumerate(tables):
        if further := table.keys() - {"title", "note", "columns", "rows"}:
            return f"tables[{i}] has more than title, note, columns and rows: {', '.join(sorted(further))}"
        for j, row in enumerate(table["rows"]):
            if len(row) != len(table["columns"]):
                return f"tables[{i}].rows[{j}] has {len(row)} cells, not {len(table['columns'])}"
    return None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def _whole(text: str) -> int:
    if len(text) > 300:  # it could not be compared with a float
        raise ValueError(f"a whole number of {len(text)} digits")
    return int(text)


def plain(value: object) -> Any:
    """The value in the types of JSON alone, which pytest-xdist can transport too.

    Numbers that are not finite become the strings ``nan``, ``inf`` and ``-inf``: JSON has no such numbers, and null
    would hide them. Strings become ``str`` without lone surrogates, numpy scalars become Python numbers.
    """
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, int):
        return int(value)
    if hasattr(value, "item") and not isinstance(value, float):
        value = value.item()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    return value if isinstance(value, int) else plain(str(value))


def user_commit(document: Json) -> str | None:
    """The commit of the user's code; None if it is in no git clone, or the document is of an older version."""
    commit: str | None = document["environment"].get("user_commit")
    return commit


def faithcheck_commit(document: Json) -> str | None:
    """The commit of faithcheck, which documents of older versions call ``commit``; None for an installed wheel."""
    environment = document["environment"]
    commit: str | None = environment.get("faithcheck_commit", environment.get("commit"))
    return commit


def skips_by_reason(skipped: Iterable[tuple[str, str]]) -> list[Json]:
    """Group ``(node id, reason)`` by reason, the most frequent first."""
    groups: dict[str, list[str]] = {}
    for node, reason in sorted(skipped):
        groups.setdefault(reason, []).append(node)
    rows = [{"reason": reason, "count": len(ids), "ids": ids} for reason, ids in groups.items()]
    return sorted(rows, key=lambda row: (-len(row["ids"]), row["reason"]))


def is_red(results: Json) -> bool:
    """Whether a check or a test failed or did not run, a claim was not measured, or too many were skipped.

    --max-skips says how many may be skipped.
    """
    failed = red_records(results) or results["failures"] or results["counts"]["failed"]
    return bool(failed or not_run(results) or too_many_skips(results))


def verdict(results: Json) -> Group:
    """The verdict of a run, as the group of statuses that it is shown as.

    ``RED``; ``PASS``; or ``RECORDED``: no verdict, since of an explainer nothing is claimed that was measured.
    """
    if is_red(results):
        return Group.RED
    return Group.RECORDED if without_verdict(results) else Group.PASS


NO_VERDICT = 3
"""The exit code of a run without a verdict: neither green nor red."""


def exit_code(results: Json) -> int:
    """What a command is to end with by the verdict: 0, 1 if something is red, `NO_VERDICT` without a verdict."""
    return {Group.RED: 1, Group.RECORDED: NO_VERDICT}.get(verdict(results), 0)


def is_failed(explainer: Json) -> bool:
    """Whether an explainer of an alignment failed, ended its workers or left something behind.

    Documents of older versions do not say.
    """
    return any(explainer.get(key) for key in ("failed", "left_out", "left_behind"))


def too_many_skips(results: Json) -> bool:
    """Whether more tests were skipped than --max-skips allows."""
    allowed = results["settings"].get("max_skips")
    return allowed is not None and bool(results["counts"]["skipped"] > allowed)


def unmeasured_claims(results: Json) -> list[str]:
    """The axioms that are claimed, that the run was to measure, and that no check measured; each once."""
    unmeasured = (record for record in results["records"] if record["status"] == Status.NOT_MEASURED.label)
    return sorted({str(record["axiom"]) for record in unmeasured})


def claims_outside(results: Json) -> list[str]:
    """The axioms that an explainer of the run claims, and of which the run has no check of it; each once."""
    checked = {(record["axiom"], record["explainer"]) for record in results["records"]}
    claimed = results["settings"].get("claimed", {})
    return sorted({axiom for name, axioms in claimed.items() for axiom in axioms if (axiom, name) not in checked})


def without_verdict(results: Json) -> dict[str, str]:
    """The explainers that the run says nothing of, each with the reason.

    ``settings.claimed`` has the axioms of which something is claimed or expected of each explainer that the user named.
    An explainer of which no such axiom was measured, and none is red, has no verdict.
    """
    reasons = {}
    for name, axioms in results["settings"].get("claimed", {}).items():
        own = [record for record in results["records"] if record["explainer"] == name]
        judged = {group_of(r["status"]) for r in own if r["axiom"] in axioms and r["expected"] != "UNCLAIMED"}
        failed = any(group_of(record["status"]) is Group.RED for record in own)
        if not failed and not judged & {Group.PASS, Group.PREDICTED}:
            reasons[name] = "nothing that is claimed was measured" if axioms else "nothing is claimed"
    return reasons


def red_records(results: Json) -> list[Json]:
    """The records that are not as expected."""
    return [record for record in results["records"] if group_of(record["status"]) is Group.RED]


def not_run(results: Json) -> int:
    """How many planned tests did not run: the run was stopped, or their explainer ended too many processes."""
    counts = results["counts"]
    return int(counts["planned"] - counts["ran"] - counts["skipped"])
