"""How many rules of each LRP method's table the checks of a run met, for the results document.

Each record lists the operations that its check computed by a rule. The document holds them once for each explainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from faithcheck.reports.results import Json


def rules_met(tables: Mapping[str, Sequence[str]], records: Iterable[Json]) -> Json:
    """The rules that were met and that were not.

    Args:
        tables: the operations in the table of rules of each LRP explainer.
        records: the records of the run, as plain values.

    Returns:
        For each explainer with a table ``met`` and ``of``, the numbers of rules, and ``unmet``, their operations.
    """
    met: dict[str, set[str]] = {explainer: set() for explainer in tables}
    for record in records:
        if record["explainer"] in met:
            met[record["explainer"]].update(record.get("rules", ()))
    return {
        explainer: {
            "met": len(met[explainer].intersection(table)),
            "of": len(table),
            "unmet": sorted(set(table) - met[explainer]),
        }
        for explainer, table in tables.items()
    }
