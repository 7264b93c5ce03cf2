"""The columns of the report's tables. The terminal, the Markdown page and the HTML page show the same columns.

A new column is one more `Column` in `SUMMARY`, `CORRELATIONS`, `SLOWEST`, `DIGITS`, `SYMBOLIC_GAPS`, `EXPECTATIONS` or
`MEASURED`. It reads the results document, most often one of its records; a figure that records do not hold yet goes
into ``Measurement.detail``, in the axiom that measures it.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports.pages import wording
from faithcheck.reports.reproduce import command
from faithcheck.reports.results import Json, group_of

Records = Sequence[Json]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: its heading.
        text: a function from the item of a row to its cell; ``""`` is an empty cell. A column whose cells are
            all empty is left out.
        group: the group of statuses in whose colour the column is shown.
    """

    title: str
    text: Callable[[Any], str]
    group: Group | None = None


def table(title: str, note: str, columns: Sequence[Column], items: Iterable[Any]) -> Json:
    """A table with a row for each item.

    Returns:
        ``title``, ``note``, ``columns`` (headings), ``rows`` (cells, all strings), ``groups`` (for each column the
        label of its group or ``""``) and ``words`` (the indices of the columns that hold words, which are aligned on
        the left).
    """
    rows = [[column.text(item) for column in columns] for item in items]
    shown = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    return plain_table(
        title,
        note,
        [columns[i].title for i in shown],
        [[row[i] for i in shown] for row in rows],
        [columns[i].group for i in shown],
    )


def plain_table(
    title: str, note: str, columns: Sequence[str], rows: Sequence[Sequence[object]], groups: Sequence[Group | None] = ()
) -> Json:
    """A table of cells, strings or numbers; returns the same keys as `table`."""
    cells = [[wording.number(cell, 4) for cell in row] for row in rows]
    return {
        "title": title,
        "note": note,
        "columns": [str(heading) for heading in columns],
        "rows": cells,
        "groups": [group.label if group else "" for group in groups or [None] * len(columns)],
        "words": [i for i in range(len(columns)) if any(_is_text(row[i]) for row in cells)],
    }


def _is_text(cell: str) -> bool:
    return bool(re.search(r"[^\W\d]{2}", cell)) and cell not in ("nan", "inf", "-inf")


