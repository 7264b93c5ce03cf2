"""What is red, by cause, since a person mends causes and not records; and the command that measures it again."""

import math
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from faithcheck.axioms.measure.record import Record
from faithcheck.axioms.measure.statuses import Group, Status
from faithcheck.reports.documents.alignment import Alignment
from faithcheck.reports.documents.document import Document
from faithcheck.reports.documents.results import Failure, Results, red_records
from faithcheck.reports.likely_causes import (
    OF_THE_BATCH,
    changing_explainers,
    error_of,
    likely_cause,
    likely_cause_of_failure,
    rule_of,
)
from faithcheck.reports.pages import wording

_Families: TypeAlias = dict[tuple[str, str | None], set[str]]
FAMILIES = 3
"""The most families of pairs that a likely cause names."""
_DIFFERS = re.compile(r"[-+−]?\d[\d.]*(?:e[-+]?\d+)?|\([^()]*\)|'[^']*'")
"""Parts of a message that differ from record to record: numbers, and what stands in brackets or quotes."""


@dataclass(frozen=True)
class Cause:
    """One cause of what is red in a document."""

    axiom: str  # of one error in checks of several axioms all of them; empty where a test left no record
    explainer: str  # of all its records; empty where they have several, or none
    message: str  # with ``…`` for what differs from record to record
    likely: str  # a sentence
    records: tuple[Record, ...] = ()  # red ones, the worst first
    failures: tuple[Failure, ...] = ()  # tests that failed and left no record

    @property
    def title(self) -> str:
        """The cause in a line: ``completeness: lime: expected to hold, but the gap … is above the tolerance 1e-9``."""
        return ": ".join(filter(None, (self.axiom or "failed test", self.explainer, self.message)))

    @property
    def count(self) -> int:
        """How many records and tests it turned red."""
        return len(self.records) + len(self.failures)


def causes(document: Results) -> list[Cause]:
    """The causes of what is red in a results document, in the order in which to mend them.

    Maps that change from call to call come first: nothing else can be measured on them. Errors and what is left on a
    model follow, then maps that depend on the batch, then other causes that the records tell, and then the usual causes
    of axioms. Within each, causes with the most records come first.

    An error with one message is one cause, whatever check raised it. Other records have one cause if explainer, axiom,
    message and likely cause are the same.
    """
    reds = red_records(document)
    changing, measured = changing_explainers(reds), _families_measured(document)
    of_records: dict[tuple[str, ...], list[Record]] = {}
    for record in reds:
        of_records.setdefault(_key(record, changing), []).append(record)
    of_failures: dict[str, list[Failure]] = {}
    for failure in document.failures:
        of_failures.setdefault(_DIFFERS.sub("…", failure.message), []).append(failure)
    usual = document.usual_causes
    found = [_cause(records, usual, changing, measured) for records in of_records.values()]
    found += [_cause_of_tests(failures) for failures in of_failures.values()]
    # A stable sort: causes of one rank and size stay in the order of the document.
    return sorted(found, key=lambda cause: (_rank(cause, changing), -cause.count))


def _rank(cause: Cause, changing: Collection[str]) -> int:
    """The place of a cause among others, see `causes`."""
    if not cause.records:
        return 1
    record = cause.records[0]
    rule = rule_of(record, changing)
    ranks = (
        record.axiom == "determinism" or record.explainer in changing,
        error_of(record) or record.status == Status.LEFT_BEHIND.label or record.axiom == "trace",
        rule is not None and record.axiom == "batching" and rule.name in OF_THE_BATCH,
        rule is not None,
    )
    return next((rank for rank, applies in enumerate(ranks) if applies), len(ranks))


def _key(record: Record, changing: Collection[str]) -> tuple[str, ...]:
    message, rule = _DIFFERS.sub("…", wording.finding(record)), rule_of(record, changing)
    if error_of(record):
        return "", message
    return record.axiom, record.explainer or "", message, rule.name if rule else ""


def _cause(
    records: Sequence[Record], usual_causes: Mapping[str, str], changing: Collection[str], measured: _Families
) -> Cause:
    worst_first = sorted(records, key=size, reverse=True)
    axioms = ", ".join(sorted({record.axiom for record in records}))
    message = _common([wording.finding(record) for record in records])
    where = "" if rule_of(records[0], changing) else _where(records, measured)
    likely = likely_cause(worst_first, usual_causes, changing) + where
    explainers = {record.explainer or "" for record in records}
    return Cause(axioms, explainers.pop() if len(explainers) == 1 else "", message, likely, tuple(worst_first))


def size(record: Record) -> float:
    """What the worst record has most of: its gap; infinite if it is red and has none."""
    if record.gap is not None and not math.isnan(record.gap):
        return record.gap
    return math.inf if record.group is Group.RED else 0.0


def _families_measured(document: Results) -> _Families:
    """The families of pairs on which each axiom was measured for each explainer."""
    families: _Families = {}
    for record in document.records:
        if record.group not in (Group.SKIP, Group.UNMEASURED):
            families.setdefault((record.axiom, record.explainer), set()).add(record.family)
    return families


def _where(records: Sequence[Record], measured: _Families) -> str:
    """A sentence on the families of the records, where others were measured and are not red by this cause."""
    red = sorted({record.family for record in records})
    others = set().union(*(measured[record.axiom, record.explainer] for record in records)) - set(red)
    if not others or len(red) > FAMILIES:
        return ""
    other = "1 other family" if len(others) == 1 else f"{len(others)} other families"
    return f" Red on {' and '.join(f'{name}.*' for name in red)} alone, not on {other}."


