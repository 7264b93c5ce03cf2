"""The results document as a Markdown or an HTML page: pure functions of the JSON."""

from __future__ import annotations

from faithcheck.reports.pages import columns, rules, wording
from faithcheck.reports.pages.rendering import to_page
from faithcheck.reports.results import Json, group_of, is_red, not_run, red_records


def to_markdown(results: Json) -> str:
    """The report as Markdown (tables and ``<details>`` as GitHub renders them)."""
    return to_page("report.md.j2", _view(results))


def to_html(results: Json) -> str:
    """The report as one self-contained HTML page: no scripts, no network."""
    return to_page("report.html.j2", _view(results))


def _view(results: Json) -> Json:
    """The content of the templates, in their order."""
    records = results["records"]
    names = [*results["axioms"], *sorted({record["axiom"] for record in records} - results["axioms"].keys())]
    by_axiom = {name: [record for record in records if record["axiom"] == name] for name in names}
    measured = (columns.plain_table(**table) for table in results["tables"])
    return {
        "results": results,
        "red": is_red(results),
        "headline": wording.headline(results),
        "not_run": not_run(results),
        "not_run_by_reason": wording.not_run_by_reason(results),
        "left_behind": wording.left_behind(results),
        "not_applicable": wording.not_applicable(results),
        "origins": wording.origins(results),
        "settings": _settings(results),
        "tiles": _tally(records),
        "reds": [_red(record) for record in red_records(results)],
        "summary": columns.summary(records) if records else None,
        "axioms": [_matrix(name, results["axioms"].get(name, ""), rows) for name, rows in by_axiom.items() if rows],
        "tables": [
            *columns.correlations(by_axiom.get("loo", [])),
            *columns.symbolic_gaps(records),
            *rules.tables(results),
            *columns.slowest(results),
            *measured,
        ],
        "figures": results["figures"],
        "expectations": columns.expectations(records) if records else None,
    }


def _settings(results: Json) -> Json:
    """The settings that fit a line each; origins and what is not applicable are shown in tables and sentences."""
    settings = {key: value for key, value in results["settings"].items() if not isinstance(value, dict)}
    return {
        key: " ".join(map(str, value)) if isinstance(value, list) else value
        for key, value in settings.items()
        if key != "not_applicable"
    }


def _status(status: str) -> Json:
    return {
        "status": status,
        "symbol": wording.symbol(status),
        "meaning": wording.meaning(status),
        "group": group_of(status).label,
    }


def _tally(records: list[Json]) -> list[Json]:
    return [{"count": count, **_status(status)} for status, count in wording.tally_of(records).items()]


def _red(record: Json) -> Json:
    return {
        **_status(record["status"]),
        "sentence": wording.sentence(record),
        "details": wording.details(record),
        "traceback": record["traceback"],
    }


def _matrix(axiom: str, meaning: str, records: list[Json]) -> Json:
    """Subjects as rows, explainers as columns; a cell is None where no record exists."""
    cells = {(record["subject"], record["explainer"] or ""): record for record in records}
    explainers = sorted({explainer for _, explainer in cells})
    rows = [
        {"subject": subject, "cells": [_cell(cells.get((subject, explainer))) for explainer in explainers]}
        for subject in sorted({subject for subject, _ in cells}, key=columns.natural)
    ]
    return {
        "name": axiom,
        "meaning": meaning,
        "columns": [explainer or "models alone" for explainer in explainers],
        "rows": rows,
        "tally": _tally(records),
    }


def _cell(record: Json | None) -> Json | None:
    if record is None:
        return None
    title = f"{record['status']}, expected {record['expected']}: {record['why']}"
    return {"text": wording.cell(record), "group": group_of(record["status"]).label, "title": title}