def natural(name: str) -> list[tuple[int, int | str]]:
    """Sort key in which ``x2`` comes before ``x10``."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]


# --- the summary: a row for each axiom and explainer, from their records ---------------------------------------------


def _gaps(records: Records) -> list[float]:
    return [record["gap"] for record in records if isinstance(record["gap"], int | float)]


def _count(group: Group) -> Callable[[Records], str]:
    return lambda records: str(sum(group_of(record["status"]) is group for record in records) or "")


SUMMARY = (
    Column("axiom", lambda records: str(records[0]["axiom"])),
    Column("explainer", lambda records: str(records[0]["explainer"] or "(the models)")),
    *(Column(group.symbol, _count(group), group) for group in Group),
    Column("largest gap", lambda records: wording.number(max(_gaps(records), default=None))),
)


def summary(records: Records) -> Json:
    """How many records of each group every axiom and explainer have, and the largest gap."""

    def key(record: Json) -> tuple[str, str]:
        return record["axiom"], record["explainer"] or ""

    rows = [list(group) for _, group in groupby(sorted(records, key=key), key)]
    return table("Summary", ", ".join(f"{group.symbol} {group.label}" for group in Group), SUMMARY, rows)


# --- correlations: a row for each measured explainer and subject, from its record ------------------------------------

STATISTICS = ("pearson", "pearson_sum_to_one", "spearman", "kendall")


def _correlation(key: str) -> Callable[[Json], str]:
    return lambda record: wording.correlation(record["detail"][key]) if key in record["detail"] else ""


CORRELATIONS = (
    Column("subject", lambda record: str(record["subject"])),
    Column("explainer", lambda record: str(record["explainer"] or "")),
    *(
        Column(f"{key}{suffix}".replace("_", " "), _correlation(f"{key}{suffix}"))
        for suffix in ("", "_no_special")
        for key in STATISTICS
    ),
    Column("examples", lambda record: wording.number(record["detail"].get("examples"))),
    Column("undefined", lambda record: wording.number(record["detail"].get("undefined"))),
)


def correlations(records: Records) -> list[Json]:
    """The table of correlations with Leave-One-Out, with and without special tokens; [] without records."""
    measured = [record for record in records if "pearson" in record["detail"]]
    rows = sorted(measured, key=lambda record: (natural(record["subject"]), record["explainer"] or ""))
    note = "Mean over the examples whose correlation is defined."
    return [table("Correlation with leave-one-out", note, CORRELATIONS, rows)] if rows else []


# --- the slowest checks ----------------------------------------------------------------------------------------------

SLOWEST = (
    Column("check", lambda row: str(row["id"])),
    Column("seconds", lambda row: wording.number(row["seconds"], 3)),
)


def slowest(results: Json) -> list[Json]:
    """The table of the checks that took longest; [] in a document of an older version, or without checks."""
    note = "The first check of a pair builds its models, which later ones share."
    if reused := results.get("reused"):
        note += f" In {reused} checks, what f gives was measured for another pair of the same f, and used again."
    return [table("Slowest checks", note, SLOWEST, rows)] if (rows := results.get("slowest")) else []


# --- digits: a row for each explainer, of the maps in a coarse type and of the checks of a run in one ----------------

DIGITS = (
    Column("measured", lambda row: str(row["measured"])),
    Column("explainer", lambda row: str(row["explainer"])),
    Column("checks", lambda row: str(len(row["digits"]))),
    Column("least", lambda row: f"{min(row['digits']):.1f}"),
    Column("median", lambda row: f"{statistics.median(row['digits']):.1f}"),
)


def digits(results: Json) -> list[Json]:
    """The table of the decimal digits that round-off leaves; [] if nothing was measured in a coarse type."""
    of: dict[tuple[str, str], list[float]] = {}
    for record in results["records"]:
        left = record["detail"].get("digits")
        if left is not None and record["explainer"]:
            by_map = record["axiom"].startswith("precision_")
            measured = record["axiom"] if by_map else f"the checks in {results['settings']['dtype']}"
            of.setdefault((measured, str(record["explainer"])), []).append(left)
    note = "Of the largest attribution, or of what an axiom measures; Leave-One-Out and the gradient lose digits too."
    rows = [{"measured": m, "explainer": e, "digits": found} for (m, e), found in sorted(of.items())]
    return [table("Decimal digits that round-off leaves", note, DIGITS, rows)] if rows else []


# --- symbolic gaps: a row for the explainers that share a gap on a pair ----------------------------------------------

SYMBOLIC_GAPS = (
    Column("pair", lambda row: str(row["pair"])),
    Column("explainers", lambda row: ", ".join(row["explainers"])),
    Column("gap of each factor", lambda row: str(row["gap"])),
)


def symbolic_gaps(records: Records) -> list[Json]:
    """The table of a_f − a_g as SymPy derived it; [] if none was derived."""
    explainers_of: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if (gap := record["detail"].get("symbolic gap")) is not None:
            explainers_of.setdefault((record["subject"], gap), []).append(str(record["explainer"]))
    if not explainers_of:
        return []
    violating = {name for (_, gap), names in explainers_of.items() if gap != "0" for name in names}
    invariant = sorted({name for names in explainers_of.values() for name in names} - violating)
    note = f"Proved to be 0 on every pair: {', '.join(invariant)}." if invariant else "No gap is 0 on every pair."
    # A gap of zero is listed only for explainers with a gap on another pair: the note names the rest.
    rows = [
        {"pair": pair, "gap": gap, "explainers": listed}
        for (pair, gap), names in sorted(explainers_of.items())
        if (listed := [name for name in names if name in violating])
    ]
    return [table("Symbolic gaps: a_f − a_g, proved in SymPy", note, SYMBOLIC_GAPS, rows)]


# --- expectations: a row for each expectation with its reason, and the subjects that it covers -----------------------

EXPECTATIONS = (
    Column("axiom", lambda row: str(row["axiom"])),
    Column("explainer", lambda row: row["explainer"] or "–"),
    Column("expected", lambda row: str(row["expected"])),
    Column("why", lambda row: str(row["why"])),
    Column("source", lambda row: str(row["cite"])),
)
_EXPECTATION = ("axiom", "explainer", "expected", "why", "cite")


def expectation_of(record: Json) -> tuple[str, ...]:
    """What records of one expectation share."""
    return tuple(record[name] or "" for name in _EXPECTATION)


def expectations(records: Records) -> Json:
    """Each expectation once, with its reason, its source and the subjects that it covers."""
    subjects_of: dict[tuple[str, ...], list[str]] = {}
    for record in records:
        subjects_of.setdefault(expectation_of(record), []).append(record["subject"])
    rows = [
        {**dict(zip(_EXPECTATION, key, strict=True)), "subjects": sorted(subjects, key=natural)}
        for key, subjects in sorted(subjects_of.items())
    ]
    subjects = Column("subjects", lambda row: ", ".join(row["subjects"]))
    return table("What was expected, and why", "", (*EXPECTATIONS, subjects), rows)


# --- what was measured: a row for each record of an expectation ------------------------------------------------------


def _number(key: str) -> Callable[[Json], str]:
    return lambda record: "" if record.get(key) is None else wording.number(record[key], 6)


def _detail(key: str) -> Callable[[Json], str]:
    return lambda record: "" if record["detail"].get(key) is None else wording.number(record["detail"][key], 6)


def _worst_example(record: Json) -> str:
    evidence = record.get("evidence")
    return f"{evidence['example'] + 1} of {evidence['examples']}" if evidence else ""


MEASURED = (
    Column("verdict", lambda record: f"{wording.symbol(record['status'])} {record['status']}"),
    Column("finding", lambda record: wording.finding(record) if group_of(record["status"]) is Group.RED else ""),
    Column("gap", _number("gap")),
    Column("tolerance", _number("tol")),
    Column("predicted", _number("predicted")),
    Column("prediction error", _number("prediction_error")),
    Column("floor", _number("floor")),
    Column("ceiling", _number("ceiling")),
    Column("worst example", _worst_example),
)


def measured(results: Json, records: Records) -> list[Column]:
    """The columns of what was measured: `MEASURED`, the records' details, and how to measure a record again."""
    details = dict.fromkeys(key for record in records for key in record["detail"])
    return [
        *MEASURED,
        *(Column(key, _detail(key)) for key in details),
        Column("traceback", lambda record: record["traceback"] or ""),
        Column("reproduce", lambda record: command(results, record)),
    ]