def _cause_of_tests(failures: Sequence[Failure]) -> Cause:
    message = _common([failure.message for failure in failures])
    return Cause("", "", message, likely_cause_of_failure(message), failures=tuple(failures))


def _common(texts: Sequence[str]) -> str:
    """Texts that are the same but for the parts that `_DIFFERS` names, as one: ``…`` for the parts that do differ."""
    parts = zip(*map(_DIFFERS.findall, texts), strict=False)
    shared = (values[0] if len(set(values)) == 1 else "…" for values in parts)
    return _DIFFERS.sub(lambda _: next(shared, "…"), texts[0])


# --- the changes of a comparison by kind: 39 regressions of one cause are one line, with a count and the worst --------


class Change(NamedTuple):
    """A change of one record, or of a ratio, in words."""

    change: str
    id: str  # of the record, or the name of the ratio
    before: str
    now: str


@dataclass(frozen=True)
class KindOfChange:
    """Changes of one kind."""

    change: str  # what changed in all of them
    what: str  # what their records have in common
    likely: str  # the likely cause, if they are red; else empty
    rows: list[Change]  # the worst first


class _Described(NamedTuple):
    """What a record has in common with the others of its kind, its likely cause, and by how much it is violated."""

    what: str = ""
    likely: str = ""
    size: float = 0.0


def kinds(changes: Sequence[Change], documents: Sequence[Document]) -> list[KindOfChange]:
    """The changes by kind: what is red before what is missing or skipped, and then the kind of the most changes.

    A record has the kind that it has in the first of the documents that has it.
    """
    described: dict[str, _Described] = {}
    for document in documents:
        described = _described(document) | described
    found: dict[tuple[str, str, str], list[tuple[float, Change]]] = {}
    for row in changes:
        about = described.get(row.id) or described.get(re.sub(r" \(\d+\)$", "", row.id)) or _Described(row.id)
        found.setdefault((row.change, about.what, about.likely), []).append((about.size, row))
    grouped = [
        KindOfChange(*key, [row for _, row in sorted(members, key=lambda member: -member[0])])
        for key, members in found.items()
    ]
    return sorted(grouped, key=lambda kind: (not kind.likely, -len(kind.rows)))


def _described(document: Document) -> dict[str, _Described]:
    """Each record and failed test by its id; an alignment has few explainers, which are of one kind."""
    if isinstance(document, Alignment):
        return {row.name: _Described() for row in document.explainers}
    if not isinstance(document, Results):
        return {}
    described = {
        record.id: _Described(", ".join(filter(None, (record.explainer, record.axiom))), size=size(record))
        for record in document.records
    }
    for cause in causes(document):
        described |= {record.id: _Described(cause.title, cause.likely, size(record)) for record in cause.records}
        described |= {failure.id: _Described(cause.title, cause.likely) for failure in cause.failures}
    return described


# --- the command that measures a record again -------------------------------------------------------------------------

_ONLY_PYTEST = ("--checkpoint", "--data-dir")
"""Options of the suite that ``faithcheck check`` does not have; pairs depend on them."""
_KEPT = ("--claim", "--expectations", "--explainer-timeout", *_ONLY_PYTEST)
"""Options with a value that decide how a check settles: the command has those that the run had."""
_PYTEST = ("python", "-m", "pytest", "-p", "faithcheck.plugin", "--pyargs", "faithcheck.tests.test_axioms")


def command(results: Results, record: Record) -> str:
    """The command that measures a record again, quoted for a shell.

    A pair that is not built in is named with the module that registers it. A claim that was not measured names no pair:
    the command has the pairs of the run.
    """
    settings, name = results.settings, record.explainer or ""
    ran = settings.arguments
    spec = settings.specs.get(name, name) or next(iter(settings.explainers), "loo")
    pair = record.pair
    module = settings.pair_origins.get(pair, "").split(",")[0]
    of_no_pair = record.status == Status.NOT_MEASURED.label
    pairs = _values(ran, "--pairs") if of_no_pair else [f"{module}:{pair}" if module else pair]
    by_pytest = any(_values(ran, option) for option in _ONLY_PYTEST)
    words = [*_PYTEST, "-m", record.axiom, f"--explainer={spec}"] if by_pytest else ["faithcheck", "check", spec]
    words += [] if by_pytest else ["--axiom", record.axiom]
    words += [word for one in pairs for word in ("--pairs", one)]
    words += ["--seed", str(record.seed), "--device", settings.device]
    words += ["--dtype", settings.dtype] if settings.dtype != "float64" else []
    likes = [like.rpartition("=") for like in _values(ran, "--like")]
    words += [word for of, _, like in likes if of in ("", spec) for word in ("--like", like)]
    words += [word for option in _KEPT for value in _values(ran, option) for word in (option, value)]
    words += ["--isolate"] if "--isolate" in ran else []
    return shlex.join(words)


def command_of_test(test: str) -> str:
    """The command that runs a test again that failed and left no record, quoted for a shell."""
    return shlex.join(["python", "-m", "pytest", "-p", "faithcheck.plugin", test])


def _values(arguments: Sequence[str], option: str) -> list[str]:
    """The values of an option on a command line, ``--option VALUE`` or ``--option=VALUE``."""
    after = [value for word, value in pairwise(arguments) if word == option]
    return after + [word.partition("=")[2] for word in arguments if word.startswith(f"{option}=")]
