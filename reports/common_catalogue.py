"""Documents of two catalogues: they are not compared silently, or only in what both have."""

from __future__ import annotations

from faithcheck.catalogue import DIGITS, changes
from faithcheck.reports.results import Json, ResultsError

NAMED = 5  # names of a change in the message; `faithcheck compare --across-catalogues` lists all


def in_common(old: Json, new: Json, across: bool) -> tuple[Json, Json, list[str]]:
    """The two documents with the records that can be compared, and what differs between their catalogues, in lines.

    A document of an older version names no catalogue: it is compared as it is.

    Args:
        old: a results document.
        new: another one.
        across: whether to compare the records of axioms and pairs that both catalogues have, if they differ.

    Raises:
        ResultsError: the catalogues differ, and ``across`` is false, or they have no tolerance in common.
    """
    before, now = old.get("catalogue"), new.get("catalogue")
    if not before or not now or before["hash"] == now["hash"]:
        return old, new, []
    lines, dtype = changes(before, now) or ["their hashes differ, their entries do not"], new["settings"]["dtype"]
    names = " and ".join(f"{one['version']} ({one['hash'][:DIGITS]})" for one in (before, now))
    if not across:
        raise ResultsError(
            f"the documents are of two catalogues, {names}: {'; '.join(map(_short, lines))}; "
            "--across-catalogues compares what both have"
        )
    if before["tolerances"].get(dtype) != now["tolerances"].get(dtype):
        raise ResultsError(f"the catalogues {names} have another tolerance of {dtype}: no verdict can be compared")
    kept = [_with_common_records(document, before, now) for document in (old, new)]
    out = [len(document["records"]) - len(one["records"]) for document, one in zip((old, new), kept, strict=True)]
    left_out = f"not compared, as their axiom or pair differs: {out[0]} records before, {out[1]} now"
    return kept[0], kept[1], [f"catalogues {names}", *lines, left_out]


def _with_common_records(document: Json, before: Json, now: Json) -> Json:
    differ = {
        part: {name for name in before[part].keys() | now[part].keys() if before[part].get(name) != now[part].get(name)}
        for part in ("axioms", "pairs")
    }

    def compared(record: Json) -> bool:
        pair = record["subject"].removesuffix(".f").removesuffix(".g")
        return record["axiom"] not in differ["axioms"] and not {pair, record["subject"]} & differ["pairs"]

    return {**document, "records": list(filter(compared, document["records"]))}


def _short(line: str) -> str:
    what, _, names = line.partition(": ")
    listed = names.split(", ")
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return f"{what}: {', '.join(listed[:NAMED])}{more}"
