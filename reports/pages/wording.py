"""The sentences and number formats that the terminal, the pages and the failure messages of tests share."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from faithcheck.axioms.measure.error_text import difference_text
from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import BY_LABEL, Group, Status
from faithcheck.reports.documents.document import Run
from faithcheck.reports.documents.results import (
    NotApplicable,
    Results,
    Skips,
    claims_outside,
    is_red,
    not_run,
    red_records,
    skips_by_reason,
    too_many_skips,
    unmeasured_claims,
    without_verdict,
)
from faithcheck.reports.pages.visible import visible

SKIP_LINES = 10  # of the summary at the end of a run; the pages list all skips

# --- numbers ---------------------------------------------------------------------------------------------------------


def number(value: object, digits: int = 2) -> str:
    """A number in few characters: ``0.31``, ``2e-16``; a dash for None; any other value as text."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return str(float(value))
    if value == 0 or isinstance(value, int):
        return str(int(value))
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:.{digits}g}" if abs(value) < 100 else f"{value:.0f}"
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def counted(count: int, what: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def correlation(value: object) -> str:
    """A correlation with its sign and three decimals."""
    is_number = isinstance(value, float | int) and not isinstance(value, bool) and math.isfinite(value)
    return f"{value:+.3f}" if is_number else number(value)


# --- statuses --------------------------------------------------------------------------------------------------------


def symbol(status: str) -> str:
    """The symbol of a status; the one for red where this version does not know the status."""
    return BY_LABEL[status].symbol if status in BY_LABEL else Group.RED.symbol


def meaning(status: str) -> str:
    """What a status means, in words."""
    return BY_LABEL[status].meaning if status in BY_LABEL else status


def tally_of(records: Sequence[Record]) -> dict[str, int]:
    """How many records have each status, in the order of `Status`; statuses without a record are left out."""
    counts = Counter(record.status for record in records)
    return {status: counts[status] for status in dict.fromkeys([*BY_LABEL, *counts]) if status in counts}


def groups_of(records: Sequence[Record]) -> dict[Group, int]:
    """How many records each group has, in the order of `Group`; groups without a record are left out."""
    counts = Counter(record.group for record in records)
    return {group: counts[group] for group in Group if group in counts}


# --- a record --------------------------------------------------------------------------------------------------------

_SUFFIXES = {
    Status.PREDICTED_VIOLATION.label: " predicted",
    Status.VIOLATION_VANISHED.label: " vanished",
    Status.ERROR.label: " error",
}


def cell(record: Record) -> str:
    """A record in a cell of the matrix: ``✓ 2e-16``, ``≠ 0.31 predicted``, ``✗ 0.4``, ``–``."""
    gap = "" if record.gap is None else f" {number(record.gap)}"
    if not gap and "pearson" in record.detail:
        gap = f" r {correlation(record.detail['pearson'])}"
    return f"{symbol(record.status)}{gap}{_SUFFIXES.get(record.status, '')}"


def subject_of(record: Record) -> str:
    """``attnlrp on linear_attention.assoc``; the subject alone where no explainer takes part, and vice versa."""
    if record.status == Status.NOT_MEASURED.label:
        return str(record.explainer)
    return f"{record.explainer} on {record.subject}" if record.explainer else record.subject


def sentence(record: Record) -> str:
    """One sentence: what was expected, what was measured, and how they differ."""
    return f"{record.axiom}: {subject_of(record)}: {finding(record)}"


def finding(record: Record) -> str:
    """What was expected, what was measured, and how they differ: the sentence without axiom, explainer and subject."""
    explain = _EXPLANATIONS.get(record.status)
    return explain(record) if explain else f"{meaning(record.status)}, gap {number(record.gap, 4)}"


def _error(record: Record) -> str:
    error = str(record.detail.get("error") or last_line(record.traceback))
    return f"the check could not be measured: {(error.splitlines() or ['no message'])[0]}"


def _broken_claim(record: Record) -> str:
    if record.axiom == "trace":
        return _left_behind(record)
    if "told apart by" in record.detail:
        return f"not a pair: {difference_text(record.detail)}"
    gap, ceiling = number(record.gap, 4), record.ceiling
    if ceiling is not None and ceiling > (record.tol or 0.0):
        return f"expected to hold up to a gap of {number(ceiling, 4)}, but the gap is {gap}"
    return f"expected to hold, but the gap {gap} is above the tolerance {number(record.tol, 4)}"


def _left_behind(record: Record) -> str:
    return f"expected to leave nothing behind, but it left {record.detail.get('left behind', 'something')}"


def _violation_vanished(record: Record) -> str:
    if record.expected == "ERROR":
        return "an error is expected and there was none: remove the expectation"
    gap, tolerance = number(record.gap, 4), number(record.tol, 4)
    size = f"of up to {number(record.predicted, 4)} " if record.predicted is not None else ""
    return f"theory predicts a violation {size}and there is none: gap {gap}, tolerance {tolerance}"


def _inconclusive(record: Record) -> str:
    gap, control = number(record.gap, 4), record.detail.get("control gap")
    if isinstance(control, int | float) and control > (record.tol or 0):
        return f"the violation proves nothing: a model and its own copy differ by {number(control, 4)}"
    if record.predicted is None and (record.gap or 0.0) >= (record.floor or 0.0):
        return f"the gap {gap} is above the largest violation that theory allows, {number(record.ceiling, 4)}"
    if record.predicted is None:
        return f"the gap {gap} is below the least violation that theory allows, {number(record.floor, 4)}"
    error, size = number(record.prediction_error), number(record.predicted, 4)
    return f"violated, gap {gap}, but {error} away from what theory predicts (up to {size})"


_EXPLANATIONS: dict[str, Callable[[Record], str]] = {
    Status.ERROR.label: _error,
    Status.BROKEN_CLAIM.label: _broken_claim,
    Status.VIOLATION_VANISHED.label: _violation_vanished,
    Status.INCONCLUSIVE.label: _inconclusive,
    Status.LEFT_BEHIND.label: _left_behind,
    Status.NOT_MEASURED.label: lambda record: f"claimed and not measured: {record.detail.get('reason', '')}",
    Status.NOT_A_PAIR.label: lambda record: str(record.detail.get("reason", "")),
}


def details(record: Record) -> list[tuple[str, str]]:
    """The other fields of a record as labels and text; a field that is null or empty is left out."""
    numbers = {
        "gap": record.gap,
        "tolerance": record.tol,
        "predicted": record.predicted,
        "prediction error": record.prediction_error,
        "floor": record.floor,
        "ceiling": record.ceiling,
    }
    lines = [(label, number(value, 6)) for label, value in numbers.items() if value is not None]
    lines += [("expected", record.expected), ("why", record.why), ("cite", record.cite)]
    lines += [("all maps are", record.degenerate)]
    lines += [(key, number(value, 6)) for key, value in record.detail.items() if value is not None]
    lines += [("seed", str(record.seed)), ("id", record.id)]
    return [(label, text) for label, text in lines if text]


def message(record: Record) -> str:
    """A red record in full, for the failure of a test: the sentence, every field and the traceback."""
    lines = [sentence(record), *(f"  {label:<17} {text}" for label, text in details(record))]
    text: str = visible("\n".join([*lines, *([record.traceback.rstrip()] if record.traceback else [])]))
    return text


def last_line(text: str | None) -> str:
    """The last line of a traceback: the exception and its message."""
    lines = [line for line in (text or "").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no traceback"


# --- a run -----------------------------------------------------------------------------------------------------------


def headline(results: Results) -> str:
    """The outcome of a run in one line: ``red: mine: 3 red, 12 checks as expected, 1 skipped``."""
    groups = Counter(record.group for record in results.records)
    red, failed = is_red(results), len(red_records(results)) + len(results.failures)
    parts = [f"{failed} red"] * bool(failed) if red else _no_verdict(results)
    if red or set(results.settings.claimed) - set(without_verdict(results)) or not parts:
        expected = groups[Group.PASS] + groups[Group.PREDICTED]
        empty = sum(bool(record.degenerate) and record.group is Group.PASS for record in results.records)
        on_degenerate_maps = f" ({empty} of them on degenerate maps)" if empty else ""
        parts += [f"{counted(expected, 'check')} as expected{on_degenerate_maps}", *([] if red else ["0 red"])]
    if groups[Group.RECORDED]:
        parts.append(f"{groups[Group.RECORDED]} recorded without a claim")
    allowed = f", where --max-skips allows {results.settings.max_skips}" if too_many_skips(results) else ""
    parts.append(f"{results.counts.skipped} skipped{allowed}")
    on_no_pair = [record.subject for record in results.records if record.status == Status.NOT_A_PAIR.label]
    if (rest := not_run(results) - len(on_no_pair)) > 0:
        parts.append(f"{rest} not run")
    if on_no_pair:
        parts.append(f"{len(on_no_pair)} not judged, on what is not a pair ({', '.join(sorted(set(on_no_pair)))})")
    sentences = [": ".join([*(["red"] if red else []), *_explainers(results), ", ".join(parts)])]
    for words, axioms in (
        ("claimed and not measured", unmeasured_claims(results)),
        ("claimed, outside this run", claims_outside(results)),
    ):
        sentences += [f"{words}: {', '.join(axioms)}"] if axioms else []
    return "; ".join(sentences)


def _explainers(results: Results) -> list[str]:
    """The explainers of a run in a headline: up to three by name, more by their number; [] without any."""
    names = results.settings.explainers
    return [", ".join(names) if len(names) <= 3 else f"{len(names)} explainers"] if names else []


def catalogue(results: Results) -> str | None:
    """The catalogue of the run, ``faithcheck 2026.12 (1a2b3c4d)``, and what the user added to it; None if not named."""
    if (named := results.catalogue) is None:
        return None
    axioms = {record.axiom for record in results.records} - named.axioms.keys()
    counts = {"axiom": len(axioms), "pair": len(results.settings.pair_origins)}
    added = [counted(count, what) for what, count in counts.items() if count]
    of_user = f", and {' and '.join(added)} of the user" if added else ""
    return f"faithcheck {named.name}{of_user}"


def sharing(run: Run) -> str:
    """How the work of a run was shared between workers, from its record of the run."""
    return (
        f"{run.engine}: {run.tasks} tasks on {run.workers} workers in {run.seconds:.1f} s; "
        f"{run.retried} started again as their worker ended, {run.left_out} left out"
    )


def _no_verdict(results: Results) -> list[str]:
    """What a run says first where it says nothing of an explainer; [] if it has a verdict on each."""
    names_of: dict[str, list[str]] = {}
    for name, reason in without_verdict(results).items():
        names_of.setdefault(reason, []).append(name)
    several = len(results.settings.claimed) > 1
    return [f"no verdict{' on ' + ', '.join(names) if several else ''}: {reason}" for reason, names in names_of.items()]


def origins(results: Results) -> list[tuple[str, str]]:
    """Where the explainers, and the pairs that are not built in, come from: ``(origin, names)``."""
    names_of: dict[str, list[str]] = {}
    for name, origin in [*results.settings.origins.items(), *results.settings.pair_origins.items()]:
        names_of.setdefault(origin, []).append(name)
    return [(origin, ", ".join(names)) for origin, names in names_of.items()]


def left_behind(results: Results) -> str:
    """A sentence on the traces that explainers left on models or in the process; ``""`` if they left none."""
    traces = [record for record in results.records if record.axiom != "trace" and "left behind" in record.detail]
    if not traces:
        return ""
    explainers = ", ".join(sorted({str(record.explainer) for record in traces}))
    checks = counted(len(traces), "check")
    trace = traces[0].detail["left behind"]
    return f"In {checks} {explainers} left something behind, which the suite removed: {trace} (see the axiom trace)."


def degenerate(results: Results) -> list[str]:
    """A line for each explainer and kind of degenerate map on which checks hold."""
    measured = Counter((record.explainer, record.axiom) for record in results.records if record.gap is not None)
    counts: dict[tuple[str, str], Counter[str]] = {}
    for record in results.records:
        if record.degenerate:
            counts.setdefault((str(record.explainer), record.degenerate), Counter())[record.axiom] += 1
    lines = []
    for (explainer, kind), axioms in sorted(counts.items()):
        checks = ", ".join(f"{n} of {measured[explainer, axiom]} {axiom}" for axiom, n in axioms.items())
        lines.append(f"{explainer}: {checks} checks hold on maps that are {kind}: they say little.")
    return lines


def not_applicable(results: Results) -> list[str]:
    """A line for each axiom that cannot be measured for some explainers: their names and the reason."""
    names_of: dict[tuple[str, str], list[str]] = {}
    for row in results.settings.not_applicable:
        names_of.setdefault((row.axiom, row.reason), []).append(row.explainer)
    return [f"{axiom} does not apply to {', '.join(names)}: {reason}" for (axiom, reason), names in names_of.items()]


def nothing_to_check(axioms: Sequence[str], pairs: int, missing: Iterable[NotApplicable]) -> str:
    """Why a run of these axioms on so many pairs has no check; ``missing`` are those that do not apply."""
    reasons = "".join(f"; {row.axiom} does not apply to {row.explainer}: {row.reason}" for row in missing)
    return f"nothing to check: {', '.join(axioms)} on the {pairs} pairs of this run{reasons}"


def not_run_by_reason(results: Results) -> list[Skips]:
    """The checks that did not run, by reason, with the ids of their records."""
    records = [record for record in results.records if record.group is Group.UNMEASURED]
    return skips_by_reason((record.id, str(record.detail.get("reason", ""))) for record in records)


def unmeasured_by_explainer(results: Results) -> list[tuple[str, str]]:
    """What was skipped, and which axioms do not apply: a line for each explainer, those with the most skips first.

    Skips of tests that name no explainer are put together under ``tests``.
    """
    explainers = results.settings.explainers
    skips: dict[str, Counter[str]] = {}
    for skip in results.skips:
        name, _, reason = skip.reason.partition(": ")
        name, reason = (name, reason.rsplit(": ", 1)[-1]) if name in explainers else ("tests", skip.reason)
        skips.setdefault(name, Counter())[reason] += skip.count
    axioms: dict[str, dict[str, list[str]]] = {}
    for row in results.settings.not_applicable:
        axioms.setdefault(row.explainer, {}).setdefault(row.reason, []).append(row.axiom)
    names = sorted({*skips, *axioms}, key=lambda name: (-sum(skips.get(name, Counter()).values()), name))
    return [(name, "; ".join(_unmeasured(skips.get(name, Counter()), axioms.get(name, {})))) for name in names]


def _unmeasured(skips: Counter[str], axioms: dict[str, list[str]]) -> list[str]:
    """``12 skipped: no rule for this operation, and 3 more reasons``, ``balance does not apply: it has no ledger``."""
    more = f", and {len(skips) - 1} more {'reason' if len(skips) == 2 else 'reasons'}" if len(skips) > 1 else ""
    skipped = [f"{sum(skips.values())} skipped: {skips.most_common(1)[0][0]}{more}"] if skips else []
    verbs = {reason: "does" if len(names) == 1 else "do" for reason, names in axioms.items()}
    return skipped + [f"{', '.join(names)} {verbs[reason]} not apply: {reason}" for reason, names in axioms.items()]


def skip_lines(results: Results) -> list[tuple[str, str]]:
    """The skips of a run in at most `SKIP_LINES` lines, ``(count, explainer and reason)``, the most frequent first.

    A reason such as ``explainer: matmul in layer (Class): no rule for this operation`` counts without the place, which
    differs from model to model. The last line counts the skips that the other lines leave out.
    """
    counts: Counter[str] = Counter()
    for skip in results.skips:
        explainer, _, reason = skip.reason.partition(": ")
        known = explainer in results.settings.explainers
        counts[f"{explainer}: {reason.rsplit(': ', 1)[-1]}" if known else skip.reason] += skip.count
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    shown = rows if len(rows) <= SKIP_LINES else rows[: SKIP_LINES - 1]
    lines = [(f"{count} ×", reason) for reason, count in shown]
    if rest := rows[len(shown) :]:
        lines.append((f"{sum(count for _, count in rest)} ×", f"and {len(rest)} more reasons in the report"))
    return lines
