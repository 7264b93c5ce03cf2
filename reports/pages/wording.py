"""The words, symbols and number formats that the terminal, the pages and the failure messages share."""

from __future__ import annotations

import math

from faithcheck.reports.results import SKIPPED, Json, not_run, red_records, too_many_skips

SYMBOLS = {
    "holds": "✓",
    "predicted violation": "≠",
    "expected error": "≠",
    "recorded": "·",
    "broken claim": "✗",
    "violation vanished": "✗",
    "inconclusive": "✗",
    "error": "!",
    "unsupported": "–",
}

MEANINGS = {
    "holds": "the axiom holds, as expected",
    "predicted violation": "the axiom is violated by the amount that theory predicts",
    "expected error": "the explainer raises the error that is expected of it",
    "recorded": "measured; nothing is claimed",
    "broken claim": "the axiom should hold and does not",
    "violation vanished": "a violation or an error is expected and there is none",
    "inconclusive": "violated, but not by the amount that theory predicts",
    "error": "the check could not be measured",
    "unsupported": "the explainer has no rule for something in the model",
}


def number(value: object, digits: int = 2) -> str:
    """A number in few characters: ``0.31``, ``2e-16``; a dash for nothing, any other value as it is."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if value == 0 or isinstance(value, int):
        return str(int(value)) if math.isfinite(value) else str(value)
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:.{digits}g}" if abs(value) < 100 else f"{value:.0f}"
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def correlation(value: object) -> str:
    """A correlation with its sign and three decimals."""
    return f"{value:+.3f}" if isinstance(value, float | int) and not isinstance(value, bool) else number(value)


def cell(record: Json) -> str:
    """What a matrix shows of a record: ``✓ 2e-16``, ``≠ 0.31 predicted``, ``✗ 0.4``, ``–``."""
    status = record["status"]
    symbol = SYMBOLS.get(status, "✗")
    gap = "" if record["gap"] is None else f" {number(record['gap'])}"
    if not gap and "pearson" in record["detail"]:
        gap = f" r {correlation(record['detail']['pearson'])}"
    suffix = {"predicted violation": " predicted", "violation vanished": " vanished", "error": " error"}.get(status, "")
    return f"{symbol}{gap}{suffix}"


def subject_of(record: Json) -> str:
    """``attnlrp on linear_attention.assoc``, or the subject alone where no explainer takes part."""
    return f"{record['explainer']} on {record['subject']}" if record["explainer"] else str(record["subject"])


def sentence(record: Json) -> str:
    """One sentence that says what was expected, what was measured and why they differ."""
    what, axiom, status = subject_of(record), record["axiom"], record["status"]
    gap, tol = number(record["gap"], 4), number(record["tol"], 4)
    if status == "error":
        error = str(record["detail"].get("error") or last_line(record["traceback"]))
        return f"{axiom}: {what}: the check could not be measured: {error.splitlines()[0]}"
    if status == "broken claim":
        return f"{axiom}: {what}: expected to hold, but the gap {gap} is above the tolerance {tol}"
    if status == "violation vanished" and record["expected"] == "ERROR":
        return f"{axiom}: {what}: an error is expected and there was none: take the expectation out"
    if status == "violation vanished":
        size = f"of up to {number(record['predicted'], 4)} " if record["predicted"] is not None else ""
        return f"{axiom}: {what}: theory predicts a violation {size}and there is none: gap {gap}, tolerance {tol}"
    control = record["detail"].get("control gap")
    if status == "inconclusive" and isinstance(control, int | float) and control > (record["tol"] or 0):
        return f"{axiom}: {what}: the violation proves nothing: a model and its own copy differ by {number(control, 4)}"
    if status == "inconclusive" and record["predicted"] is not None:
        error, size = number(record["prediction_error"]), number(record["predicted"], 4)
        return f"{axiom}: {what}: violated, gap {gap}, but {error} away from what theory predicts (up to {size})"
    if status == "inconclusive":
        least = number(record["floor"], 4)
        return f"{axiom}: {what}: the gap {gap} is below the least violation that theory allows, {least}"
    return f"{axiom}: {what}: {MEANINGS.get(status, status)}, gap {gap}"


def details(record: Json) -> list[tuple[str, str]]:
    """The rest of a record, as labelled lines: what is null is left out."""
    numbers = [(key, record[key]) for key in ("gap", "tol", "predicted", "prediction_error", "floor")]
    labels = {"prediction_error": "prediction error", "tol": "tolerance"}
    lines = [(labels.get(key, key), number(value, 6)) for key, value in numbers if value is not None]
    lines += [("expected", str(record["expected"])), ("why", record["why"]), ("cite", record["cite"])]
    lines += [(key, number(value, 6)) for key, value in record["detail"].items() if value is not None]
    return [*((label, text) for label, text in lines if text), ("seed", str(record["seed"])), ("id", record["id"])]


def message(record: Json) -> str:
    """The whole story of a red record, for a test's failure."""
    lines = [sentence(record), *(f"  {label:<17} {text}" for label, text in details(record))]
    return "\n".join(lines + ([record["traceback"].rstrip()] if record["traceback"] else []))


