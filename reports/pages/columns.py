"""The columns of the report's tables. The terminal, the Markdown page and the HTML page show the same columns.

A new column is one more `Column` in `SUMMARY`, `CORRELATIONS`, `EXPECTATIONS` or `MEASURED`, or one more cell of the
other tables. A figure that records do not hold yet goes into ``Measurement.detail``, in the axiom that measures it.
"""

import statistics
from collections.abc import Callable, Sequence
from itertools import groupby

from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import Group
from faithcheck.reports.causes import command
from faithcheck.reports.documents.results import Results
from faithcheck.reports.pages import wording
from faithcheck.reports.pages.tables import Column, Table, natural, plain_table, table

Records = Sequence[Record]


# --- the summary: a row for each axiom and explainer, from their records ---------------------------------------------


def _gaps(records: Records) -> list[float]:
    return [record.gap for record in records if record.gap is not None]


def _count(group: Group) -> Callable[[Records], str]:
    return lambda records: str(sum(record.group is group for record in records) or "")


SUMMARY: Sequence[Column[Records]] = (
    Column("axiom", lambda records: records[0].axiom),
    Column("explainer", lambda records: records[0].explainer or "(the models)"),
    *(Column(group.symbol, _count(group), group) for group in Group),
    Column("largest gap", lambda records: wording.number(max(_gaps(records), default=None))),
)


def summary(records: Records) -> Table:
    """How many records of each group every axiom and explainer have, and the largest gap."""

    def key(record: Record) -> tuple[str, str]:
        return record.axiom, record.explainer or ""

    rows = [list(group) for _, group in groupby(sorted(records, key=key), key)]
    return table("Summary", ", ".join(f"{group.symbol} {group.label}" for group in Group), SUMMARY, rows)


# --- correlations: a row for each measured explainer and subject, from its record ------------------------------------

STATISTICS = ("pearson", "pearson_sum_to_one", "spearman", "kendall")


def _correlation(key: str) -> Callable[[Record], str]:
    return lambda record: wording.correlation(record.detail[key]) if key in record.detail else ""


def _detail(key: str, digits: int = 2) -> Callable[[Record], str]:
    return lambda record: "" if record.detail.get(key) is None else wording.number(record.detail[key], digits)


CORRELATIONS: Sequence[Column[Record]] = (
    Column("subject", lambda record: record.subject),
    Column("explainer", lambda record: record.explainer or ""),
    *(
        Column(f"{key}{suffix}".replace("_", " "), _correlation(f"{key}{suffix}"))
        for suffix in ("", "_no_special")
        for key in STATISTICS
    ),
    Column("examples", _detail("examples")),
    Column("undefined", _detail("undefined")),
)


def correlations(records: Records) -> list[Table]:
    """The table of correlations with Leave-One-Out, with and without special tokens; [] without records."""
    measured = [record for record in records if "pearson" in record.detail]
    rows = sorted(measured, key=lambda record: (natural(record.subject), record.explainer or ""))
    note = "Mean over the examples whose correlation is defined."
    return [table("Correlation with leave-one-out", note, CORRELATIONS, rows)] if rows else []


# --- tables of the run -----------------------------------------------------------------------------------------------


def slowest(results: Results) -> list[Table]:
    """The table of the checks that took longest; [] in a document of an older version, or without checks."""
    note = "The first check of a pair builds its models, which later ones share."
    if results.reused:
        note += f" {results.reused} checks used again what another check had measured on the same f."
    rows = [[row.id, wording.number(row.seconds, 3)] for row in results.slowest]
    return [plain_table("Slowest checks", note, ["check", "seconds"], rows)] if rows else []


def measured_tables(results: Results) -> list[Table]:
    """The tables that tests added to the report."""
    return [plain_table(one.title, one.note, one.columns, one.rows) for one in results.tables]


def digits(results: Results) -> list[Table]:
    """The table of the decimal digits that round-off leaves; [] if nothing was measured in a coarse type."""
    of: dict[tuple[str, str], list[float]] = {}
    for record in results.records:
        left = record.detail.get("digits")
        if isinstance(left, int | float) and record.explainer:
            by_map = record.axiom.startswith("precision_")
            measured = record.axiom if by_map else f"the checks in {results.settings.dtype}"
            of.setdefault((measured, record.explainer), []).append(left)
    note = "Of the largest attribution, or of what an axiom measures; Leave-One-Out and the gradient lose digits too."
    rows = [
        [*key, str(len(found)), f"{min(found):.1f}", f"{statistics.median(found):.1f}"]
        for key, found in sorted(of.items())
    ]
    titles = ["measured", "explainer", "checks", "least", "median"]
    return [plain_table("Decimal digits that round-off leaves", note, titles, rows)] if rows else []


