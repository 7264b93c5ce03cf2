"""Documents of two catalogues: they are not compared silently, or only in what both have."""

from collections.abc import Mapping

from msgspec.structs import asdict, replace

from faithcheck.axioms.measure.record import Record
from faithcheck.reports.documents.document import DocumentError
from faithcheck.reports.documents.results import Catalogue, Results

NAMED = 5
"""The names of a change in the message of an error; ``faithcheck compare --across-catalogues`` lists all."""
PARTS = ("tolerances", "axioms", "pairs")
"""The parts of a catalogue, each a mapping from names to entries."""


def in_common(old: Results, new: Results, across: bool) -> tuple[Results, Results, list[str]]:
    """The two documents with the records that can be compared, and what differs between their catalogues, in lines.

    A document of an older version names no catalogue: it is compared as it is. Raises `DocumentError` if the catalogues
    differ and ``across`` is false, or they have no tolerance in common.
    """
    before, now = old.catalogue, new.catalogue
    if not before or not now or before.hash == now.hash:
        return old, new, []
    lines = changes(asdict(before), asdict(now)) or ["their hashes differ, their entries do not"]
    names, dtype = f"{before.name} and {now.name}", new.settings.dtype
    if not across:
        raise DocumentError(
            f"the documents are of two catalogues, {names}: {'; '.join(map(_short, lines))}; "
            "--across-catalogues compares what both have"
        )
    if before.tolerances.get(dtype) != now.tolerances.get(dtype):
        raise DocumentError(f"the catalogues {names} have another tolerance of {dtype}: no verdict can be compared")
    kept = [_with_common_records(document, before, now) for document in (old, new)]
    out = [len(document.records) - len(one.records) for document, one in zip((old, new), kept, strict=True)]
    left_out = f"not compared because their axiom or pair differs: {out[0]} records before, {out[1]} now"
    return kept[0], kept[1], [f"catalogues {names}", *lines, left_out]


def changes(old: Mapping[str, Mapping[str, object]], new: Mapping[str, Mapping[str, object]]) -> list[str]:
    """What differs in the `PARTS` of two catalogues: ``pairs added: a, b``; empty if nothing does."""
    lines = []
    for part in PARTS:
        before, now = old[part], new[part]
        lists = {
            "added": now.keys() - before.keys(),
            "removed": before.keys() - now.keys(),
            "changed": _changed(before, now) & before.keys() & now.keys(),
        }
        lines += [f"{part} {how}: {', '.join(sorted(names))}" for how, names in lists.items() if names]
    return lines


def _changed(before: Mapping[str, object], now: Mapping[str, object]) -> set[str]:
    return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


def _with_common_records(document: Results, before: Catalogue, now: Catalogue) -> Results:
    axioms, pairs = _changed(before.axioms, now.axioms), _changed(before.pairs, now.pairs)

    def compared(record: Record) -> bool:
        return record.axiom not in axioms and not {record.pair, record.subject} & pairs

    return replace(document, records=list(filter(compared, document.records)))


def _short(line: str) -> str:
    what, _, names = line.partition(": ")
    listed = names.split(", ")
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return f"{what}: {', '.join(listed[:NAMED])}{more}"