def headline(results: Json) -> str:
    """The verdict on a run, in words."""
    tally = tally_of(results["records"])
    red = len(red_records(results)) + len(results["failures"])
    expected = sum(tally.get(status, 0) for status in ("holds", "predicted violation", "expected error"))
    parts = [f"{expected} {'check' if expected == 1 else 'checks'} as expected", f"{red} red"]
    if tally.get("recorded"):
        parts.append(f"{tally['recorded']} recorded without a claim")
    allowed = f", where --max-skips allows {results['settings']['max_skips']}" if too_many_skips(results) else ""
    parts.append(f"{results['counts']['skipped']} skipped{allowed}")
    if not_run(results) > 0:
        parts.append(f"{not_run(results)} not run")
    return ", ".join(parts)


def origins(results: Json) -> list[tuple[str, str]]:
    """Where the explainers, and the pairs that are not built in, come from: ``(origin, names)``."""
    by_origin: dict[str, list[str]] = {}
    for key in ("origins", "pair_origins"):
        for name, origin in results["settings"].get(key, {}).items():
            by_origin.setdefault(origin, []).append(name)
    return [(origin, ", ".join(names)) for origin, names in by_origin.items()]


def left_behind(results: Json) -> str:
    """A sentence on what explainers left on models or in the process; "" if nothing was."""
    found = [
        record for record in results["records"] if record["axiom"] != "trace" and "left behind" in record["detail"]
    ]
    if not found:
        return ""
    who = ", ".join(sorted({str(record["explainer"]) for record in found}))
    what, checks = found[0]["detail"]["left behind"], "check" if len(found) == 1 else "checks"
    return f"In {len(found)} {checks} {who} left something behind, and it was taken away: {what} (see the axiom trace)."


def tally_of(records: list[Json]) -> dict[str, int]:
    """How many records have each status, in the order of `SYMBOLS`."""
    tally = dict.fromkeys(SYMBOLS, 0)
    for record in records:
        tally[record["status"]] = tally.get(record["status"], 0) + 1
    return {status: count for status, count in tally.items() if count}


def kind(status: str) -> str:
    """The group of a status: ``pass``, ``predicted``, ``recorded``, ``skip`` or ``red``."""
    if status in SKIPPED:
        return "skip"
    groups = {
        "holds": "pass",
        "predicted violation": "predicted",
        "expected error": "predicted",
        "recorded": "recorded",
    }
    return groups.get(status, "red")


def last_line(text: str | None) -> str:
    """The last line of a traceback: the exception and its message."""
    lines = [line for line in (text or "").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no traceback"


def symbolic_gaps(records: list[Json]) -> list[Json]:
    """The table of a_f − a_g as SymPy derived it, a row for the explainers that share it; none if none was derived."""
    rows: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if (gap := record["detail"].get("symbolic gap")) is not None:
            rows.setdefault((record["subject"], gap), []).append(record["explainer"])
    if not rows:
        return []
    moved = {explainer for (_, gap), who in rows.items() if gap != "0" for explainer in who}
    everyone = {explainer for who in rows.values() for explainer in who}
    unmoved = ", ".join(sorted(everyone - moved))
    note = f"Proved to be 0 on every pair: {unmoved}." if unmoved else "No explainer's gap is 0 on every pair."
    # A row of zeros says something where the explainer has a gap elsewhere.
    rows = {key: left for key, who in rows.items() if (left := [name for name in who if name in moved])}
    return [
        {
            "title": "Symbolic gaps: a_f − a_g, proved in SymPy",
            "note": note,
            "columns": ["pair", "explainers", "gap of each factor"],
            "rows": [[subject, ", ".join(who), gap] for (subject, gap), who in sorted(rows.items())],
        }
    ]