UNMET = 20
"""The most operations without a check that the table of rules names."""


def rules(results: Results) -> list[Table]:
    """The table of the rules of LRP that the checks met; [] without LRP explainers, or in an older document."""
    note = "A rule that no check of this run met could be wrong and nothing would show it."
    rows = []
    for name, row in sorted(results.rules.items()):
        more = f", and {len(row.unmet) - UNMET} more in the results document" if len(row.unmet) > UNMET else ""
        rows.append([name, f"{row.met} of {row.of}", (", ".join(row.unmet[:UNMET]) or "–") + more])
    return [plain_table("Rules met", note, ["explainer", "rules met", "not met"], rows)] if rows else []


def symbolic_gaps(records: Records) -> list[Table]:
    """The table of a_f − a_g as SymPy derived it; [] if none was derived."""
    explainers_of: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if (gap := record.detail.get("symbolic gap")) is not None:
            explainers_of.setdefault((record.subject, str(gap)), []).append(str(record.explainer))
    if not explainers_of:
        return []
    violating = {name for (_, gap), names in explainers_of.items() if gap != "0" for name in names}
    invariant = sorted({name for names in explainers_of.values() for name in names} - violating)
    note = f"Proved to be 0 on every pair: {', '.join(invariant)}." if invariant else "No gap is 0 on every pair."
    # A gap of zero is listed only for explainers with a gap on another pair: the note names the rest.
    rows = [
        [pair, ", ".join(listed), gap]
        for (pair, gap), names in sorted(explainers_of.items())
        if (listed := [name for name in names if name in violating])
    ]
    titles = ["pair", "explainers", "gap of each factor"]
    return [plain_table("Symbolic gaps: a_f − a_g, proved in SymPy", note, titles, rows)]


# --- expectations: a row for each expectation with its reason, and the subjects that it covers -----------------------

EXPECTATIONS: Sequence[Column[Record]] = (
    Column("axiom", lambda record: record.axiom),
    Column("explainer", lambda record: record.explainer or "–"),
    Column("expected", lambda record: record.expected),
    Column("why", lambda record: record.why),
    Column("source", lambda record: record.cite),
)


def expectation_of(record: Record) -> tuple[str, ...]:
    """What records of one expectation share."""
    return record.axiom, record.explainer or "", record.expected, record.why, record.cite


def expectations(records: Records) -> Table:
    """Each expectation once, with its reason, its source and the subjects that it covers."""
    rows = [list(group) for _, group in groupby(sorted(records, key=expectation_of), expectation_of)]

    def subjects(covered: Records) -> str:
        return ", ".join(sorted((record.subject for record in covered), key=natural))

    columns = [Column(one.title, lambda covered, one=one: one.text(covered[0])) for one in EXPECTATIONS]  # type: ignore[misc]
    return table("What was expected, and why", "", [*columns, Column("subjects", subjects)], rows)


# --- what was measured: a row for each record of an expectation ------------------------------------------------------


def _figure(of: Callable[[Record], float | None]) -> Callable[[Record], str]:
    return lambda record: "" if of(record) is None else wording.number(of(record), 6)


def _worst_example(record: Record) -> str:
    return f"{record.evidence.example + 1} of {record.evidence.examples}" if record.evidence else ""


MEASURED: Sequence[Column[Record]] = (
    Column("verdict", lambda record: f"{wording.symbol(record.status)} {record.status}"),
    Column("finding", lambda record: wording.finding(record) if record.group is Group.RED else ""),
    Column("gap", _figure(lambda record: record.gap)),
    Column("tolerance", _figure(lambda record: record.tol)),
    Column("predicted", _figure(lambda record: record.predicted)),
    Column("prediction error", _figure(lambda record: record.prediction_error)),
    Column("floor", _figure(lambda record: record.floor)),
    Column("ceiling", _figure(lambda record: record.ceiling)),
    Column("worst example", _worst_example),
)


def measured(results: Results, records: Records) -> list[Column[Record]]:
    """The columns of what was measured: `MEASURED`, the records' details, and how to measure a record again."""
    details = dict.fromkeys(key for record in records for key in record.detail)
    return [
        *MEASURED,
        *(Column(key, _detail(key, 6)) for key in details),
        Column("traceback", lambda record: record.traceback or ""),
        Column("reproduce", lambda record: command(results, record)),
    ]
